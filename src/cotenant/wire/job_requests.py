# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job as its owner requests it: in the API of the daemon, and in its journal."""

import hashlib
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.core.isolation import Rung
from cotenant.wire.agent import Batch
from cotenant.wire.arrays import INDEX, Array, filled, index_of, values_of
from cotenant.wire.notices import MOST_NOTICES
from cotenant.wire.reservations import Reserved

AUTO = "auto"
"""memory as the profile of the workload says"""
BatchSize = Annotated[int, Meta(ge=1, le=1 << 24)]
LONGEST_NAME = 100
Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)")]
Word = Annotated[str, Meta(min_length=1, max_length=32_768)]
NoticeText = Annotated[str, Meta(min_length=1, max_length=2000)]
Workload = Annotated[str, Meta(min_length=1, max_length=200)]
JOB_ID = re.compile(r"j-\d{1,18}", re.ASCII)


class JobRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A job as its owner requested it."""

    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=4096)]
    cwd: Annotated[str, Meta(min_length=1, max_length=4096, pattern="^/")]
    env: dict[str, str] = {}
    name: Name | None = None
    gpus: Annotated[int, Meta(ge=0, le=1024)] = 1
    memory: str | None = None
    """on each GPU: `4GiB`, or `50%` of the GPU's memory; `2GiB:6GiB` is a request and a limit; `auto`: the peak of its
    profile and a margin; null: all of it"""
    memory_why: Annotated[str, Meta(max_length=1000)] | None = None
    """how the daemon chose `memory`; what a client sends here is ignored"""
    retry_oom: bool = False
    """whether it is queued again with more memory after it ran out of it, as long as a GPU has more"""
    compute: str | None = None
    """on each GPU: `30%`, or `20%:60%` as a request and a limit; null: a whole GPU if `memory` is null too, else no
    compute share"""
    mig: str | None = None
    """profile of the MIG instances that it needs, such as `1g.10gb`; `memory` and `compute` are then parts of each"""
    cpus: Annotated[float, Meta(ge=0.01, le=100_000)] | None = None
    """of the machine, which its control group limits it to; null: not counted and not limited"""
    host_memory: str | None = None
    """of the machine, such as `16GiB`, as `cpus`"""
    types: tuple[Name, ...] = ()
    exclusive: bool = False
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    batch: Batch | None = None
    batch_range: tuple[BatchSize, BatchSize] | None = None
    tune: bool = True
    """whether its batch size may be changed"""
    floor: Annotated[float, Meta(ge=0, le=1)] | None = None
    """the speed below which tuning must not push it"""
    retries: Annotated[int, Meta(ge=0, le=100)] = 0
    grace_s: Annotated[float, Meta(ge=0, le=86_400)] = 10.0
    time_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """the longest that one run may take: then it gets SIGTERM, and SIGKILL after `grace_s`"""
    warn_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """before the end of `time_s`, when its first process gets SIGUSR1"""
    after: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=130)], ...], Meta(max_length=1000)] = ()
    """jobs that it waits for, each by ID or name and how it must end: `j-000001:ok`, `:any` or `:failed`"""
    reservation: Reserved | None = None
    """the reservation in which it runs: it starts when that starts, and on its GPUs"""
    notify: Annotated[tuple[NoticeText, ...], Meta(max_length=MOST_NOTICES)] = ()
    """notices to send, each as `failed:mail`, `end:https://…` or `start,end:COMMAND`"""
    array: Array | None = None
    """its elements, if the request is for many jobs that differ only in an index or in values"""
    container: Annotated[str, Meta(max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$(?!\n)")] | None = None
    """image in which the command runs, by podman or docker"""
    volumes: Annotated[tuple[Annotated[str, Meta(max_length=8192)], ...], Meta(max_length=100)] = ()
    """folders that the container has besides `cwd`: `/data`, `/data:/inside` or `/data:/inside:ro`"""
    terminal: "TerminalSize | None" = None
    """the first size of its terminal; null: it has none, and its standard input is empty"""
    workload: Workload | None = None
    estimate_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    latency_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """latency objective in seconds from one step to the next; needs a profile"""
    isolation: Rung | None = None
    """what holds it to its limits; null: as the settings of the daemon say"""
    revert: bool = True
    """whether it may be stopped and queued again soon after its start if it slows its neighbours down too much"""


class TerminalSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of a terminal in characters."""

    rows: Annotated[int, Meta(ge=1, le=10_000)] = 24
    columns: Annotated[int, Meta(ge=1, le=10_000)] = 80


class JobList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Jobs of which all are accepted or none."""

    jobs: Annotated[tuple[JobRequest, ...], Meta(min_length=1, max_length=1000)]
    env: dict[str, str] = {}
    """variables of each job that does not set them itself"""


class JobChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Other values for a job that waits or runs, or for a copy of a job; null: as it was."""

    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    memory: str | None = None
    compute: str | None = None
    time_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    name: Name | None = None


def workload_name(request: JobRequest) -> str:
    """The workload that the owner named, else one for each distinct command."""
    return request.workload or f"command-{command_digest(request)[:12]}"


def command_digest(request: JobRequest) -> str:
    return hashlib.sha256("\0".join(request.command).encode()).hexdigest()


def element_of(request: JobRequest, item: int) -> JobRequest:
    """The request of one element of an array: each word of the command with its index and values, which are also
    variables of its environment. All elements are one workload."""
    array = request.array
    if array is None:
        return request
    index, values = str(index_of(array, item)), values_of(array, item)
    words = {"": index, **values}
    return msgspec.structs.replace(
        request,
        command=tuple(filled(word, words) for word in request.command),
        env={**request.env, **values, INDEX: index},
        workload=workload_name(request),
        array=None,
    )
