# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page of one pod: its timeline from conditions and events, its assignment, and its neighbours."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from cotenant.errors import InputError
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.objects import Metadata, Pod, containers_of, moment_of
from cotenant.kube.codec.keys import PREFIX
from cotenant.kube.codec.policy import POLICY
from cotenant.kube.codec.queueing import gang_of
from cotenant.kube.state.allocation import Allocation
from cotenant.web.model import Moment
from cotenant.wire.text import counted

MOST_EVENTS = 100
EVENTS_S = 3.0
"""How long the events of a pod count."""
MOST_KEPT = 500
"""Pods whose events are kept."""
LONGEST = 1_000
"""Characters of a label, an annotation or a message."""
MOST_LABELS = 40
MEANINGS = {
    "PodScheduled": "It has a node.",
    "PodReadyToStartContainers": "Its sandbox and its network are ready.",
    "Initialized": "Its init containers have ended.",
    "ContainersReady": "All its containers are ready.",
    "Ready": "It is ready.",
}
"""Conditions that kubelet sets without a message."""


class _Source(msgspec.Struct, frozen=True):
    component: str = ""


class Event(msgspec.Struct, frozen=True, rename="camel"):
    """An Event of a pod, as far as it is shown."""

    metadata: Metadata = Metadata()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    source: _Source = _Source()
    reporting_component: str = ""


EVENTS = Kind("events", Event)


class PodEvents:
    """Reads the events of pods with our own account; the caller checks that the viewer may list them."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._known: dict[str, tuple[float, tuple[Event, ...]]] = {}

    async def of(self, pod: Pod) -> tuple[Event, ...]:
        """Return the newest events of a pod; those read before if the API server does not answer."""
        uid = pod.metadata.uid
        known = self._known.get(uid)
        if known is not None and self._clock() - known[0] < EVENTS_S:
            return known[1]
        which = Selection(namespace=pod.metadata.namespace, fields=f"involvedObject.uid={uid}")
        try:
            found = await anext(self._client.pages(EVENTS, which, page=MOST_EVENTS))
        except ApiError:
            return () if known is None else known[1]
        self._known.pop(uid, None)
        self._known[uid] = self._clock(), tuple(found.items)
        if len(self._known) > MOST_KEPT:
            del self._known[next(iter(self._known))]
        return self._known[uid][1]


def timeline(pod: Pod, events: Iterable[Event]) -> tuple[Moment, ...]:
    """What happened to a pod, oldest first."""
    found = [*_own_moments(pod), *(_moment_of(one) for one in events)]
    return tuple(sorted((one for one in found if one.at), key=lambda one: (one.at, one.kind, one.text)))


def _own_moments(pod: Pod) -> Iterator[Moment]:
    yield Moment(at=moment_of(pod.metadata.creation_timestamp), kind="created", text="The pod was created.")
    for one in pod.status.conditions:
        status = "" if one.status == "True" else f" {one.status}"
        told = ": ".join(filter(None, (one.reason, one.message)))[:LONGEST]
        text = told or (MEANINGS.get(one.type, "") if one.status == "True" else "") or "The condition changed."
        yield Moment(at=moment_of(one.last_transition_time), kind=f"{one.type}{status}", text=text)
    for status_ in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        state = status_.state
        if state.running is not None:
            yield Moment(at=moment_of(state.running.started_at), kind="started", text=f"Container {status_.name}.")
        if state.terminated is not None:
            words = f"Container {status_.name}: exit code {state.terminated.exit_code} {state.terminated.reason}"
            yield Moment(at=moment_of(state.terminated.finished_at), kind="ended", text=words.strip())
    if pod.metadata.deletion_timestamp:
        yield Moment(at=moment_of(pod.metadata.deletion_timestamp), kind="deleted", text="The pod is being deleted.")


def _moment_of(event: Event) -> Moment:
    at = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    times = f" ({counted(event.count, 'time')})" if event.count and event.count > 1 else ""
    by = event.reporting_component or event.source.component
    text = f"{event.message[:LONGEST]}{times}" + (f" — {by}" if by else "")
    return Moment(at=moment_of(at), kind=event.reason or event.type or "event", text=text)


def facts(pod: Pod, allocation: Allocation | None, policy: str) -> tuple[tuple[str, str], ...]:
    """What a pod requested and got, in names and values."""
    about = pod.metadata
    controller = about.controller
    found = [
        ("Controller", "" if controller is None else f"{controller.kind} {controller.name}"),
        ("Policy", about.annotations.get(POLICY, policy)),
        ("Gang", _gang(pod)),
        ("Assigned", "" if allocation is None else "\n".join(_shares(allocation))),
        ("Containers", ", ".join(container.name for _, container in containers_of(pod))[:LONGEST]),
        ("Labels", _listed(about.labels)),
        ("Annotations", _listed({key: text for key, text in about.annotations.items() if _is_wish(key)})),
    ]
    return tuple((name, value) for name, value in found if value)


def _is_wish(key: str) -> bool:
    """Whether a user writes this annotation for us; those that we write are shown in other words."""
    return key.startswith(f"{PREFIX}/") and not key.partition("/")[2][:1].isdecimal() and key != f"{PREFIX}/assignment"


def _listed(words: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={value[:LONGEST]}" for key, value in sorted(words.items())[:MOST_LABELS])


def _gang(pod: Pod) -> str:
    try:
        gang = gang_of(pod)
    except InputError as error:
        return str(error)
    if gang is None or gang.group is not None:
        return "" if gang is None else f"PodGroup {gang.group}"
    return f"{gang.name}, at least {counted(gang.size, 'pod')}"


def _shares(allocation: Allocation) -> Iterator[str]:
    for held in allocation.record.containers:
        for share in held.gpus:
            compute = f", {share.compute / 10:g} % of compute" if share.compute else ""
            yield f"container {held.number}: {share.memory} MiB of {share.gpu}{compute}"
