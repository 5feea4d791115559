# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`value`: dataclasses that are frozen for the type checker, and quick to build."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(*, order: bool = False, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """A dataclass with slots whose fields must not be assigned, for values that are built at each change of a cluster.

    mypy refuses an assignment. Nothing refuses it at run time, because a dataclass that does takes three times as long
    to build. Without `eq`, a value is equal only to itself.
    """

    def made(cls: type[T]) -> type[T]:
        return dataclass(slots=True, order=order, eq=eq, kw_only=kw_only, unsafe_hash=eq)(cls)

    return made
