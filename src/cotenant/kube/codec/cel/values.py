# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The values of expressions, how they compare, and the budget of an evaluation."""

from collections.abc import Mapping
from typing import Any, NamedTuple

MOST_ITEMS = 1_000
"""Of a list or text that an expression makes."""
_INT = 1 << 63
_UINT = 1 << 64


class CelError(ValueError):
    """The expression is not valid, or cannot be evaluated for a value."""


class Budget:
    """The steps that are left; BudgetError if there are none."""

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
    """A semantic version."""

    major: int
    minor: int
    patch: int
    rank: tuple[Any, ...] = (1,)
    """Puts versions before a release, such as 1.2.3-rc.1, before it."""


class Optional(NamedTuple):
    """A value that may be absent."""

    present: bool
    value: Any = None


NONE = Optional(False)


# Types


def type_of(value: Any) -> str:
    """The type of a value, in words."""
    names = {bool: "a boolean", str: "a text", bytes: "bytes", list: "a list", type(None): "null"}
    names |= {Quantity: "a quantity", Version: "a version", Optional: "an optional value"}
    return names.get(type(value)) or ("a number" if isinstance(value, int | float) else "a map")


def is_int(value: Any) -> bool:
    """Whether it is a whole number: for Python, true and false are numbers too."""
    return isinstance(value, int) and not isinstance(value, bool)


def truth(value: Any) -> bool:
    """CelError if it is neither true nor false."""
    if not isinstance(value, bool):
        raise CelError(f"expected true or false instead of {type_of(value)}")
    return value


def numeric(value: Any) -> Any:
    """CelError if it is no number."""
    if not is_int(value) and not isinstance(value, float):
        raise CelError(f"expected a number instead of {type_of(value)}")
    return value


def text_of(value: Any) -> str:
    """CelError if it is no text."""
    if not isinstance(value, str):
        raise CelError(f"expected a text instead of {type_of(value)}")
    return value


def mapping(value: Any) -> Mapping[Any, Any]:
    """CelError if it is no map."""
    if not isinstance(value, Mapping):
        raise CelError(f"{type_of(value)} has no fields")
    return value


def key_of(value: Any) -> Any:
    """CelError if it cannot be the key of a map. True and false cannot: for Python, they are the keys 1 and 0."""
    if not isinstance(value, str) and not is_int(value):
        raise CelError(f"{type_of(value)} is not a key")
    return value


def present(value: Any) -> Optional:
    """CelError if it is no optional value."""
    if not isinstance(value, Optional):
        raise CelError(f"{type_of(value)} is not an optional value")
    return value


def within(value: int, *operands: int) -> int:
    """CelError if a number has more than 64 bits. The result of a computation is a uint only if an operand is one for
    certain, because int and uint are one type here."""
    if not -_INT <= value < (_UINT if not operands or max(operands) >= _INT else _INT):
        raise CelError("the number has more than 64 bits")
    return value


# Comparison


def kind_of(value: Any) -> str:
    """Values of one kind can be compared."""
    return "number" if is_int(value) or isinstance(value, float) else type_of(value)


def equal(left: Any, right: Any, budget: Budget) -> bool:
    """Lists may contain the same list many times, so each comparison takes a step."""
    budget.take()
    if kind_of(left) != kind_of(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(equal(*both, budget) for both in zip(left, right, strict=True))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(equal(left[key], right[key], budget) for key in left)
    if isinstance(left, Optional):
        return left.present is right.present and equal(left.value, right.value, budget)
    return bool(left == right)


def contains(item: Any, collection: Any, budget: Budget) -> bool:
    """Whether a list has an item, or a map a key."""
    if isinstance(collection, list):
        return any(equal(item, one, budget) for one in collection)
    return key_of(item) in mapping(collection)
