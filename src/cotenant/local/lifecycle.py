# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The states of a job, and the events that move it from one to another.

Every change of a job's state is computed here by `step`, a pure function; the journal stores the result and refuses a
change that `TRANSITIONS` does not list. docs/explanation/job-states.md draws the states.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypedDict, assert_never

import msgspec

from cotenant.core.model import Gpus, Job, Placement
from cotenant.core.units import MilliGpu
from cotenant.errors import CotenantError, InputError
from cotenant.local.owners import Owner
from cotenant.local.run_files import Exit
from cotenant.wire.arrays import Array
from cotenant.wire.job_demands import demand_of
from cotenant.wire.job_requests import JobRequest, element_of


class JobState(StrEnum):
    """The state of a job. The values are stored in the journal and sent by the API."""

    QUEUED = "queued"
    """accepted; waits for a slot"""
    STARTING = "starting"
    """holds a slot; its supervisor may not run yet"""
    RUNNING = "running"
    """its supervisor runs"""
    FINISHED = "finished"
    """ended by itself, or was killed for exceeding a limit"""
    CANCELLED = "cancelled"
    """ended at its owner's request"""
    INTERRUPTED = "interrupted"
    """ended because the machine went down or the supervisor failed"""
    LOST = "lost"
    """its supervisor disappeared without an exit record"""


class Stop(StrEnum):
    """Why an active job was asked to end. The values are stored in the journal."""

    CANCEL = "cancel"
    """its owner cancelled it"""
    EVICT = "evict"
    """its GPU is drained, or another job needs the memory that it uses above its request; the job is queued again"""
    REVERT = "revert"
    """it slows its neighbours down more than the policy allows; the job is queued again"""


STATES = tuple(JobState)
ACTIVE = (JobState.STARTING, JobState.RUNNING)
"""states in which a job holds a slot"""
ENDED = tuple(state for state in STATES if state not in (JobState.QUEUED, *ACTIVE))

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.CANCELLED}),
    # An active job stays in its state when it is asked to end: only the column `stop` changes.
    JobState.STARTING: frozenset({*ACTIVE, JobState.QUEUED, *ENDED}),
    JobState.RUNNING: frozenset({JobState.RUNNING, JobState.QUEUED, *ENDED}),
    **dict.fromkeys(ENDED, frozenset({JobState.QUEUED})),
}
"""the states that can follow each state"""


class WrongStateError(CotenantError):
    """A job is not in a state that a change can start from."""


class JobRecord(NamedTuple):
    """A job as the journal stores it: its state, and the columns that change together with the state."""

    id: str
    state: JobState
    submitted: float
    started: float | None
    ended: float | None
    slot: str | None
    outcome: str | None
    code: int | None
    signal: int | None
    error: str | None
    attempts: int
    reason: str | None
    forgiven: int
    """attempts that do not count against its retries: it was evicted or reverted, or another run was requested"""
    stop: str | None
    """why it was asked to end, a value of `Stop`"""
    uid: int
    gid: int
    user: str
    group: str
    array: int | None
    """number of the array that it is an element of"""
    item: int | None
    """its position in the array"""
    request: bytes
    """what was requested; of an element, the request of its whole array"""

    @property
    def owner(self) -> Owner:
        """The user who submitted it."""
        return Owner(self.uid, self.gid, self.user, self.group)


class Columns(TypedDict, total=False):
    """The columns that may change together with a job's state."""

    started: float | None
    ended: float | None
    slot: str | None
    outcome: str | None
    code: int | None
    signal: int | None
    error: str | None
    attempts: int
    reason: str | None
    forgiven: int
    stop: Stop | None
    request: bytes


class MoreMemory(NamedTuple):
    """What a job that ran out of memory requests in its next run, and why."""

    memory: str | None
    """None: as before"""
    why: str
    host_memory: str | None = None
    """None: as before"""


# Events


@dataclass(frozen=True, slots=True)
class Placed:
    """The scheduler chose a slot for a queued job."""

    placement: Placement
    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """The supervisor of a starting job runs."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A job is to end."""

    stop: Stop
    why: str = ""
    by_daemon: bool = False
    """whether the daemon ends the job, and not its owner, who would not know why"""


@dataclass(frozen=True, slots=True)
class Exited:
    """A run ended and left an exit record."""

    exit: Exit
    more: MoreMemory | None = None
    """with what the job is queued again if it ran out of memory"""


@dataclass(frozen=True, slots=True)
class Disappeared:
    """A run ended without an exit record: its supervisor was killed, or the machine was restarted."""

    rebooted: bool


@dataclass(frozen=True, slots=True)
class RetryRequested:
    """A job that ended is to run once more."""


@dataclass(frozen=True, slots=True)
class Unsatisfiable:
    """A queued job waits for another one that ended in the wrong way."""

    why: str


LifecycleEvent: TypeAlias = Placed | Started | StopRequested | Exited | Disappeared | RetryRequested | Unsatisfiable


class Change(NamedTuple):
    """The result of an event: the next state, the columns that change with it, and what is recorded about it."""

    state: JobState
    columns: Columns
    kind: str = ""
    """of the recorded event; empty: nothing is recorded"""
    text: str = ""


def step(job: JobRecord, event: LifecycleEvent, now: float) -> Change:
    """The change that an event causes in a job; WrongStateError if the event cannot happen in the job's state."""
    change = _change(job, event, now)
    if change is None:
        raise WrongStateError(f"{job.id} is {job.state}; {type(event).__name__} cannot happen in that state")
    return change


def _change(job: JobRecord, event: LifecycleEvent, now: float) -> Change | None:
    match event:
        case Placed():
            return _placed(job, event, now) if job.state is JobState.QUEUED else None
        case Started():
            return Change(JobState.RUNNING, {}) if job.state is JobState.STARTING else None
        case StopRequested():
            return _stop_requested(job, event, now)
        case Exited():
            return _exited(job, event) if job.state in ACTIVE else None
        case Disappeared():
            return _disappeared(event, now) if job.state in ACTIVE else None
        case RetryRequested():
            return _retry_requested(job) if job.state in ENDED else None
        case Unsatisfiable():
            return _unsatisfiable(event, now) if job.state is JobState.QUEUED else None
    assert_never(event)


def _placed(job: JobRecord, event: Placed, now: float) -> Change:
    columns: Columns = {
        "slot": slot_text(event.placement),
        "attempts": job.attempts + 1,
        "started": now,
        "stop": None,
        "reason": event.reason,
    }
    return Change(JobState.STARTING, columns, "started", f"on GPU {gpus_text(event.placement.slot.gpus)}")


def _stop_requested(job: JobRecord, event: StopRequested, now: float) -> Change | None:
    if job.state in ACTIVE:
        kind = {Stop.CANCEL: "cancelling", Stop.EVICT: "evicting", Stop.REVERT: "reverting"}[event.stop]
        columns: Columns = {"stop": event.stop}
        if event.stop is Stop.EVICT:
            columns["reason"] = event.why
        elif event.by_daemon:
            columns["error"] = event.why
        return Change(job.state, columns, kind, event.why)
    if job.state is JobState.QUEUED and event.stop is Stop.CANCEL:
        columns = {"ended": now, "outcome": "cancelled"}
        return Change(JobState.CANCELLED, columns, "cancelled", "cancelled before it started")
    return None


def _exited(job: JobRecord, event: Exited) -> Change:
    """Back into the queue if it was evicted or reverted, ran out of memory and gets more, or failed with retries left;
    else ended. A job that was cancelled does not come back, however its run ended."""
    end, cancelled = event.exit, job.stop == Stop.CANCEL
    if end.outcome == "cancelled" and job.stop in (Stop.EVICT, Stop.REVERT):
        kind = "evicted" if job.stop == Stop.EVICT else "reverted"
        why = f": {job.reason}" if job.stop == Stop.EVICT and job.reason else ""
        text = f"{kind} from GPU {gpus_text(gpus_of(job))}{why}"
        return Change(JobState.QUEUED, _requeued(text, job.forgiven + 1), kind, text)
    if end.outcome == "out-of-memory" and event.more is not None and not cancelled:
        text = f"attempt {job.attempts} ran out of memory; the job is queued again with {event.more.why}"
        more = {"memory": event.more.memory, "memory_why": event.more.why}
        if event.more.host_memory is not None:
            more = {"host_memory": event.more.host_memory}
        request = msgspec.json.encode(msgspec.structs.replace(stored_request(job), **more))
        columns = _requeued(text, job.forgiven + 1) | {"request": request}
        return Change(JobState.QUEUED, columns, "retrying", text)
    if failed(end) and not cancelled and job.attempts - job.forgiven <= request_of(job).retries:
        number = end.code if end.code is not None else end.signal
        text = f"attempt {job.attempts} failed ({end.outcome} {number}); the job is queued again"
        return Change(JobState.QUEUED, _requeued(text, job.forgiven), "retrying", text)
    states: dict[str, JobState] = {"cancelled": JobState.CANCELLED, "interrupted": JobState.INTERRUPTED}
    state = states.get(end.outcome, JobState.FINISHED)
    columns = {
        "started": end.started,
        "ended": end.ended,
        "outcome": end.outcome,
        "code": end.code,
        "signal": end.signal,
        "error": end.error or (job.error if cancelled else None),
    }
    return Change(state, columns, state, f"{end.outcome} {end.code if end.code is not None else ''}".strip())


def _disappeared(event: Disappeared, now: float) -> Change:
    """No record says how far the run came, so the job is not run again unless its owner requests it."""
    state = JobState.INTERRUPTED if event.rebooted else JobState.LOST
    text = "the machine was restarted" if event.rebooted else "its supervisor was killed"
    return Change(state, {"ended": now, "outcome": state, "error": text}, state, text)


def _retry_requested(job: JobRecord) -> Change:
    """The same job and a new attempt, with all of its retries again."""
    text = f"retry requested after {job.outcome or job.state}"
    return Change(JobState.QUEUED, _requeued(text, job.attempts), "retrying", text)


def _unsatisfiable(event: Unsatisfiable, now: float) -> Change:
    columns: Columns = {"ended": now, "outcome": "dependency-failed", "error": event.why}
    return Change(JobState.CANCELLED, columns, "cancelled", f"cannot run: {event.why}")


def _requeued(reason: str, forgiven: int) -> Columns:
    """As after its submission, except for its attempts."""
    return {
        "slot": None,
        "started": None,
        "ended": None,
        "outcome": None,
        "code": None,
        "signal": None,
        "error": None,
        "stop": None,
        "reason": reason,
        "forgiven": forgiven,
    }


def failed(end: Exit) -> bool:
    """Whether a retry may follow: not after a cancellation, the time limit, or a shutdown of the machine."""
    return end.code != 0 if end.outcome == "exited" else end.outcome not in ("cancelled", "time-limit", "interrupted")


# The columns `request` and `slot`


def request_of(job: JobRecord) -> JobRequest:
    """The request of a job. If this version cannot read all of it, then what it can read, with GPUs of its own.

    Only a job that already runs, or has ended, may be treated by such a request: `unreadable` tells them apart.
    """
    try:
        return _valid_request(job)
    except (msgspec.MsgspecError, CotenantError):
        return _readable_part(job)


def stored_request(job: JobRecord) -> JobRequest:
    """The request of a job as it is stored: that of an element is not yet filled in. InputError if it is damaged."""
    try:
        return _decoded(job.request)
    except msgspec.MsgspecError as error:
        raise InputError(f"the stored request of {job.id} cannot be read: {error}") from None


def array_of(job: JobRecord) -> Array | None:
    """The array that a job is an element of; None: it is none, or its request cannot be read."""
    if job.item is None:
        return None
    with suppress(msgspec.MsgspecError, CotenantError):
        return _decoded(job.request).array
    return None


def unreadable(job: JobRecord) -> str | None:
    """Why this version cannot read the request or the slot of a job; None: it can."""
    try:
        _valid_request(job)
        _stored_slot(job)
    except (msgspec.MsgspecError, CotenantError, UnicodeDecodeError) as error:
        return str(error)
    return None


def _valid_request(job: JobRecord) -> JobRequest:
    if job.item is None:
        return _decoded.__wrapped__(job.request)
    return element_of(_decoded(job.request), job.item)


@lru_cache(maxsize=16)
def _decoded(content: bytes) -> JobRequest:
    """The elements of an array have the same request, which is decoded once."""
    request = msgspec.json.decode(content, type=JobRequest)
    demand_of(request)
    return request


def _readable_part(job: JobRecord) -> JobRequest:
    """A newer version may have stored fields that we do not know; without them a job's neighbours are not known."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, CotenantError):
        content = msgspec.json.decode(job.request, type=dict[str, Any])
        known = {name: content[name] for name in JobRequest.__struct_fields__ if name in content}
        request = msgspec.convert({**known, "exclusive": True}, JobRequest)
        demand_of(request)
        return request if job.item is None else element_of(request, job.item)
    return JobRequest(command=("unknown",), cwd="/", gpus=len(gpus_of(job)), exclusive=True)


class _SlotWithCompute(msgspec.Struct, frozen=True):
    """The slot of a job that could have had other compute shares."""

    gpus: list[int]
    compute: int


def slot_text(placement: Placement) -> str:
    """The stored form of a slot: GPU indices, and the chosen compute share if the job had alternatives."""
    gpus, demand = list(placement.slot.gpus), placement.job.demand
    return json.dumps(gpus if demand.least_speed is None else {"gpus": gpus, "compute": demand.compute})


def _stored_slot(job: JobRecord) -> list[int] | _SlotWithCompute:
    return msgspec.json.decode(job.slot, type=list[int] | _SlotWithCompute) if job.slot else []


def gpus_of(job: JobRecord) -> Gpus:
    """The GPUs of a job; none if its slot is damaged."""
    try:
        slot = _stored_slot(job)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ()
    return tuple(slot if isinstance(slot, list) else slot.gpus)


def gpus_text(gpus: Gpus) -> str:
    return " ".join(map(str, gpus)) or "none"


def with_stored_compute(job: Job, record: JobRecord) -> Job:
    """The job with the compute share that it was placed with, as its only demand."""
    slot = [] if unreadable(record) else _stored_slot(record)
    if isinstance(slot, list):
        return job
    demands = (one for one in (job.demand, *job.alternatives) if one.compute == slot.compute)
    demand = next(demands, replace(job.demand, compute=MilliGpu(slot.compute)))
    return replace(job, demand=demand, alternatives=())
