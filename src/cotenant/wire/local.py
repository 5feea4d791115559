# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of the one-machine daemon: version 1 of its API, and of the requests in its journal."""

import hashlib
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from cotenant.core.isolation import Rung
from cotenant.core.model import Demand, Job
from cotenant.core.units import (
    WHOLE_GPU,
    WHOLE_MEMORY,
    MiB,
    MilliCpu,
    MilliGpu,
    Percent,
    Seconds,
    parse_compute,
    parse_memory,
    parse_percent,
    parse_profile,
)
from cotenant.errors import InputError
from cotenant.wire.agent import Batch
from cotenant.wire.arrays import ARRAY_ID, ELEMENT_ID, INDEX, Array, check_array, filled, index_of, values_of
from cotenant.wire.codec import decode
from cotenant.wire.dependencies import parse_dependencies
from cotenant.wire.notices import MOST_NOTICES, When, parse_notice
from cotenant.wire.reservations import GpuReservation, Reserved

T = TypeVar("T")

VERSION = 1
MOST_BYTES = 1024 * 1024
"""of one request body"""
MOST_SHARED_BYTES = 32 * 1024 * 1024
"""of the variables that the jobs of a list share, counted once for each job, because each job stores them"""

AUTO = "auto"
"""memory as the profile of the workload says"""
BatchSize = Annotated[int, Meta(ge=1, le=1 << 24)]
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)")]
Word = Annotated[str, Meta(min_length=1, max_length=32_768)]
NoticeText = Annotated[str, Meta(min_length=1, max_length=2000)]
Workload = Annotated[str, Meta(min_length=1, max_length=200)]
WAITING_OR_ACTIVE = ("queued", "starting", "running")
ENDED = ("finished", "cancelled", "interrupted", "lost")
ENDINGS = ("done", "failed", "signal", "out-of-memory", "time-limit", "exec-failed")
"""how a finished job ended, in the words of `described_state` without their numbers"""
JOB_ID = re.compile(r"j-\d{1,18}", re.ASCII)
_EXACT_ENDING = re.compile(r"failed \(\d{1,3}\)|signal \d{1,3}", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNIT = re.compile(r"\d+(\.\d+)?\s*[MGT](i?B)?|\d+%", re.IGNORECASE)


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


class TerminalView(msgspec.Struct, frozen=True):
    """Where the terminal of a running job is reached, by processes of its owner."""

    socket: str
    attempt: int


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


class GrantView(msgspec.Struct, frozen=True, kw_only=True):
    """What a job requests of a GPU, what it may use at most, and what it is granted at present."""

    gpu: int
    memory_request_mib: int
    memory_limit_mib: int
    memory_granted_mib: int
    memory_used_mib: int
    compute_request_percent: float
    compute_limit_percent: float
    compute_granted_percent: float


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job and its present state."""

    id: str
    user: str = ""
    """who submitted it"""
    uid: int | None = None
    """number of that user; null: a cluster has none"""
    name: str
    named: bool = False
    """whether its owner chose the name; else it is called after its command"""
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
    """why it waits, or why it was placed where it is"""
    batch: int | None = None
    speed: float | None = None
    """throughput divided by its throughput alone; null: not known"""
    predicted: float | None = None
    """the speed that was predicted beside its neighbours; null: it has none"""
    slo_violations: int = 0
    """how often its steps took longer than its latency objective"""
    isolation: str | None = None
    """the rung of the isolation ladder that it gets; null: its GPUs have none"""
    memory_used_mib: int | None = None
    """summed over its GPUs, at the last measurement; null: not known"""
    cpus: float | None = None
    """that it requests of the machine; null: none"""
    host_memory_mib: int | None = None
    """memory of the machine that it requests; null: none"""
    utilisation: float | None = None
    """percent of its GPUs' time that it used, at the last measurement; null: not known"""
    grants: tuple[GrantView, ...] = ()
    """on each of its GPUs, if its limits are above its requests"""
    held: bool = False
    """whether it stays queued until it is released"""
    paused: bool = False
    """whether its processes are stopped until it is resumed; it keeps its slot"""
    array: str | None = None
    """the array that it is an element of"""
    index: int | None = None
    """its index in the array"""
    elements: dict[str, int] = {}
    """of an array: how many of its elements are in each state; those that are finished are `done` or `failed`"""
    idle_s: float | None = None
    """for how long it has not used its GPUs, if that is long enough to be reported"""
    request: JobRequest | None = None
    enforcement: tuple[str, ...] = ()
    faults: dict[str, int] = {}
    """how often each fault happened in the vGPU library"""
    drift: tuple[str, ...] = ()
    """GPUs whose driver reports a different memory use than the job's processes recorded"""
    tuning: tuple[dict[str, Any], ...] = ()


class UnmanagedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU that no job owns."""

    pid: int
    user: str
    program: str
    """its name, without arguments"""
    memory_mib: int | None = None
    utilisation: float | None = None


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU and its tenants."""

    index: int
    uuid: str
    type: str
    memory_mib: int
    free_memory_mib: int
    free_compute: int
    """thousandths of a whole GPU"""
    compute: int = 1000
    """thousandths of a whole GPU that it has in all: less if it is a MIG instance"""
    mig: str | None = None
    """profile, if it is a MIG instance"""
    card: str | None = None
    """UUID of the GPU that was partitioned, if it is a MIG instance"""
    used_mib: int | None = None
    utilisation: float | None = None
    healthy: bool = True
    fault: str | None = None
    """why it is not healthy"""
    cordoned: bool = False
    isolation: tuple[str, ...] = ()
    """the rungs of the isolation ladder that it has"""
    mps: bool = False
    """its tenants use it through MPS, and it takes no others"""
    only: str | None = None
    """the rung of its tenants, if it takes no other beside them"""
    tenants: tuple[str, ...] = ()
    reservations: tuple[GpuReservation, ...] = ()
    """that have not ended, the first to start first"""
    unmanaged: tuple[UnmanagedProcess, ...] = ()
    """processes that no job owns; their memory is not free for jobs"""
    temperature_celsius: float | None = None
    power_watts: float | None = None


class AccountView(msgspec.Struct, frozen=True, kw_only=True):
    """A user or a group: what it uses, has used, and may use at most. None: not limited, or not known."""

    account: str
    """`user`, or `group` and `group/user`"""
    weight: float
    gpus: float
    """GPUs in use; parts of GPUs count as parts"""
    memory_mib: int
    running: int
    queued: int
    fair_gpus: float | None = None
    """its fair share of the GPUs, if it runs or waits"""
    used_gpu_hours: float
    """with the decay of fair share"""
    week_gpu_hours: float
    """in the last seven days"""
    most_gpus: float | None = None
    most_memory_mib: int | None = None
    most_running: int | None = None
    most_queued: int | None = None
    most_week_gpu_hours: float | None = None
    cpus: float = 0.0
    """that running jobs have requested"""
    host_memory_mib: int = 0
    """the same, memory of the host"""
    most_cpus: float | None = None
    most_host_memory_mib: int | None = None


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a GPU is drained."""

    evict: bool = False
    """stop its tenants and queue them again; else they run to their end"""


class PruneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which folders of ended jobs are removed."""

    older_than_s: Annotated[float, Meta(ge=0, le=1e10)] | None = None
    """remove those of jobs that ended at least so many seconds ago"""
    keep_bytes: Annotated[int, Meta(ge=0, le=1 << 60)] | None = None
    """then remove the oldest, until all job folders use at most so many bytes"""
    dry_run: bool = False
    """remove nothing"""


KEEP_ALL = PruneRequest()


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


def demands_wanted(wanted: tuple[str, ...]) -> list[tuple[str, Demand]]:
    """The demands that `want` names, each with its name; equal ones are numbered."""
    found = []
    for number, text in enumerate(wanted, start=1):
        is_memory = _UNIT.fullmatch(text.strip()) is not None and not text.strip().endswith("%")
        if is_memory:
            demand = Demand(memory=_parsed(parse_memory, text, "--want"), compute=MilliGpu(0))
        else:
            demand = Demand(mig=_parsed(parse_profile, text, "--want"))
        name = text if wanted.count(text) == 1 else f"{text} ({number})"
        found.append((name, demand))
    return found


class WebLink(msgspec.Struct, frozen=True, kw_only=True):
    """An address of the pages that signs a browser in, once and soon."""

    url: str
    act: bool
    """whether the session can cancel and hold jobs and cordon GPUs"""


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


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not carried out."""

    error: str
    reasons: dict[str, str] = {}
    suggestions: tuple[str, ...] = ()
    """with what it would be carried out, the smallest change first"""
    item: int | None = None
    """which of several requests it is about, from 0"""


def described_state(job: JobView) -> str:
    """The state, `paused` if its processes are stopped; for a finished job `done`, `failed (exit code)`, `signal N` or
    another outcome; for an array how many elements are in which state."""
    if job.elements:
        return ", ".join(f"{count} {state}" for state, count in job.elements.items())
    if job.state != "finished" or job.outcome is None:
        return "paused" if job.paused else job.state
    if job.outcome == "exited":
        return "done" if job.code == 0 else f"failed ({job.code})"
    return f"signal {job.signal}" if job.outcome == "signalled" else job.outcome


def decode_states(text: str) -> tuple[str, ...]:
    """States and endings in a list such as `queued, failed, signal 9`; InputError names one that does not exist."""
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    known = (*WAITING_OR_ACTIVE, *ENDED, *ENDINGS)
    for word in words:
        if word not in known and not _EXACT_ENDING.fullmatch(word):
            raise InputError(f"--state {word[:40]}: unknown state; expected some of {', '.join(known)}")
    return words


def decode_request(content: bytes) -> JobRequest:
    """A request from outside, checked beyond its types; InputError says what is expected instead."""
    return checked_request(decode(content, JobRequest, "a job"))


def decode_list(content: bytes) -> list[JobRequest]:
    """Several requests from outside, each with all of its variables; `checked_request` checks them beyond their
    types."""
    found = decode(content, JobList, "a list of jobs")
    size = len(found.jobs) * len(msgspec.json.encode(found.env))
    if size > MOST_SHARED_BYTES:
        raise InputError(
            f"the variables of {len(found.jobs)} jobs would be {size >> 20} MiB, and may be "
            f"{MOST_SHARED_BYTES >> 20} MiB: submit fewer jobs at a time, or with fewer variables"
        )
    return [msgspec.structs.replace(one, env={**found.env, **one.env}) for one in found.jobs]


def change_text(change: JobChange) -> str:
    """The new values, as options."""
    names = ("priority", "memory", "compute", "name")
    texts = [f"--{name} {value}" for name in names if (value := getattr(change, name)) is not None]
    return " ".join([*texts, *([] if change.time_s is None else [f"--time {change.time_s:g}s"])])


def changed_by(request: JobRequest, change: JobChange) -> JobRequest:
    """The request with other values; InputError if they contradict it."""
    values = {name: value for name in change.__struct_fields__ if (value := getattr(change, name)) is not None}
    return checked_request(msgspec.structs.replace(request, **values))


def checked_request(request: JobRequest) -> JobRequest:
    """The request itself; InputError says what is wrong with it."""
    demand_of(request)
    if request.name is not None and any(form.fullmatch(request.name) for form in (JOB_ID, ARRAY_ID, ELEMENT_ID)):
        raise InputError(f"--name {request.name}: this is the form of a job ID; choose another name")
    for notice in map(parse_notice, request.notify):
        if request.array is not None and notice.when == {When.START}:
            raise InputError("--notify start: notices about an array are sent at its end; use end, ok or failed")
    for name, value in request.env.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in value:
            raise InputError(f"environment variable {name!r}: expected letters, digits and _ in its name")
    if request.terminal is not None and request.array is not None:
        raise InputError("--interactive: an array has no terminal; submit one job")
    if any("\0" in word for word in (*request.command, request.cwd)):
        raise InputError("the command contains a NUL character")
    return request


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


def demand_of(request: JobRequest) -> Demand:
    """The demand of a request; InputError if the request contradicts itself."""
    if request.gpus == 0 and (request.memory or request.compute or request.mig):
        raise InputError("--gpus 0: memory, compute and MIG instances need at least 1 GPU")
    parse_dependencies(request.after)
    if request.array is not None:
        check_array(request.array)
    if request.warn_s is not None and (request.time_s is None or request.warn_s >= request.time_s):
        raise InputError("--warn: expected a time before the end of --time, which is needed too")
    memory, memory_limit = _memories(request.memory) if request.gpus else (Amount(), None)
    compute, compute_limit = _computes(request)
    if request.batch_range is not None:
        low, high = request.batch_range
        if not 1 <= low <= high:
            raise InputError(f"--batch-range {low}-{high}: expected LOW-HIGH with 1 <= LOW <= HIGH")
        if request.batch is not None and not low <= request.batch <= high:
            raise InputError(f"--batch {request.batch} is outside --batch-range {low}-{high}")
    return Demand(
        gpus=request.gpus,
        memory=memory.memory,
        memory_percent=memory.percent,
        compute=compute if request.gpus else MilliGpu(0),
        memory_limit=None if memory_limit is None or memory_limit.percent is not None else memory_limit.memory,
        memory_limit_percent=None if memory_limit is None else memory_limit.percent,
        compute_limit=compute_limit,
        mig=None if request.mig is None else _parsed(parse_profile, request.mig, "--mig"),
        cpu=MilliCpu(0 if request.cpus is None else round(1000 * request.cpus)),
        host_memory=MiB(0) if request.host_memory is None else host_memory_of(request.host_memory),
        exclusive=request.exclusive,
        use_types=request.types,
        priority=request.priority,
        workload=request.workload,
    )


def job_of(job_id: str, request: JobRequest, submitted: float) -> Job:
    """The request as the core sees it. A job runs no longer than its time limit, so that limit is its estimate if it
    has no other."""
    estimate = request.time_s if request.estimate_s is None else request.estimate_s
    return Job(
        id=job_id,
        demand=demand_of(request),
        submitted=Seconds(submitted),
        estimate=None if estimate is None else Seconds(estimate),
        limit=None if request.time_s is None else Seconds(request.time_s + request.grace_s),
        reservation=request.reservation,
    )


class Amount(NamedTuple):
    """Memory of a GPU."""

    memory: MiB = MiB(0)
    percent: Percent | None = None
    """instead of `memory`"""


def _memories(text: str | None) -> tuple[Amount, Amount | None]:
    """The request, and the limit if there is one above it."""
    if text is None or text == AUTO:
        return Amount(percent=WHOLE_MEMORY), None
    requested, colon, most = text.partition(":")
    request = _memory(requested)
    if not colon:
        return request, None
    limit = _memory(most)
    if (request.percent is None) != (limit.percent is None):
        raise InputError(f"--memory {text}: give request and limit in one unit, for example 2GiB:6GiB or 20%:60%")
    if (request.memory, request.percent or 0) > (limit.memory, limit.percent or 0):
        raise InputError(f"--memory {text}: the request is above the limit; write the smaller amount first")
    return request, None if limit == request else limit


def _computes(request: JobRequest) -> tuple[MilliGpu, MilliGpu | None]:
    """The request, and the limit if there is one above it."""
    if request.compute is None:
        return MilliGpu(0) if request.memory else WHOLE_GPU, None
    requested, colon, most = request.compute.partition(":")
    compute = _compute(requested, request.compute)
    if not colon:
        return compute, None
    limit = _compute(most, request.compute)
    if compute == 0:
        raise InputError(f"--compute {request.compute}: a request of 0 guarantees nothing; request at least 1%")
    if compute > limit:
        raise InputError(f"--compute {request.compute}: the request is above the limit; write the smaller share first")
    if request.latency_s is not None:
        raise InputError(f"--compute {request.compute}: --latency chooses the share; leave out the limit")
    return compute, limit if limit > compute else None


def _compute(text: str, option: str) -> MilliGpu:
    compute = _parsed(parse_compute, text, "--compute")
    if compute > WHOLE_GPU:
        raise InputError(f"--compute {option}: more than a whole GPU; request several with --gpus")
    return compute


def _memory(text: str) -> Amount:
    if not _UNIT.fullmatch(text.strip()):
        raise InputError(f"--memory {text}: give a unit, for example 4GiB, 4096MiB or 50%")
    amount, percent = MiB(0), None
    if text.strip().endswith("%"):
        percent = _parsed(parse_percent, text, "--memory")
    else:
        amount = _parsed(parse_memory, text, "--memory")
    if not (amount or percent):
        raise InputError(f"--memory {text}: less than 1 MiB or 1%; leave the option out to request whole GPUs")
    return Amount(amount, percent)


def host_memory_of(text: str) -> MiB:
    """Memory of the machine; InputError if it is none."""
    if not _UNIT.fullmatch(text.strip()) or text.strip().endswith("%"):
        raise InputError(f"--host-memory {text[:40]}: give a unit, for example 16GiB or 16384MiB")
    amount = _parsed(parse_memory, text, "--host-memory")
    if not amount:
        raise InputError(f"--host-memory {text}: less than 1 MiB; leave the option out if it does not matter")
    return amount


def _parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None
