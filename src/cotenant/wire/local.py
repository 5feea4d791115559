# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the one-machine daemon is asked and what it answers: version 1 of its API, and of the journal's requests."""

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from cotenant.core.model import Demand, Job
from cotenant.core.units import MiB, MilliGpu, Percent, Seconds, parse_compute, parse_memory, parse_percent
from cotenant.errors import InputError
from cotenant.wire.agent import Batch
from cotenant.wire.codec import decode

T = TypeVar("T")

VERSION = 1
MOST_BYTES = 1024 * 1024
"""of one request"""

BatchSize = Annotated[int, Meta(ge=1, le=1 << 24)]
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)")]
Word = Annotated[str, Meta(min_length=1, max_length=32_768)]
Workload = Annotated[str, Meta(min_length=1, max_length=200)]
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNIT = re.compile(r"\d+(\.\d+)?\s*[MGT](i?B)?|\d+%", re.IGNORECASE)


class JobRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A job as its owner asked for it."""

    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=4096)]
    cwd: Annotated[str, Meta(min_length=1, max_length=4096, pattern="^/")]
    env: dict[str, str] = {}
    name: Name | None = None
    gpus: Annotated[int, Meta(ge=0, le=1024)] = 1
    memory: str | None = None
    """on each GPU: `4GiB`, or `50%` of the card"""
    compute: str | None = None
    """on each GPU: `30%`; none: a whole GPU without `memory`, else no claim on compute"""
    types: tuple[Name, ...] = ()
    exclusive: bool = False
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    batch: Batch | None = None
    batch_range: tuple[BatchSize, BatchSize] | None = None
    tune: bool = True
    """whether its batch size may be changed"""
    floor: Annotated[float, Meta(ge=0, le=1)] | None = None
    """the share of its speed alone below which tuning may not push it"""
    retries: Annotated[int, Meta(ge=0, le=100)] = 0
    grace_s: Annotated[float, Meta(ge=0, le=86_400)] = 10.0
    workload: Workload | None = None
    estimate_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    latency_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """what a step may take, from one to the next; needs a profile"""
    revert: bool = True
    """whether it may be stopped and queued again soon after it came, where it turns out to do harm"""


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the daemon knows it."""

    id: str
    name: str
    state: str
    submitted: float
    started: float | None = None
    ended: float | None = None
    gpus: tuple[int, ...] = ()
    outcome: str | None = None
    code: int | None = None
    signal: int | None = None
    error: str | None = None
    attempts: int = 0
    reason: str | None = None
    """why it waits, or why it is where it is"""
    batch: int | None = None
    speed: float | None = None
    """of its speed alone, where both are known"""
    predicted: float | None = None
    """what that is expected to be beside its neighbours; None: it has none"""
    slo_violations: int = 0
    """how often its steps took longer than it was promised"""
    memory_used_mib: int | None = None
    """on all its GPUs together, at the last look; None: not known"""
    utilisation: float | None = None
    """percent of its GPUs that it kept busy, at the last look; None: not known"""
    request: JobRequest | None = None
    enforcement: tuple[str, ...] = ()
    faults: dict[str, int] = {}
    """what did not work as meant in the vGPU library, and how often"""
    drift: tuple[str, ...] = ()
    """GPUs of which the driver says something else than the job's own accounts"""
    tuning: tuple[dict[str, Any], ...] = ()


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU and who is on it."""

    index: int
    uuid: str
    type: str
    memory_mib: int
    free_memory_mib: int
    free_compute: int
    used_mib: int | None = None
    utilisation: float | None = None
    healthy: bool = True
    fault: str | None = None
    """why it is not healthy"""
    cordoned: bool = False
    tenants: tuple[str, ...] = ()


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a GPU is emptied."""

    evict: bool = False
    """stop the jobs on it and queue them again; else they run to their end"""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not carried out."""

    error: str
    reasons: dict[str, str] = {}


def decode_request(content: bytes) -> JobRequest:
    """A request from outside, checked beyond its types; InputError says what to write instead."""
    request = decode(content, JobRequest, "a job")
    demand_of(request)
    for name, value in request.env.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in value:
            raise InputError(f"environment variable {name!r}: expected letters, digits and _ in its name")
    if any("\0" in word for word in (*request.command, request.cwd)):
        raise InputError("the command contains a NUL character")
    return request


def demand_of(request: JobRequest) -> Demand:
    """What the request asks of GPUs; InputError where it makes no sense."""
    if request.gpus == 0 and (request.memory or request.compute):
        raise InputError("memory or compute on no GPU: ask for at least one with --gpus")
    memory, percent = _memory(request.memory)
    compute = MilliGpu(0) if request.memory and not request.compute else MilliGpu(1000)
    if request.compute is not None:
        compute = _parsed(parse_compute, request.compute, "--compute")
        if compute > 1000:
            raise InputError(f"--compute {request.compute}: more than a whole GPU; ask for several with --gpus")
    if request.batch_range is not None:
        low, high = request.batch_range
        if not 1 <= low <= high:
            raise InputError(f"--batch-range {low}-{high}: expected a rising range from 1 on")
        if request.batch is not None and not low <= request.batch <= high:
            raise InputError(f"--batch {request.batch} is outside --batch-range {low}-{high}")
    return Demand(
        gpus=request.gpus,
        memory=memory,
        memory_percent=percent,
        compute=compute if request.gpus else MilliGpu(0),
        exclusive=request.exclusive,
        use_types=request.types,
        priority=request.priority,
        workload=request.workload,
    )


def job_of(job_id: str, request: JobRequest, submitted: float) -> Job:
    """The request as the core sees it."""
    return Job(
        id=job_id,
        demand=demand_of(request),
        submitted=Seconds(submitted),
        estimate=None if request.estimate_s is None else Seconds(request.estimate_s),
    )


def _memory(text: str | None) -> tuple[MiB, Percent | None]:
    if text is None:
        return MiB(0), None
    if not _UNIT.fullmatch(text.strip()):
        raise InputError(f"--memory {text}: give a unit, for example 4GiB, 4096MiB or 50%")
    amount, percent = MiB(0), None
    if text.strip().endswith("%"):
        percent = _parsed(parse_percent, text, "--memory")
    else:
        amount = _parsed(parse_memory, text, "--memory")
    if not (amount or percent):
        raise InputError(f"--memory {text}: less than 1 MiB or 1%; leave it out to ask for no memory of its own")
    return amount, percent


def _parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None
