# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reservations of GPUs on one machine, as its API takes and shows them."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

RESERVATION_ID = re.compile(r"r-\d{1,18}", re.ASCII)
LONGEST_S = 366 * 86_400.0
Reserved = Annotated[str, Meta(min_length=3, max_length=20, pattern=r"^r-\d{1,18}$(?!\n)")]
UserOrGroup = Annotated[str, Meta(min_length=1, max_length=256)]


class ReservationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """GPUs that shall belong to a user or a group for a while."""

    start: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    """in seconds since 1970; null: now"""
    length_s: Annotated[float, Meta(ge=0, le=LONGEST_S)]
    gpus: Annotated[int, Meta(ge=1, le=1024)] = 1
    """how many; the daemon chooses those that are free by then"""
    on: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=100)], ...], Meta(max_length=1024)] = ()
    """these GPUs, by index or UUID, instead of a number"""
    user: UserOrGroup | None = None
    """for whom; null: for the caller, unless `group` is given"""
    group: UserOrGroup | None = None
    evict: bool = False
    """whether jobs of others that still run at the start are stopped and queued again; only for administrators"""


class ReservationView(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation."""

    id: str
    owner: str
    """who may cancel it, besides administrators"""
    user: str | None = None
    """for whom it is; null: for `group`"""
    group: str | None = None
    gpus: tuple[int, ...]
    """indices; GPUs that were removed since are left out"""
    start: float
    end: float
    state: str
    """`pending` or `active`, or `cancelled` in the answer to its cancellation"""
    evict: bool = False
    notes: tuple[str, ...] = ()
    """what should be known about its start"""


class GpuReservation(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation as a row of GPUs shows it."""

    id: str
    whom: str
    """a user, or `group NAME`"""
    start: float
    end: float
