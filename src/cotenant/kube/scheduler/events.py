# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes Events, which `kubectl describe` shows: what the scheduler did with a pod, with numbers, and what is wrong
with a node.

Events are written in the background. If the API server does not accept one, only the event is lost.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import NoReturn

import msgspec

from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Metadata, Node, Pod, time_text
from cotenant.wire.text import printable

LONGEST_NOTE = 1000
"""characters; Kubernetes accepts 1,024 bytes in events.k8s.io/v1"""
LONGEST_NAME = 200
"""characters of the object's name that begin the event's name, which may have 253 in all"""
EVERY_S = 30.0
"""between two events on one object for one reason, unless the text differs"""
SHARE = 9
"""pause after each write, as a multiple of the time the write took: binds matter more"""
MOST_QUEUED = 5000
MOST_RECENT = 5000
"""events that are remembered, so that a repetition increases their count instead of adding an event"""

Text = str | Callable[[], str]
"""the text, or a function that makes it when the event is written; empty if the event is obsolete by then"""

NO_ROOM, PLACED, RESIZED, RESIZE_REFUSED = "NoRoom", "Placed", "Resized", "ResizeRefused"
PREEMPTING, PREEMPTED, PREEMPTION_REFUSED = "Preempting", "Preempted", "PreemptionRefused"
SEPARATED, SEPARATION_REFUSED = "Separated", "SeparationRefused"
RECLAIMED, RECLAIM_REFUSED = "Reclaimed", "ReclaimRefused"
LATENCY_SHARE, LATENCY_MISSED = "LatencyShare", "LatencyMissed"
MPS_CLOSED, MPS_OPEN = "MpsClosed", "MpsOpen"
GPU_FAULT, GPU_HEALTHY = "GpuFault", "GpuHealthy"
RELEASED, GANG_WAITS, GANG_GIVEN_UP = "Released", "GangWaits", "GangGivenUp"
QUEUED, HELD, HOLD_ENDED = "Queued", "Held", "HoldEnded"
CLAIMS_PROBLEM, CLAIMS_FINE = "ClaimsProblem", "ClaimsFine"
"""on nodes"""
NODE_EVENTS = "default"
"""the namespace of events on objects that have none"""


class WrittenEvent(msgspec.Struct, frozen=True):
    """The fields of an event that the scheduler reads."""

    metadata: Metadata = Metadata()


EVENTS = Kind("events", WrittenEvent)


@dataclass(slots=True)
class _Recent:
    """The last event of one object and reason."""

    name: str
    count: int
    due: float
    text: Text = ""
    written: bool = False


@dataclass(frozen=True, slots=True)
class _Note:
    kind: str
    about: Metadata
    reason: str
    text: Text
    warning: bool


class EventRecorder:
    """Queues events at any time; `run` writes them."""

    def __init__(
        self,
        client: Client,
        reporter: str,
        errors: ErrorLog,
        *,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = EVERY_S,
        wait: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`wait` is awaited before each write: events may wait for more urgent work."""
        self._client, self._reporter, self._errors = client, reporter, errors
        self._clock, self._every_s, self._wait = clock, every_s, wait
        self._queue: asyncio.PriorityQueue[tuple[bool, bool, int, _Note]] = asyncio.PriorityQueue(MOST_QUEUED)
        self._numbers = count()
        self._recent: OrderedDict[tuple[str, str], _Recent] = OrderedDict()

    def record(self, on: Pod | Node, reason: str, text: Text, *, warning: bool = False) -> None:
        """Queue an event on an object. If the same one was queued less than `every_s` ago, only its count increases."""
        about = on.metadata
        key = (about.uid, reason)
        recent = self._recent.get(key)
        if recent is None:
            begins = about.name[:LONGEST_NAME].rstrip("-.")
            recent = self._recent[key] = _Recent(f"{begins}.{secrets.token_hex(8)}", 0, float("-inf"))
            if len(self._recent) > MOST_RECENT:
                self._recent.popitem(last=False)
        self._recent.move_to_end(key)
        recent.count += 1
        now = self._clock()
        is_same = text == recent.text or not isinstance(text, str)
        if now < recent.due and is_same:
            return
        try:
            note = _Note("Node" if isinstance(on, Node) else "Pod", about, reason, text, warning)
            # Warnings first. A text that is made when it is written is not out of date if the event comes last.
            self._queue.put_nowait((not warning, not isinstance(text, str), next(self._numbers), note))
        except asyncio.QueueFull:
            self._errors.report("events", f"{MOST_QUEUED} events wait to be written; new events are dropped")
            return
        recent.due, recent.text = now + self._every_s, text

    async def run(self) -> NoReturn:
        """Write until cancelled."""
        while True:
            *_, note = await self._queue.get()
            if self._wait is not None:
                await self._wait()
            began = time.monotonic()
            try:
                await self._write(note)
            except ApiError as error:
                self._errors.report("events", str(error))
            await asyncio.sleep((time.monotonic() - began) * SHARE)

    async def _write(self, note: _Note) -> None:
        recent = self._recent.get((note.about.uid, note.reason))
        text = printable(note.text if isinstance(note.text, str) else note.text())[:LONGEST_NOTE]
        if recent is None or not text:  # dropped for newer events while it waited
            return
        now, namespace = time_text(datetime.now(UTC)), note.about.namespace or NODE_EVENTS
        if recent.written:
            again = {"count": recent.count, "lastTimestamp": now, "message": text}
            try:
                await self._client.patch(EVENTS, recent.name, again, namespace=namespace)
                return
            except ApiError as error:
                if error.status != 404:  # the server deletes events after an hour
                    raise
        recent.written = False
        await self._client.create(EVENTS, self._event(note, text, recent, now), namespace=namespace)
        recent.written = True

    def _event(self, note: _Note, text: str, recent: _Recent, now: str) -> dict[str, object]:
        on = note.about
        about = {"apiVersion": "v1", "kind": note.kind, "namespace": on.namespace, "name": on.name, "uid": on.uid}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": recent.name, "namespace": on.namespace or NODE_EVENTS},
            "involvedObject": about,
            "type": "Warning" if note.warning else "Normal",
            "reason": note.reason,
            "message": text,
            "source": {"component": self._reporter},
            "reportingComponent": self._reporter,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": recent.count,
        }
