# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates CEL, the expression language of Kubernetes, as far as selectors of devices use it.

Expressions are input of users, so everything is bounded: their length, depth and number of parts when they are parsed,
and the steps of each evaluation; whatever takes time takes steps. Types are checked when a value is used; the API
server has compiled the expression before. docs/decisions/0034-selectors-are-evaluated-by-us.md says why no package is
used.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from cotenant.kube.codec.patterns import PatternError, compile_pattern

LONGEST = 10 * 1024
"""Characters of an expression, as in Kubernetes."""
DEEPEST = 48
MOST_PARTS = 2_000
MOST_ITEMS = 1_000
"""Of a list or text that an expression makes."""
_INT_BITS = 63


class CelError(ValueError):
    """The expression is not valid, or cannot be evaluated for a value."""


class Budget:
    """The steps that are left; CelError if there are none."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def take(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise BudgetError


class BudgetError(CelError):
    """The evaluation took too many steps."""

    def __init__(self) -> None:
        super().__init__("the expression takes too many steps")


class Quantity(NamedTuple):
    """An amount such as 4Gi."""

    amount: Any
    """A Fraction."""


class Version(NamedTuple):
    """A semantic version, without what follows its three numbers."""

    major: int
    minor: int
    patch: int


class Optional(NamedTuple):
    """A value that may be absent."""

    present: bool
    value: Any = None


NONE = Optional(False)


@dataclass(slots=True)
class Scope:
    """The variables of an evaluation, and its budget."""

    variables: Mapping[str, Any]
    budget: Budget


Node = Callable[[Scope], Any]


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression."""

    text: str
    run: Node = field(repr=False)
    names: frozenset[str] | None
    """All fields and keys that it can read; None: it computes some of them."""

    def evaluate(self, variables: Mapping[str, Any], budget: Budget) -> Any:
        """Its value; CelError if there is none."""
        try:
            return self.run(Scope(variables, budget))
        except RecursionError:
            raise CelError("the expression is nested too deeply") from None


@lru_cache(maxsize=512)
def parse(text: str) -> Expression:
    """CelError if the text is no expression, or too long."""
    if len(text) > LONGEST:
        raise CelError(f"{len(text)} characters, expected at most {LONGEST}")
    parser = _Parser(_tokens(text))
    run = parser.expression(0)
    if parser.kind != "end":
        raise CelError(f"unexpected {parser.value!r:.40}")
    return Expression(text, run, None if parser.computes_names else frozenset(parser.names))


# Tokens

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|//[^\n]*)+)
    |(?P<text>[rRbB]{0,2}(?:'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
    |(?P<number>0x[0-9a-fA-F]+u?|\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+u?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>&&|\|\||==|!=|<=|>=|\.\?|\[\?|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)


def _tokens(text: str) -> list[tuple[str, str]]:
    found, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise CelError(f"unexpected {text[place]!r} at character {place + 1}")
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
        place = match.end()
    if len(found) > MOST_PARTS:
        raise CelError(f"{len(found)} parts, expected at most {MOST_PARTS}")
    return [*found, ("end", "the end")]


def _string(written: str) -> str | bytes:
    prefix = written[: len(written) - len(written.lstrip("rRbB"))].lower()
    body = written[len(prefix) :]
    quotes = 3 if body[:3] in ("'''", '"""') and len(body) >= 6 else 1
    body = body[quotes:-quotes]
    if "r" not in prefix:
        body = _ESCAPE.sub(_unescaped, body)
    return body.encode() if "b" in prefix else body


def _unescaped(match: re.Match[str]) -> str:
    code = match.group(1)
    is_hex = code[0] in "xuU" and len(code) > 1
    if not is_hex and len(code) != 3:
        return _ESCAPES.get(code, code)
    number = int(code[1:], 16) if is_hex else int(code, 8)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:  # half of a character cannot be written
        raise CelError(f"unknown character {match.group()!r}")
    return chr(number)


# The parser makes a function for each part of the expression.

_BINARY = {
    **dict.fromkeys(("||",), 1),
    **dict.fromkeys(("&&",), 2),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
}
_WORDS = {"true": True, "false": False, "null": None}
_MACROS = ("all", "exists", "exists_one", "map", "filter")


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._place = tokens, 0
        self.names: set[str] = set()
        self.computes_names = False
        self._selection: tuple[Node, Node, str] | None = None
        """the last part that selects a field: it, what it selects from, and the field"""

    @property
    def kind(self) -> str:
        return self._tokens[self._place][0]

    @property
    def value(self) -> str:
        return self._tokens[self._place][1]

    def _next(self) -> str:
        self._place += 1
        return self._tokens[self._place - 1][1]

    def _is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.value in signs

    def _take(self, sign: str) -> bool:
        if self._is_sign(sign):
            self._place += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise CelError(f"expected {sign!r} instead of {self.value!r:.40}")

    def expression(self, depth: int) -> Node:
        condition = self._binary(depth + 1, 1)
        if not self._take("?"):
            return condition
        yes = self._binary(depth + 1, 1)
        self._expect(":")
        no = self.expression(depth + 1)
        return lambda scope: (yes if _truth(condition(scope)) else no)(scope)

    def _binary(self, depth: int, level: int) -> Node:
        if depth > DEEPEST:
            raise CelError(f"the expression is nested too deeply; expected at most {DEEPEST} levels")
        left = self._unary(depth)
        while True:
            sign = self.value
            is_operator = self.kind == "sign" or (self.kind, sign) == ("name", "in")
            if not is_operator or _BINARY.get(sign, 0) < level:
                return left
            self._next()
            left = _operation(sign, left, self._binary(depth + 1, _BINARY[sign] + 1))

    def _unary(self, depth: int) -> Node:
        signs = []
        while self._is_sign("!", "-"):
            signs.append(self._next())
        node = self._member(depth + len(signs))
        for sign in reversed(signs):
            node = _negation(sign, node)
        return node

    def _member(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise CelError(f"the expression is nested too deeply; expected at most {DEEPEST} levels")
        node, name = self._primary(depth)
        while True:
            if self._take("."):
                name = f"{name}.{self.value}" if name else ""
                node = self._selected(node, name, depth)
            elif self._take(".?"):
                node, name = _optional_field(node, self._field()), ""
            elif self._is_sign("[", "[?"):
                is_optional = self._next() == "[?"
                node, name = self._indexed(node, depth, optional=is_optional), ""
            else:
                return node

    def _field(self) -> str:
        if self.kind != "name":
            raise CelError(f"expected a name instead of {self.value!r:.40}")
        name = self._next()
        self.names.add(name)
        return name

    def _selected(self, node: Node, path: str, depth: int) -> Node:
        name = self._field()
        if not self._take("("):
            found = _field_of(node, name)
            self._selection = found, node, name
            return found
        if path == "cel.bind":
            return self._bound(depth)
        if path == "optional.none":
            self._expect(")")
            return lambda scope: NONE
        if name in _MACROS:
            return self._macro(name, node, depth)
        if name not in _METHODS:
            raise CelError(f"unknown function {name!r:.40}")
        return _call(_METHODS[name], name, [node, *self._arguments(depth)])

    def _indexed(self, node: Node, depth: int, *, optional: bool) -> Node:
        if self.kind == "text":
            literal = _string(self.value)
            self.names.add(literal if isinstance(literal, str) else "")
            if self._tokens[self._place + 1] != ("sign", "]"):
                self.computes_names = True
        elif self.kind != "number":
            self.computes_names = True
        index = self.expression(depth + 1)
        self._expect("]")
        return _index(node, index, optional=optional)

    def _arguments(self, depth: int) -> list[Node]:
        found: list[Node] = []
        while not self._take(")"):
            if found:
                self._expect(",")
            found.append(self.expression(depth + 1))
        return found

    def _variable(self) -> str:
        if self.kind != "name":
            raise CelError(f"expected a variable instead of {self.value!r:.40}")
        return self._next()

    def _bound(self, depth: int) -> Node:
        name = self._variable()
        self._expect(",")
        initial = self.expression(depth + 1)
        self._expect(",")
        body = self.expression(depth + 1)
        self._expect(")")
        return lambda scope: body(Scope({**scope.variables, name: initial(scope)}, scope.budget))

    def _macro(self, name: str, node: Node, depth: int) -> Node:
        self.computes_names = True
        variable, parts = self._variable(), []
        while self._take(","):
            parts.append(self.expression(depth + 1))
        self._expect(")")
        if len(parts) not in ((1, 2) if name == "map" else (1,)):
            raise CelError(f"{name}: {len(parts) + 1} arguments, expected 2")
        return _comprehension(name, node, variable, parts)

    def _primary(self, depth: int) -> tuple[Node, str]:
        kind, value = self.kind, self.value
        if kind == "sign" and value == ".":  # a leading dot, as in `.device`
            self._next()
            kind, value = self.kind, self.value
        if self._take("("):
            inner = self.expression(depth + 1)
            self._expect(")")
            return inner, ""
        if self._take("["):
            return _list(self._items("]", depth)), ""
        if self._take("{"):
            return self._map(depth), ""
        if kind not in ("text", "number", "name"):
            raise CelError(f"unexpected {value!r:.40}")
        self._next()
        if kind == "text":
            return _constant(_string(value)), ""
        if kind == "number":
            return _constant(_number(value)), ""
        if value in _WORDS:
            return _constant(_WORDS[value]), ""
        if not self._take("("):
            return _variable_node(value), value
        if value == "has":
            return self._has(depth), ""
        if value not in _FUNCTIONS:
            raise CelError(f"unknown function {value!r:.40}")
        return _call(_FUNCTIONS[value], value, self._arguments(depth)), ""

    def _has(self, depth: int) -> Node:
        argument = self.expression(depth + 1)
        self._expect(")")
        if self._selection is None or self._selection[0] is not argument:
            raise CelError("has: expected a field, such as has(device.attributes)")
        _, node, name = self._selection

        def run(scope: Scope) -> bool:
            scope.budget.take()
            return name in _mapping(node(scope))

        return run

    def _items(self, end: str, depth: int) -> list[Node]:
        found: list[Node] = []
        while not self._take(end):
            if found:
                self._expect(",")
                if self._take(end):
                    break
            found.append(self.expression(depth + 1))
        return found

    def _map(self, depth: int) -> Node:
        pairs: list[tuple[Node, Node]] = []
        while not self._take("}"):
            if pairs:
                self._expect(",")
            key = self.expression(depth + 1)
            self._expect(":")
            pairs.append((key, self.expression(depth + 1)))

        def run(scope: Scope) -> dict[Any, Any]:
            scope.budget.take()
            return {_key(key(scope)): value(scope) for key, value in pairs}

        return run


def _number(written: str) -> int | float:
    if written.lower().startswith("0x"):
        return _within(int(written.rstrip("uU"), 16))
    if any(letter in written for letter in ".eE"):
        return float(written)
    if len(written) > 20:
        raise CelError(f"{written[:20]}... is not a number of 64 bits")
    return _within(int(written.rstrip("u")))


def _constant(value: Any) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        return value

    return run


def _variable_node(name: str) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        if name not in scope.variables:
            raise CelError(f"unknown variable {name!r:.40}")
        return scope.variables[name]

    return run


def _list(items: list[Node]) -> Node:
    def run(scope: Scope) -> list[Any]:
        scope.budget.take()
        return [item(scope) for item in items]

    return run


def _field_of(node: Node, name: str) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        value = node(scope)
        if isinstance(value, Optional):
            return _field_or_none(value, name)
        found = _mapping(value)
        if name not in found:
            raise CelError(f"there is no {name}")
        return found[name]

    return run


def _optional_field(node: Node, name: str) -> Node:
    def run(scope: Scope) -> Optional:
        scope.budget.take()
        value = node(scope)
        return _field_or_none(value if isinstance(value, Optional) else Optional(True, value), name)

    return run


def _field_or_none(value: Optional, name: Any) -> Optional:
    if not value.present:
        return NONE
    found = _mapping(value.value)
    return Optional(True, found[name]) if name in found else NONE


def _index(node: Node, index: Node, *, optional: bool) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        value, at = node(scope), index(scope)
        if optional or isinstance(value, Optional):
            return _field_or_none(value if isinstance(value, Optional) else Optional(True, value), _key(at))
        if isinstance(value, list):
            if not _is_int(at) or not 0 <= at < len(value):
                raise CelError("there is no item with this index")
            return value[at]
        found = _mapping(value)
        if _key(at) not in found:
            raise CelError(f"there is no {at!r:.60}")
        return found[at]

    return run


def _mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise CelError(f"{_type(value)} has no fields")
    return value


def _key(value: Any) -> Any:
    if not isinstance(value, str | int | bool):
        raise CelError(f"{_type(value)} is not a key")
    return value


def _comprehension(name: str, node: Node, variable: str, parts: list[Node]) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        over = node(scope)
        if not isinstance(over, list | Mapping):
            raise CelError(f"{name}: {_type(over)} is not a list")
        items = list(over)

        def of(item: Any, part: Node) -> Any:
            return part(Scope({**scope.variables, variable: item}, scope.budget))

        if name == "map":
            kept = [item for item in items if len(parts) == 1 or _truth(of(item, parts[0]))]
            return [of(item, parts[-1]) for item in kept]
        if name == "filter":
            return [item for item in items if _truth(of(item, parts[0]))]
        if name == "exists_one":
            return sum(_truth(of(item, parts[0])) for item in items) == 1
        return _any_of(items, lambda item: _truth(of(item, parts[0])), wanted=name == "exists")

    return run


def _any_of(items: list[Any], test: Callable[[Any], bool], *, wanted: bool) -> bool:
    """Whether one of them has the wanted answer (`exists`), or none has the other one (`all`). An error counts only if
    no item decides."""
    failed: CelError | None = None
    for item in items:
        try:
            if test(item) is wanted:
                return wanted
        except BudgetError:
            raise
        except CelError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return not wanted


# Operators


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"expected true or false instead of {_type(value)}")
    return value


def _negation(sign: str, node: Node) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        value = node(scope)
        if sign == "!":
            return not _truth(value)
        return -_numeric(value) if isinstance(value, float) else _within(-_numeric(value))

    return run


def _operation(sign: str, left: Node, right: Node) -> Node:
    if sign in ("&&", "||"):
        return _logical(left, right, wanted=sign == "||")
    if sign in _COMPARISONS:
        return _comparison(_COMPARISONS[sign], left, right, wanted=sign != "!=")
    operate = _OPERATORS[sign]

    def run(scope: Scope) -> Any:
        scope.budget.take()
        return operate(left(scope), right(scope))

    return run


def _comparison(compare: Callable[[Any, Any, Budget], bool], left: Node, right: Node, *, wanted: bool) -> Node:
    def run(scope: Scope) -> bool:
        scope.budget.take()
        return compare(left(scope), right(scope), scope.budget) is wanted

    return run


def _logical(left: Node, right: Node, *, wanted: bool) -> Node:
    def run(scope: Scope) -> bool:
        scope.budget.take()
        return _any_of([left, right], lambda node: _truth(node(scope)), wanted=wanted)

    return run


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _numeric(value: Any) -> Any:
    if not _is_int(value) and not isinstance(value, float):
        raise CelError(f"expected a number instead of {_type(value)}")
    return value


def _within(value: int) -> int:
    if not -(1 << _INT_BITS) <= value < 1 << (_INT_BITS + 1):
        raise CelError("the number has more than 64 bits")
    return value


def _type(value: Any) -> str:
    names = {bool: "a boolean", str: "a text", bytes: "bytes", list: "a list", type(None): "null"}
    names |= {Quantity: "a quantity", Version: "a version", Optional: "an optional value"}
    return names.get(type(value)) or ("a number" if isinstance(value, int | float) else "a map")


def _kind(value: Any) -> str:
    return "number" if _is_int(value) or isinstance(value, float) else _type(value)


def _equal(left: Any, right: Any, budget: Budget) -> bool:
    """Lists may contain the same list many times, so each comparison takes a step."""
    budget.take()
    if _kind(left) != _kind(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(_equal(*both, budget) for both in zip(left, right, strict=True))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_equal(left[key], right[key], budget) for key in left)
    if isinstance(left, Optional):
        return left.present is right.present and _equal(left.value, right.value, budget)
    return bool(left == right)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def run(left: Any, right: Any) -> bool:
        if _kind(left) != _kind(right) or isinstance(left, list | Mapping | Optional) or left is None:
            raise CelError(f"{_type(left)} cannot be compared with {_type(right)}")
        return compare(left, right)

    return run


def _add(left: Any, right: Any) -> Any:
    is_text = isinstance(left, str | bytes | list)
    if is_text and type(left) is type(right):
        if len(left) + len(right) > MOST_ITEMS:
            raise CelError(f"more than {MOST_ITEMS} characters or items")
        return left + right
    return _arithmetic("+", left, right)


def _arithmetic(sign: str, left: Any, right: Any) -> Any:
    left, right = _numeric(left), _numeric(right)
    if isinstance(left, float) is not isinstance(right, float):
        raise CelError("whole numbers and fractions cannot be mixed; convert one by int() or double()")
    if sign in "/%" and not right:
        raise CelError("division by zero")
    if isinstance(left, float):
        if sign == "%":
            raise CelError("% needs whole numbers")
        return {"+": left + right, "-": left - right, "*": left * right, "/": left / right if right else 0.0}[sign]
    if sign == "+":
        return _within(left + right)
    if sign == "-":
        return _within(left - right)
    if sign == "*":
        return _within(left * right)
    whole = abs(left) // abs(right) * (1 if (left < 0) is (right < 0) else -1)  # towards zero, as in CEL
    return whole if sign == "/" else left - whole * right


def _contains(item: Any, collection: Any, budget: Budget) -> bool:
    if isinstance(collection, list):
        return any(_equal(item, one, budget) for one in collection)
    return _key(item) in _mapping(collection)


_COMPARISONS: dict[str, Callable[[Any, Any, Budget], bool]] = {"==": _equal, "!=": _equal, "in": _contains}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": _ordered(lambda left, right: left < right),
    "<=": _ordered(lambda left, right: left <= right),
    ">": _ordered(lambda left, right: left > right),
    ">=": _ordered(lambda left, right: left >= right),
    "+": _add,
    "-": lambda left, right: _arithmetic("-", left, right),
    "*": lambda left, right: _arithmetic("*", left, right),
    "/": lambda left, right: _arithmetic("/", left, right),
    "%": lambda left, right: _arithmetic("%", left, right),
}


# Functions


def _call(function: Callable[..., Any], name: str, arguments: list[Node]) -> Node:
    def run(scope: Scope) -> Any:
        values = [argument(scope) for argument in arguments]
        scope.budget.take(1 + sum(len(value) // 16 for value in values if isinstance(value, str | list)))
        try:
            if function is _matches:
                return _matches(*values, take=scope.budget.take)
            return function(*values)
        except (TypeError, AttributeError, OverflowError):
            kinds = ", ".join(_type(value) for value in values)
            raise CelError(f"{name} cannot be called with {kinds or 'nothing'}") from None

    return run


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CelError(f"expected a text instead of {_type(value)}")
    return value


def _size(value: Any) -> int:
    if not isinstance(value, str | bytes | list | Mapping):
        raise CelError(f"{_type(value)} has no size")
    return len(value)


def _matches(text: Any, pattern: Any, *, take: Callable[[int], None]) -> bool:
    try:
        return compile_pattern(_text(pattern)).is_in(_text(text), take)
    except PatternError as error:
        raise CelError(f"matches: the pattern: {error}") from None


def _quantity(text: Any) -> Quantity:
    from cotenant.kube.codec.amounts import parse_quantity  # which reads the settings, and they read this

    try:
        return Quantity(parse_quantity(_text(text)))
    except ValueError as error:
        raise CelError(f"quantity: {error}") from None


_SEMVER = re.compile(r"(0|[1-9]\d{0,9})\.(0|[1-9]\d{0,9})\.(0|[1-9]\d{0,9})(?:[-+][0-9A-Za-z.+-]*)?", re.ASCII)


def version(text: Any) -> Version:
    """A semantic version; CelError if the text is none."""
    match = _SEMVER.fullmatch(_text(text))
    if match is None:
        raise CelError(f"semver: {text!r:.40} is no version such as 1.2.3")
    return Version(*(int(part) for part in match.groups()))


def _is(make: Callable[[Any], Any]) -> Callable[[Any], bool]:
    def run(text: Any) -> bool:
        try:
            make(text)
        except CelError:
            return False
        return True

    return run


def _amount(value: Any) -> Any:
    return _numeric(value) if not isinstance(value, Quantity) else value.amount


def _compared(left: Any, right: Any) -> int:
    if type(left) is not type(right) or not isinstance(left, Quantity | Version):
        raise CelError(f"{_type(left)} cannot be compared with {_type(right)}")
    return int(left > right) - int(left < right)


def _to_int(value: Any) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?\d{1,20}", value, re.ASCII):
            raise CelError(f"int: {value!r:.40} is no number")
        return _within(int(value))
    number = _numeric(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise CelError("int: not a number")
    return _within(int(number))


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    return str(_numeric(value))


def _to_double(value: Any) -> float:
    try:
        return float(_text(value)) if isinstance(value, str) else float(_numeric(value))
    except ValueError:
        raise CelError(f"double: {value!r:.40} is no number") from None


def _substring(text: Any, start: int, end: int | None = None) -> str:
    last = len(_text(text)) if end is None else end
    if not 0 <= start <= last <= len(text):
        raise CelError("substring: outside of the text")
    return str(text[start:last])


def _present(value: Any) -> Optional:
    if not isinstance(value, Optional):
        raise CelError(f"{_type(value)} is not an optional value")
    return value


def _value_of(value: Any) -> Any:
    if not _present(value).present:
        raise CelError("the optional value is absent")
    return value.value


def _whole_amount(value: Any) -> int:
    amount = _amount(value)
    if amount.denominator != 1:
        raise CelError("asInteger: not a whole number")
    return _within(int(amount))


def _sign(value: Any) -> int:
    return int(_amount(value) > 0) - int(_amount(value) < 0)


def _parts(text: Any, part: Any) -> list[str]:
    return _text(text).split(part) if _text(part) else list(_text(text))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "size": _size,
    "int": _to_int,
    "uint": _to_int,
    "double": _to_double,
    "string": _to_string,
    "bool": _truth,
    "dyn": lambda value: value,
    "matches": _matches,
    "quantity": _quantity,
    "isQuantity": _is(_quantity),
    "semver": version,
    "isSemver": _is(version),
    "sign": _sign,
}
_METHODS: dict[str, Callable[..., Any]] = {
    "size": _size,
    "matches": _matches,
    "contains": lambda text, part: _text(part) in _text(text),
    "startsWith": lambda text, part: _text(text).startswith(_text(part)),
    "endsWith": lambda text, part: _text(text).endswith(_text(part)),
    "lowerAscii": lambda text: _text(text).lower(),
    "upperAscii": lambda text: _text(text).upper(),
    "trim": lambda text: _text(text).strip(),
    "indexOf": lambda text, part: _text(text).find(_text(part)),
    "substring": _substring,
    "split": _parts,
    "compareTo": _compared,
    "isGreaterThan": lambda left, right: _compared(left, right) > 0,
    "isLessThan": lambda left, right: _compared(left, right) < 0,
    "asInteger": _whole_amount,
    "isInteger": lambda value: _amount(value).denominator == 1,
    "asApproximateFloat": lambda value: float(_amount(value)),
    "sign": _sign,
    "add": lambda left, right: Quantity(_amount(left) + _amount(right)),
    "sub": lambda left, right: Quantity(_amount(left) - _amount(right)),
    "major": lambda value: value.major if isinstance(value, Version) else _text(value),
    "minor": lambda value: value.minor if isinstance(value, Version) else _text(value),
    "patch": lambda value: value.patch if isinstance(value, Version) else _text(value),
    "orValue": lambda value, other: value.value if _present(value).present else other,
    "or": lambda value, other: value if _present(value).present else _present(other),
    "hasValue": lambda value: _present(value).present,
    "value": _value_of,
}
