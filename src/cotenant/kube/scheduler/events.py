# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Events on pods: what became of a pod, with the numbers, where its owner looks first (`kubectl describe pod`).

They are written in the background. When the API server does not take them, they are lost and nothing else is.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import NoReturn

import msgspec

from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Metadata, Pod
from cotenant.wire.text import printable

LONGEST_NOTE = 1000
"""letters; Kubernetes takes 1,024 bytes of the newer kind of event"""
LONGEST_NAME = 200
"""of a pod's name, at the beginning of an event's: Kubernetes takes 253 letters in all"""
EVERY_S = 30.0
"""between two on one pod for one reason, unless it has something else to say"""
SHARE = 9
"""of its time, the writing leaves so many parts to others for each that it takes: a bind matters more"""
MOST_WAITING = 5000
MOST_KNOWN = 5000
"""events that are counted on instead of made anew"""

Text = str | Callable[[], str]
"""or what makes it when it is written, where that takes long; empty: it is not worth telling any more"""

NO_ROOM, PLACED, RESIZED, RESIZE_REFUSED = "NoRoom", "Placed", "Resized", "ResizeRefused"
PREEMPTING, PREEMPTED, PREEMPTION_REFUSED = "Preempting", "Preempted", "PreemptionRefused"
RELEASED, GANG_WAITS, GANG_GIVEN_UP = "Released", "GangWaits", "GangGivenUp"


class WrittenEvent(msgspec.Struct, frozen=True):
    """As much of an event as we read again."""

    metadata: Metadata = Metadata()


EVENTS = Kind("events", WrittenEvent)


@dataclass(slots=True)
class _Known:
    """An event of a pod and a reason."""

    name: str
    count: int
    due: float
    text: Text = ""
    written: bool = False


@dataclass(frozen=True, slots=True)
class _Note:
    pod: Metadata
    reason: str
    text: Text
    warning: bool


class News:
    """Takes what is to be told at any time; `run` writes it down."""

    def __init__(
        self,
        client: Client,
        reporter: str,
        error_log: ErrorLog,
        *,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = EVERY_S,
    ) -> None:
        self._client, self._reporter, self._error_log = client, reporter, error_log
        self._clock, self._every_s = clock, every_s
        self._waiting: asyncio.PriorityQueue[tuple[bool, int, _Note]] = asyncio.PriorityQueue(MOST_WAITING)
        self._numbers = count()
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def tell(self, pod: Pod, reason: str, text: Text, *, warning: bool = False) -> None:
        """Put it on the pod, unless the same was put there a moment ago: then it is only counted."""
        key = (pod.metadata.uid, reason)
        known = self._known.get(key)
        if known is None:
            begins = pod.metadata.name[:LONGEST_NAME].rstrip("-.")
            known = self._known[key] = _Known(f"{begins}.{secrets.token_hex(8)}", 0, float("-inf"))
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        known.count += 1
        now = self._clock()
        says_the_same = text == known.text or not isinstance(text, str)
        if now < known.due and says_the_same:
            return
        try:
            note = _Note(pod.metadata, reason, text, warning)
            self._waiting.put_nowait((not warning, next(self._numbers), note))  # warnings first, each kind in its order
        except asyncio.QueueFull:
            self._error_log.report("events", f"{MOST_WAITING} wait to be written; new ones are dropped")
            return
        known.due, known.text = now + self._every_s, text

    async def run(self) -> NoReturn:
        """Write until cancelled."""
        while True:
            _, _, note = await self._waiting.get()
            began = time.monotonic()
            try:
                await self._write(note)
            except ApiError as error:
                self._error_log.report("events", str(error))
            await asyncio.sleep((time.monotonic() - began) * SHARE)

    async def _write(self, note: _Note) -> None:
        known = self._known.get((note.pod.uid, note.reason))
        text = printable(note.text if isinstance(note.text, str) else note.text())[:LONGEST_NOTE]
        if known is None or not text:  # forgotten for newer ones while it waited
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if known.written:
            again = {"count": known.count, "lastTimestamp": now, "message": text}
            try:
                await self._client.patch(EVENTS, known.name, again, namespace=note.pod.namespace)
                return
            except ApiError as error:
                if error.status != 404:  # the server forgets them after an hour
                    raise
        known.written = False
        await self._client.create(EVENTS, self._event(note, text, known, now), namespace=note.pod.namespace)
        known.written = True

    def _event(self, note: _Note, text: str, known: _Known, now: str) -> dict[str, object]:
        pod = note.pod
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": known.name, "namespace": pod.namespace},
            "involvedObject": about,
            "type": "Warning" if note.warning else "Normal",
            "reason": note.reason,
            "message": text,
            "source": {"component": self._reporter},
            "reportingComponent": self._reporter,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": known.count,
        }
