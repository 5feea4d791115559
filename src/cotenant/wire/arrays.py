# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of jobs: one request for many elements, each with an index or with a combination of values."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.errors import InputError

MOST_ELEMENTS = 10_000
LARGEST_INDEX = 10**9
INDEX = "COTENANT_ARRAY_INDEX"
ARRAY_ID = re.compile(r"a-\d{1,18}", re.ASCII)
ELEMENT_ID = re.compile(r"(a-\d{1,18})_(\d{1,10})", re.ASCII)
"""an element of an array, by its index"""
_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
_HOLE = re.compile(r"\{([A-Za-z0-9_]*)\}", re.ASCII)

Value = Annotated[str, Meta(max_length=1000)]


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The elements of an array: indexes, or every combination of the values of a grid."""

    indexes: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    """such as `0-31`, `1,4-8` or `0-100:10`"""
    grid: Annotated[dict[str, Annotated[tuple[Value, ...], Meta(min_length=1)]], Meta(max_length=100)] = {}
    """values by the name of their variable; the last name changes fastest"""
    at_most: Annotated[int, Meta(ge=1, le=MOST_ELEMENTS)] | None = None
    """elements that hold GPUs at a time"""


def check_array(array: Array) -> None:
    """InputError if an array has no elements or too many, or a name that cannot be a variable."""
    if (array.indexes is None) == (not array.grid):
        raise InputError("an array needs either indexes (--array 0-31) or values (--grid lr=0.1,0.01)")
    for name in array.grid:
        if not _VARIABLE.fullmatch(name) or name.startswith("COTENANT_"):
            raise InputError(f"--grid {name[:40]}: expected a name of letters, digits and _, without COTENANT_")
    size_of(array)


def size_of(array: Array) -> int:
    """The number of elements."""
    if array.indexes is not None:
        return len(_indexes(array.indexes))
    size = 1
    for values in array.grid.values():
        size *= len(values)
    if size > MOST_ELEMENTS:
        raise InputError(f"--grid: has {size:,} combinations; an array has at most {MOST_ELEMENTS:,} elements")
    return size


def index_of(array: Array, item: int) -> int:
    """The index of an element; those of a grid are numbered from 0."""
    return item if array.indexes is None else _indexes(array.indexes)[item]


def item_of(array: Array, index: int) -> int | None:
    """The element with this index; None: there is none."""
    if array.indexes is None:
        return index if 0 <= index < size_of(array) else None
    found = _indexes(array.indexes)
    return found.index(index) if index in found else None


def values_of(array: Array, item: int) -> dict[str, str]:
    """The values of an element by the names of a grid."""
    found, left = {}, item
    for name, values in reversed(array.grid.items()):
        left, chosen = divmod(left, len(values))
        found[name] = values[chosen]
    return dict(reversed(found.items()))


def filled(word: str, values: Mapping[str, str]) -> str:
    """A word of a command with `{}` and `{name}` replaced; braces with any other text stay as they are."""
    return _HOLE.sub(lambda hole: values.get(hole[1], hole[0]), word)


def parse_bound(text: str) -> tuple[str, int | None]:
    """Splits `0-31%4` into the indexes and the bound."""
    indexes, percent, bound = text.strip().partition("%")
    if not percent:
        return indexes, None
    if not bound.isascii() or not bound.isdigit() or not 1 <= int(bound[:6]) <= MOST_ELEMENTS:
        raise InputError(f"--array {text[:40]}: expected a number from 1 to {MOST_ELEMENTS:,} after %")
    return indexes, int(bound)


def parse_array(text: str | None, grid: tuple[str, ...] = ()) -> Array | None:
    """The array of `--array 0-31%4` and `--grid lr=0.1,0.01`; a number alone counts from 0. None: no array."""
    indexes, bound = parse_bound(text) if text is not None else ("", None)
    if indexes.isascii() and indexes.isdigit() and len(indexes) < 10:
        indexes = f"0-{int(indexes) - 1}" if int(indexes) else "none"
    if not indexes and not grid:
        if text is not None:
            raise InputError(f"--array {text[:40]}: expected indexes such as 0-31, or a number of elements")
        return None
    array = Array(indexes=indexes or None, grid=dict(map(_values, grid)), at_most=bound)
    check_array(array)
    return array


def _values(text: str) -> tuple[str, tuple[str, ...]]:
    """Converts `lr=0.1,0.01` or `seed=1-3`."""
    name, equals, values = text.partition("=")
    if not equals or not values or not _VARIABLE.fullmatch(name):
        raise InputError(f"--grid {text[:40]}: expected a name and values, for example lr=0.1,0.01 or seed=1-3")
    found: list[str] = []
    for value in values.split(","):
        one = _RANGE.fullmatch(value)
        found += map(str, _indexes(value)) if one is not None and one[2] is not None else [value]
    return name, tuple(found)


@lru_cache(maxsize=64)
def _indexes(text: str) -> tuple[int, ...]:
    """The indexes in a list of ranges; they are counted before any list of them is made."""
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        low, high, step = (int(one) if one else None for one in match.groups()) if match else (None, None, None)
        if low is None or (high is not None and high < low) or step == 0 or max(low, high or 0) > LARGEST_INDEX:
            raise InputError(
                f"--array {text[:40]}: expected indexes such as 0-31, 1,4-8 or 0-100:10, up to {LARGEST_INDEX:,}"
            )
        ranges.append(range(low, (low if high is None else high) + 1, step or 1))
    if (count := sum(map(len, ranges))) > MOST_ELEMENTS:
        raise InputError(f"--array {text[:40]}: has {count:,} elements; an array has at most {MOST_ELEMENTS:,}")
    return tuple(sorted({index for one in ranges for index in one}))
