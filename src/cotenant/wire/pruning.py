# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The removal of the folders of ended jobs, as the API takes and reports it."""

from typing import Annotated

import msgspec
from msgspec import Meta


class PruneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which folders of ended jobs are removed."""

    older_than_s: Annotated[float, Meta(ge=0, le=1e10)] | None = None
    """remove those of jobs that ended at least so many seconds ago"""
    keep_bytes: Annotated[int, Meta(ge=0, le=1 << 60)] | None = None
    """then remove the oldest, until all job folders use at most so many bytes"""
    dry_run: bool = False
    """remove nothing"""


KEEP_ALL = PruneRequest()


class PrunedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose folder was removed."""

    id: str
    ended: float
    bytes: int
    """that its folder used on the disk"""


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed, or would be with `dry_run`."""

    jobs: tuple[PrunedJob, ...] = ()
    kept_bytes: int
    """that the remaining folders use, those of running jobs included"""
    dry_run: bool = False
