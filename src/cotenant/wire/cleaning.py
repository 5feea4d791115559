# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The removal of ended jobs from the list of jobs, as the API takes and reports it."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.wire.reservations import UserOrGroup

MOST_NAMED = 1000


class CleanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Which ended jobs are removed: those that are named, or else those that fulfil all conditions."""

    jobs: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=MOST_NAMED)] = ()
    """by ID or name; instead of all following conditions"""
    older_than_s: Annotated[float, Meta(ge=0, le=1e10)] | None = None
    """that ended at least so many seconds ago"""
    state: Annotated[str, Meta(max_length=1000)] = ""
    """that ended in one of these ways, such as `done,cancelled`"""
    user: UserOrGroup | None = None
    """of this user; null: of the caller, unless `all_users`"""
    all_users: bool = False
    dry_run: bool = False
    """remove nothing"""


class CleanedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job or an array that was removed."""

    id: str
    user: str
    jobs: int
    """1, or the number of elements of an array"""
    ended: float
    bytes: int
    """that its files used on the disk"""


class KeptJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job or an array that was selected, and is still there."""

    id: str
    why: str


class Cleaned(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed, or would be with `dry_run`."""

    jobs: tuple[CleanedJob, ...] = ()
    kept: tuple[KeptJob, ...] = ()
    dry_run: bool = False
