# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The functions and methods that an expression can call."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.cel.patterns import MOST_STATES, PatternError, compile_pattern
from cotenant.kube.codec.cel.values import (
    CelError,
    Optional,
    Quantity,
    Version,
    is_int,
    numeric,
    present,
    text_of,
    truth,
    type_of,
    within,
)

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_UPPER = str.maketrans(ascii_lowercase, ascii_uppercase)
_LARGEST, _STEP = (1 << 63) - 1, 10**9
"""Of a quantity in Kubernetes; it has no more than nine digits behind the point."""


def _size(value: Any) -> int:
    if not isinstance(value, str | bytes | list | Mapping):
        raise CelError(f"{type_of(value)} has no size")
    return len(value)


def matches(text: Any, pattern: Any, *, take: Callable[[int], None]) -> bool:
    """Whether a part of the text matches. A pattern that the expression computes is compiled each time, so its states
    take steps too."""
    try:
        compiled = compile_pattern(text_of(pattern))
    except PatternError as error:
        take(MOST_STATES)
        raise CelError(f"matches: the pattern: {error}") from None
    take(len(compiled.states))
    return compiled.is_in(text_of(text), take)


def _quantity(text: Any) -> Quantity:
    try:
        amount = parse_quantity(text_of(text))
    except ValueError as error:
        raise CelError(f"quantity: {error}") from None
    return Quantity(max(-_LARGEST, min(Fraction(ceil(amount * _STEP), _STEP), Fraction(_LARGEST))))


_IDENTIFIERS = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"(0|[1-9]\d{{0,9}})\.(0|[1-9]\d{{0,9}})\.(0|[1-9]\d{{0,9}})"
    rf"(?:-({_IDENTIFIERS}(?:\.{_IDENTIFIERS})*))?(?:\+[0-9A-Za-z.-]+)?",
    re.ASCII,
)


def version(text: Any) -> Version:
    """A semantic version; CelError if the text is none."""
    match = _SEMVER.fullmatch(text_of(text))
    if match is None:
        raise CelError(f"semver: {text!r:.40} is no version such as 1.2.3")
    major, minor, patch, before = match.groups()
    rank = (1,) if before is None else (0, *map(_identifier, before.split(".")))
    return Version(int(major), int(minor), int(patch), rank)


def _identifier(word: str) -> tuple[int, int, str]:
    """Numbers come first and count by their value, other words by their letters."""
    return (0, len(word), word) if word.isdigit() else (1, 0, word)


def _is(make: Callable[[Any], Any]) -> Callable[[Any], bool]:
    def run(text: Any) -> bool:
        try:
            make(text)
        except CelError:
            return False
        return True

    return run


def _amount(value: Any) -> Any:
    return numeric(value) if not isinstance(value, Quantity) else value.amount


def _compared(left: Any, right: Any) -> int:
    if type(left) is not type(right) or not isinstance(left, Quantity | Version):
        raise CelError(f"{type_of(left)} cannot be compared with {type_of(right)}")
    return int(left > right) - int(left < right)


def _to_int(value: Any) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?\d{1,20}", value, re.ASCII):
            raise CelError(f"int: {value!r:.40} is no number")
        return within(int(value))
    number = numeric(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise CelError("int: not a number")
    return within(int(number))


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if not is_int(value):
        raise CelError(f"string: {type_of(value)} is not supported")
    return str(value)


def _to_double(value: Any) -> float:
    try:
        return float(value) if isinstance(value, str) else float(numeric(value))
    except ValueError:
        raise CelError(f"double: {value!r:.40} is no number") from None


def _substring(text: Any, start: Any, end: Any = None) -> str:
    last = len(text_of(text)) if end is None else end
    if not is_int(start) or not is_int(last) or not 0 <= start <= last <= len(text):
        raise CelError("substring: outside of the text")
    return str(text[start:last])


def _value_of(value: Any) -> Any:
    if not present(value).present:
        raise CelError("the optional value is absent")
    return value.value


def _or(value: Any, other: Any) -> Optional:
    return present(value) if present(value).present else present(other)


def _whole_amount(value: Any) -> int:
    amount = _amount(value)
    if amount.denominator != 1:
        raise CelError("asInteger: not a whole number")
    return within(int(amount))


def _sign(value: Any) -> int:
    return int(_amount(value) > 0) - int(_amount(value) < 0)


def _parts(text: Any, part: Any) -> list[str]:
    return text_of(text).split(part) if text_of(part) else list(text_of(text))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "size": _size,
    "int": _to_int,
    "uint": _to_int,
    "double": _to_double,
    "string": _to_string,
    "bool": truth,
    "dyn": lambda value: value,
    "matches": matches,
    "quantity": _quantity,
    "isQuantity": _is(_quantity),
    "semver": version,
    "isSemver": _is(version),
    "sign": _sign,
}
METHODS: dict[str, Callable[..., Any]] = {
    "size": _size,
    "matches": matches,
    "contains": lambda text, part: text_of(part) in text_of(text),
    "startsWith": lambda text, part: text_of(text).startswith(text_of(part)),
    "endsWith": lambda text, part: text_of(text).endswith(text_of(part)),
    "lowerAscii": lambda text: text_of(text).translate(_LOWER),
    "upperAscii": lambda text: text_of(text).translate(_UPPER),
    "trim": lambda text: text_of(text).strip(),
    "indexOf": lambda text, part: text_of(text).find(text_of(part)),
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
    "major": lambda value: value.major if isinstance(value, Version) else text_of(value),
    "minor": lambda value: value.minor if isinstance(value, Version) else text_of(value),
    "patch": lambda value: value.patch if isinstance(value, Version) else text_of(value),
    "orValue": lambda value, other: value.value if present(value).present else other,
    "or": _or,
    "hasValue": lambda value: present(value).present,
    "value": _value_of,
}
