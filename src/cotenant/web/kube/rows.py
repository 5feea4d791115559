# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One pod of a cluster as lists show it."""

from cotenant.core.model import Gpus
from cotenant.core.units import format_memory
from cotenant.errors import InputError
from cotenant.kube.api.objects import ContainerStatus, Pod, has_ended, moment_of
from cotenant.kube.codec.queueing import NOT_HOLDABLE, hold_of, is_gated
from cotenant.kube.codec.request import PodRequest, placed_request_of
from cotenant.kube.codec.settings import Settings
from cotenant.kube.state.allocation import Allocation
from cotenant.web.kube.tiles import NO_SPEEDS, Tile
from cotenant.web.model import JobRow, State
from cotenant.wire.text import counted

QUEUED = "it waits in cotenant's queue"
NOT_TRIED = "kube-scheduler has made no attempt yet"
BY_CLAIMS = "GPUs by ResourceClaims"
"""The pages have no right to read claims."""


def row_of(
    pod: Pod, allocation: Allocation | None, tile: Tile | None, codec: Settings, queued: str | None = None
) -> JobRow:
    """The row of a pod; the tile is that of its node, and `queued` is for what it waits in the queue."""
    about, uid = pod.metadata, pod.metadata.uid
    speeds = NO_SPEEDS if tile is None else tile.speeds.get(uid, NO_SPEEDS)
    gpus: Gpus = () if tile is None else tile.gpus.get(uid, ())
    state = state_of(pod)
    ending, failed = _ending(pod)
    return JobRow(
        id=f"{about.namespace}/{about.name}",
        name=about.name,
        group=about.namespace,
        state=state,
        ending=ending,
        failed=failed,
        reason=reason_of(pod, queued) if state in (State.WAITING, State.HELD) else None,
        no_hold=_why_no_hold(pod, state),
        asks=asks(pod, codec),
        priority=pod.spec.priority or 0,
        submitted=moment_of(about.creation_timestamp),
        started=_started(pod),
        ended=_ended(pod),
        node=pod.spec.node_name or None,
        gpus=tuple(sorted(set(gpus))) if state is not State.ENDED else (),
        speed=speeds.measured,
        predicted=speeds.predicted,
        batch=speeds.batch,
        used_mib=None if tile is None or state is State.ENDED else tile.used.get(uid),
        limit_mib=None if allocation is None or state is State.ENDED else allocation.peak.memory or None,
    )


def state_of(pod: Pod) -> State:
    """Where a pod is in its life."""
    if has_ended(pod):
        return State.ENDED
    if not pod.spec.node_name:
        return State.WAITING if hold_of(pod) is None else State.HELD
    return State.RUNNING if pod.status.phase == "Running" else State.STARTING


def _why_no_hold(pod: Pod, state: State) -> str | None:
    if state is not State.WAITING or is_gated(pod.spec.scheduling_gates):
        return None
    return f"It cannot be held: {NOT_HOLDABLE}."


def reason_of(pod: Pod, queued: str | None = None) -> str:
    """Why a pod waits: who holds it, where in the queue it is, or what kube-scheduler wrote on it."""
    if (hold := hold_of(pod)) is not None:
        return f"{hold}; it starts when it is released"
    if is_gated(pod.spec.scheduling_gates):
        return queued or QUEUED
    said = next((one for one in pod.status.conditions if one.type == "PodScheduled" and one.status == "False"), None)
    return NOT_TRIED if said is None else said.message or said.reason


def asks(pod: Pod, codec: Settings) -> str:
    """What a pod requested, in a few words."""
    try:
        request = placed_request_of(pod, codec)
    except InputError:
        return "a request that cannot be read"
    parts = dict.fromkeys(_amounts(request))
    return " + ".join(parts) or (BY_CLAIMS if pod.spec.resource_claims else "")


def _amounts(request: PodRequest) -> list[str]:
    found = []
    for one in request.containers:
        amounts = one.amounts.container
        words = [counted(amounts.gpus, "GPU")]
        if amounts.memory_percent is not None:
            words.append("all its memory" if amounts.memory_percent == 100 else f"{amounts.memory_percent} % of memory")
        elif amounts.memory:
            words.append(format_memory(amounts.memory))
        if amounts.compute:
            words.append(f"{amounts.compute / 10:g} % of compute")
        found.append(", ".join(words))
    return found


def _statuses(pod: Pod) -> tuple[ContainerStatus, ...]:
    return pod.status.container_statuses


def _started(pod: Pod) -> float | None:
    running = [moment_of(one.state.running.started_at) for one in _statuses(pod) if one.state.running is not None]
    return min(running, default=moment_of(pod.status.start_time)) or None


def _ended(pod: Pod) -> float | None:
    if not has_ended(pod):
        return None
    ends = [moment_of(one.state.terminated.finished_at) for one in _statuses(pod) if one.state.terminated is not None]
    return max(ends, default=0.0) or None


def _ending(pod: Pod) -> tuple[str | None, bool]:
    if not has_ended(pod):
        return None, False
    if pod.status.phase == "Succeeded":
        return "done", False
    codes = [one.state.terminated for one in _statuses(pod) if one.state.terminated is not None]
    code = next((one.exit_code for one in codes if one.exit_code), None)
    words = pod.status.reason or next((one.reason for one in codes if one.exit_code), "")
    return " ".join(filter(None, ("failed", f"({code})" if code is not None else "", words))), True
