# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs as the daemon shows them, and the words for their states."""

import re
from typing import Any

import msgspec

from cotenant.errors import InputError
from cotenant.wire.job_requests import LONGEST_NAME, JobRequest

WAITING_OR_ACTIVE = ("queued", "starting", "running")
ENDED = ("finished", "cancelled", "interrupted", "lost")
ENDINGS = ("done", "failed", "signal", "out-of-memory", "time-limit", "exec-failed")
"""how a finished job ended, in the words of `described_state` without their numbers"""
_EXACT_ENDING = re.compile(r"failed \(\d{1,3}\)|signal \d{1,3}", re.ASCII)


class TerminalView(msgspec.Struct, frozen=True):
    """Where the terminal of a running job is reached, by processes of its owner."""

    socket: str
    attempt: int


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


def shown_name(name: str | None, program: str) -> str:
    """The name of a job, or what it is called after its program."""
    return name or program.rpartition("/")[2][:LONGEST_NAME]


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
