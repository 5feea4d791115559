# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Random expressions in CEL together with their values, which follow from the rules of the language alone.

The value of each part is computed when its text is made, so nothing here parses. `ERROR` is the value of what has none.
"""

import math
import operator
from collections.abc import Callable
from random import Random
from typing import Any

ERROR = object()
LARGEST = (1 << 63) - 1
NUMBERS = (0, 1, 2, 7, -1, 40, LARGEST, -LARGEST)
FRACTIONS = (0.0, 1.5, -2.25, 1e10)
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

Part = tuple[str, Any]


def expression(random: Random, depth: int) -> Part:
    """A text, and its value."""
    if depth == 0 or random.random() < 0.1:
        return literal(random)
    parts = [expression(random, depth - 1) for _ in range(3)]
    return random.choice(SHAPES)(random, *parts)


def literal(random: Random, kinds: str = "iibdslm") -> Part:
    kind = random.choice(kinds)
    if kind == "b":
        value: Any = random.random() < 0.5
        return str(value).lower(), value
    if kind in "id":
        value = random.choice(NUMBERS if kind == "i" else FRACTIONS)
        return f"({value!r})", value
    if kind == "s":
        value = "".join(random.choice("abA0 ") for _ in range(random.randrange(5)))
        return repr(value), value
    items = [literal(random, "is") for _ in range(random.randrange(4))]
    if kind == "l":
        return f"[{', '.join(text for text, _ in items)}]", [one for _, one in items]
    pairs = {key: (text, literal(random, "i")) for text, key in items}
    return (
        "{" + ", ".join(f"{text}: {value[0]}" for text, value in pairs.values()) + "}",
        {key: value[1] for key, (_, value) in pairs.items()},
    )


def kind_of(value: Any) -> str:
    """Values of different kinds are never equal; of what has no value, it is empty."""
    if value is ERROR:
        return ""
    if isinstance(value, bool):
        return "bool"
    names = {int: "number", float: "number", str: "text", list: "list", dict: "map"}
    return names[type(value)]


def equal(left: Any, right: Any) -> bool:
    if kind_of(left) != kind_of(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return bool(left == right)


def logical(random: Random, left: Part, right: Part, _: Part) -> Part:
    sign = random.choice(["&&", "||"])
    decides, values = sign == "||", (left[1], right[1])
    text = f"({left[0]} {sign} {right[0]})"
    if decides in [one for one in values if kind_of(one) == "bool"]:
        return text, decides
    return text, not decides if all(kind_of(one) == "bool" for one in values) else ERROR


def choice(_: Random, condition: Part, yes: Part, no: Part) -> Part:
    text = f"({condition[0]} ? {yes[0]} : {no[0]})"
    return text, (yes if condition[1] else no)[1] if kind_of(condition[1]) == "bool" else ERROR


def negated(_: Random, one: Part, *__: Part) -> Part:
    return f"!({one[0]})", not one[1] if kind_of(one[1]) == "bool" else ERROR


def compared(random: Random, left: Part, right: Part, _: Part) -> Part:
    sign, kinds = random.choice(["==", "!=", *COMPARE]), {kind_of(left[1]), kind_of(right[1])}
    text = f"({left[0]} {sign} {right[0]})"
    if "" in kinds:
        return text, ERROR
    if sign not in COMPARE:
        return text, equal(left[1], right[1]) is (sign == "==")
    if len(kinds) > 1 or kinds & {"list", "map"}:
        return text, ERROR
    return text, COMPARE[sign](left[1], right[1])


def computed(random: Random, left: Part, right: Part, _: Part) -> Part:
    sign, kinds = random.choice("+-*/%"), {kind_of(left[1]), kind_of(right[1])}
    text, a, b = f"({left[0]} {sign} {right[0]})", left[1], right[1]
    if sign == "+" and kinds in ({"text"}, {"list"}):
        return text, a + b
    if kinds != {"number"} or isinstance(a, float) is not isinstance(b, float):
        return text, ERROR
    if isinstance(a, float):
        return text, ERROR if sign == "%" else by_ieee(sign, a, b)
    if sign in "/%":
        if b == 0:
            return text, ERROR
        rest = int(math.copysign(1, a)) * (abs(a) % abs(b))
        value = (a - rest) // b if sign == "/" else rest
    else:
        value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return text, value if -LARGEST - 1 <= value <= LARGEST else ERROR


def by_ieee(sign: str, a: float, b: float) -> float:
    if sign != "/" or b:
        return float({"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[sign](a, b))
    return math.nan if a == 0 or math.isnan(a) else math.inf * math.copysign(1, a) * math.copysign(1, b)


def contained(_: Random, item: Part, whole: Part, __: Part) -> Part:
    text, one, many = f"({item[0]} in {whole[0]})", item[1], whole[1]
    if one is not ERROR and isinstance(many, list):
        return text, any(equal(one, other) for other in many)
    return text, one in many if isinstance(many, dict) and is_key(one) else ERROR


def is_key(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def indexed(_: Random, whole: Part, index: Part, __: Part) -> Part:
    text, many, at = f"({whole[0]})[{index[0]}]", whole[1], index[1]
    if isinstance(many, list) and is_key(at) and isinstance(at, int) and 0 <= at < len(many):
        return text, many[at]
    return text, many[at] if isinstance(many, dict) and is_key(at) and at in many else ERROR


def sized(_: Random, one: Part, *__: Part) -> Part:
    return f"size({one[0]})", len(one[1]) if kind_of(one[1]) in ("text", "list", "map") else ERROR


def of_each(random: Random, whole: Part, *_: Part) -> Part:
    macro, sign, (text, limit) = random.choice(["exists", "all", "filter"]), random.choice("<="), literal(random, "i")
    written = f"({whole[0]}).{macro}(x, x {'==' if sign == '=' else sign} {text})"
    if kind_of(whole[1]) not in ("list", "map"):
        return written, ERROR
    answers = [
        equal(one, limit) if sign == "=" else one < limit if kind_of(one) == "number" else ERROR for one in whole[1]
    ]
    if macro == "filter":
        kept = [one for one, answer in zip(whole[1], answers, strict=True) if answer is True]
        return written, ERROR if ERROR in answers else kept
    decides = macro == "exists"
    if any(answer is decides for answer in answers):
        return written, decides
    return written, ERROR if ERROR in answers else not decides


def bound(_: Random, one: Part, other: Part, __: Part) -> Part:
    return f"cel.bind(x, {one[0]}, [x, {other[0]}])", ERROR if ERROR in (one[1], other[1]) else [one[1], other[1]]


SHAPES: tuple[Callable[..., Part], ...] = (
    *(logical, choice, negated, compared, computed),
    *(contained, indexed, sized, of_each, bound),
)
