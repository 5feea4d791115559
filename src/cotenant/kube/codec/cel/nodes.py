# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of an expression, each of which has a value for the variables of an evaluation.

Each part takes at least one step. A part knows how many parts are within each other below it, so that no evaluation
goes deeper than Python's stack allows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import copysign, inf, nan
from typing import Any, NamedTuple

from cotenant.kube.codec.cel.functions import matches
from cotenant.kube.codec.cel.values import (
    MOST_ITEMS,
    NONE,
    Budget,
    BudgetError,
    CelError,
    Optional,
    contains,
    equal,
    is_int,
    key_of,
    kind_of,
    mapping,
    numeric,
    truth,
    type_of,
    within,
)

TALLEST = 100
"""Parts within each other. A part takes up to five of the 1,000 calls that Python nests."""


@dataclass(slots=True)
class Scope:
    """The variables of an evaluation, and its budget."""

    variables: Mapping[str, Any]
    budget: Budget


Run = Callable[[Scope], Any]


class Node(NamedTuple):
    """A part of an expression."""

    run: Run
    height: int = 1


def node(run: Run, *parts: Node) -> Node:
    """A part that consists of others; CelError if too many are within each other."""
    height = 1 + max((part.height for part in parts), default=0)
    if height > TALLEST:
        raise CelError(f"the expression is nested too deeply; expected at most {TALLEST} parts within each other")
    return Node(run, height)


# Values


def constant(value: Any) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        return value

    return node(run)


def variable(name: str) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        if name not in scope.variables:
            raise CelError(f"unknown variable {name!r:.40}")
        return scope.variables[name]

    return node(run)


def list_of(items: Sequence[Node]) -> Node:
    def run(scope: Scope) -> list[Any]:
        scope.budget.take()
        return [item.run(scope) for item in items]

    return node(run, *items)


def map_of(pairs: Sequence[tuple[Node, Node]]) -> Node:
    def run(scope: Scope) -> dict[Any, Any]:
        scope.budget.take()
        found = {key_of(key.run(scope)): value.run(scope) for key, value in pairs}
        if len(found) < len(pairs):
            raise CelError("a map has the same key twice")
        return found

    return node(run, *(part for pair in pairs for part in pair))


def bound(name: str, initial: Node, body: Node) -> Node:
    """`cel.bind`."""
    return node(
        lambda scope: body.run(Scope({**scope.variables, name: initial.run(scope)}, scope.budget)), initial, body
    )


# Fields and items


def field_of(whole: Node, name: str) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        value = whole.run(scope)
        if isinstance(value, Optional):
            return _field_or_none(value, name)
        found = mapping(value)
        if name not in found:
            raise CelError(f"there is no {name}")
        return found[name]

    return node(run, whole)


def has_field(whole: Node, name: str) -> Node:
    """`has`."""

    def run(scope: Scope) -> bool:
        scope.budget.take()
        return name in mapping(whole.run(scope))

    return node(run, whole)


def optional_field(whole: Node, name: str) -> Node:
    def run(scope: Scope) -> Optional:
        scope.budget.take()
        value = whole.run(scope)
        return _field_or_none(value if isinstance(value, Optional) else Optional(True, value), name)

    return node(run, whole)


def _field_or_none(value: Optional, name: Any) -> Optional:
    if not value.present:
        return NONE
    found = mapping(value.value)
    return Optional(True, found[name]) if name in found else NONE


def item_of(whole: Node, index: Node, *, optional: bool) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        value, at = whole.run(scope), index.run(scope)
        if optional or isinstance(value, Optional):
            return _field_or_none(value if isinstance(value, Optional) else Optional(True, value), key_of(at))
        if isinstance(value, list):
            if not is_int(at) or not 0 <= at < len(value):
                raise CelError("there is no item with this index")
            return value[at]
        found = mapping(value)
        if key_of(at) not in found:
            raise CelError(f"there is no {at!r:.60}")
        return found[at]

    return node(run, whole, index)


# Operators


def choice(condition: Node, yes: Node, no: Node) -> Node:
    return node(lambda scope: (yes if truth(condition.run(scope)) else no).run(scope), condition, yes, no)


def negation(sign: str, part: Node) -> Node:
    def run(scope: Scope) -> Any:
        scope.budget.take()
        value = part.run(scope)
        if sign == "!":
            return not truth(value)
        return -numeric(value) if isinstance(value, float) else within(-numeric(value))

    return node(run, part)


def logical(sign: str, parts: Sequence[Node]) -> Node:
    """All parts joined by `&&` or `||`."""

    def run(scope: Scope) -> bool:
        scope.budget.take()
        return _any_of(parts, lambda part: truth(part.run(scope)), wanted=sign == "||")

    return node(run, *parts)


def _any_of(items: Sequence[Any], test: Callable[[Any], bool], *, wanted: bool) -> bool:
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


def operation(sign: str, left: Node, right: Node) -> Node:
    if sign in _COMPARISONS:
        return _comparison(_COMPARISONS[sign], left, right, wanted=sign != "!=")
    operate = OPERATORS[sign]

    def run(scope: Scope) -> Any:
        scope.budget.take()
        return operate(left.run(scope), right.run(scope))

    return node(run, left, right)


def _comparison(compare: Callable[[Any, Any, Budget], bool], left: Node, right: Node, *, wanted: bool) -> Node:
    def run(scope: Scope) -> bool:
        scope.budget.take()
        return compare(left.run(scope), right.run(scope), scope.budget) is wanted

    return node(run, left, right)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def run(left: Any, right: Any) -> bool:
        if kind_of(left) != kind_of(right) or isinstance(left, list | Mapping | Optional) or left is None:
            raise CelError(f"{type_of(left)} cannot be compared with {type_of(right)}")
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
    left, right = numeric(left), numeric(right)
    if isinstance(left, float) is not isinstance(right, float):
        raise CelError("whole numbers and fractions cannot be mixed; convert one by int() or double()")
    if isinstance(left, float):
        if sign == "%":
            raise CelError("% needs whole numbers")
        return {"+": left + right, "-": left - right, "*": left * right, "/": _quotient(left, right)}[sign]
    if sign in "/%":
        if not right:
            raise CelError("division by zero")
        whole = abs(left) // abs(right) * (1 if (left < 0) is (right < 0) else -1)  # towards zero, as in CEL
        return within(whole if sign == "/" else left - whole * right, left, right)
    return within({"+": left + right, "-": left - right, "*": left * right}[sign], left, right)


def _quotient(left: float, right: float) -> float:
    if right:
        return left / right
    return nan if not left or left != left else copysign(inf, left) * copysign(1.0, right)


_COMPARISONS: dict[str, Callable[[Any, Any, Budget], bool]] = {"==": equal, "!=": equal, "in": contains}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
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


# Calls


def call(function: Callable[..., Any], name: str, arguments: Sequence[Node]) -> Node:
    def run(scope: Scope) -> Any:
        values = [argument.run(scope) for argument in arguments]
        scope.budget.take(1 + sum(len(value) // 16 for value in values if isinstance(value, str | list)))
        try:
            if function is matches:
                return matches(*values, take=scope.budget.take)
            return function(*values)
        except (TypeError, AttributeError, OverflowError):
            kinds = ", ".join(type_of(value) for value in values)
            raise CelError(f"{name} cannot be called with {kinds or 'nothing'}") from None

    return node(run, *arguments)


def comprehension(name: str, over: Node, variable: str, parts: Sequence[Node]) -> Node:
    """A macro such as `all`, which evaluates parts for each item of a list or key of a map."""

    def run(scope: Scope) -> Any:
        scope.budget.take()
        found = over.run(scope)
        if not isinstance(found, list | Mapping):
            raise CelError(f"{name}: {type_of(found)} is not a list")
        items = list(found)

        def of(item: Any, part: Node) -> Any:
            return part.run(Scope({**scope.variables, variable: item}, scope.budget))

        if name == "map":
            kept = [item for item in items if len(parts) == 1 or truth(of(item, parts[0]))]
            return [of(item, parts[-1]) for item in kept]
        if name == "filter":
            return [item for item in items if truth(of(item, parts[0]))]
        if name == "exists_one":
            return sum(truth(of(item, parts[0])) for item in items) == 1
        return _any_of(items, lambda item: truth(of(item, parts[0])), wanted=name == "exists")

    return node(run, over, *parts)
