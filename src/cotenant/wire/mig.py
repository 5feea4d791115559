# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Plans of other MIG layouts, as the API takes and reports them."""

from typing import Annotated

import msgspec
from msgspec import Meta


class MigPlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """For which requests MIG layouts are planned, beside the jobs that wait."""

    want: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=40)], ...], Meta(max_length=100)] = ()
    """profiles such as `1g.10gb`, or amounts of memory such as `8GiB`"""
    evict: bool = False
    """running jobs may have to leave"""


class MigChange(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that the plan partitions otherwise."""

    gpu: str
    """UUID"""
    type: str
    now: tuple[str, ...]
    """profiles of its MIG instances; empty: it is not partitioned"""
    then: tuple[str, ...]
    serves: tuple[str, ...] = ()
    """jobs, or what `want` names, that would be placed there"""
    leave: tuple[str, ...] = ()
    """jobs that would have to leave first"""


class MigPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Other MIG layouts for what waits. Nothing is changed."""

    changes: tuple[MigChange, ...] = ()
    served: dict[str, str] = {}
    """what free instances serve as they are: the UUID of the GPU, by job"""
    unserved: dict[str, str] = {}
    """why no layout serves it, by job"""
    stranded: dict[str, str] = {}
    """jobs that must leave and could not run again in these layouts, each with a sentence"""


class MigApplied(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was carried out."""

    changes: tuple[MigChange, ...]
    left: tuple[str, ...] = ()
    """jobs that had to leave, and are queued again"""
