# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that the API server no longer has, or calls ended, while their processes still run: their GPUs are not free.

The scheduler frees what a force-deleted pod had when its node's agent has looked at the processes after the deletion
and does not list it. Records are kept on disk, so that an agent that comes back knows what such a pod was given.
"""

import asyncio
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from cotenant.errors import InputError
from cotenant.kube.agent.cgroups import PROC, running_pods
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.api.reflector import Pace, Reflector
from cotenant.kube.codec.assignment import RECORD, Record, decode_record, encode_record, record_of
from cotenant.kube.codec.inventory import orphans_for
from cotenant.kube.codec.keys import MOST_BYTES

_UID = re.compile(r"[A-Za-z0-9-]{1,253}")

Publish = Callable[[str], object]
"""takes the value of the node's annotation"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long, in seconds."""

    settle_s: float = 5.0
    """after a deletion kubelet may still be starting a container, and after an end it may still be clearing up"""
    forget_s: float = 600.0
    """a pod of which nothing runs is looked for: a kubelet that was cut off may start it late"""
    looks_s: float = 1.0
    """between two looks, while something may change soon"""
    sweeps_s: float = 30.0
    """between two looks, else"""


class Records:
    """What pods were given, on disk: one file for each.

    A disk may take long, and kubelet should not wait for it: `keep` writes changes in a thread. An agent that dies in
    between comes back as if it had died a moment earlier, before it heard of them.
    """

    def __init__(self, folder: Path, report: Callable[[str], object]) -> None:
        self._folder, self._report = folder, report
        self._waiting: deque[tuple[str, Record | None]] = deque()
        self._changed = asyncio.Event()
        self._writing = threading.Lock()

    def load(self) -> list[Record]:
        """All that can be read; what cannot is removed, since nobody will ever need it."""
        self.write()
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                with open(path, "rb") as file:
                    found.append(decode_record(file.read(MOST_BYTES).decode(errors="replace")))
            except (OSError, InputError) as error:
                self._report(f"{path}: {error}")
                self.remove(path.stem)
        self.write()
        return found

    def save(self, record: Record) -> None:
        if _UID.fullmatch(record.pod):
            self._change(record.pod, record)

    def remove(self, pod: str) -> None:
        self._change(pod, None)

    def write(self) -> None:
        """All that has changed until now."""
        for trouble in self._written():
            self._report(trouble)

    async def keep(self) -> NoReturn:
        """Writes what changes until cancelled, and then the rest."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                for trouble in await asyncio.to_thread(self._written):
                    self._report(trouble)
        finally:
            self.write()

    def _change(self, pod: str, record: Record | None) -> None:
        self._waiting.append((pod, record))
        self._changed.set()

    def _written(self) -> list[str]:
        """Writes, in whatever thread, and says what went wrong."""
        with self._writing:  # one change after the other, as they came
            troubles = []
            while self._waiting:
                pod, record = self._waiting.popleft()
                path = self._folder / f"{pod}.json"
                try:
                    _put(path, record)
                except (OSError, InputError) as error:  # it is still known until this process ends
                    troubles.append(f"{path}: {error}")
            return troubles


def _put(path: Path, record: Record | None) -> None:
    if record is None:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_suffix(".new")
    fresh.write_text(encode_record(record))
    os.replace(fresh, path)


@dataclass(frozen=True, slots=True)
class _Left:
    """A pod that should not run any more."""

    record: Record
    since: float
    deleted: bool
    """from the API server; else it only ended"""
    sure: bool
    """whether all its containers were seen to end"""

    def is_held(self, runs: bool, settled: bool) -> bool:
        """In doubt after a deletion it is, after an end it is not."""
        return runs or not (self.sure or settled) if self.deleted else runs and settled


class Leftovers:
    """A state machine: it is told of pods and of what was seen to run, with the time, and says what is held."""

    def __init__(self, records: Records, timing: Timing) -> None:
        self.news = True
        """whether the scheduler may be waiting to hear that we have looked"""
        self._records, self._timing = records, timing
        self._present: dict[str, Record] = {}
        self._left: dict[str, _Left] = {}
        self._running: frozenset[str] = frozenset()

    @property
    def known(self) -> frozenset[str]:
        """UIDs of all pods with a record."""
        return frozenset(self._present) | frozenset(self._left)

    def compare(self, kept: Iterable[Record], now: float) -> None:
        """At the start, when all pods are known: records of pods that are gone since."""
        for record in kept:
            if record.pod not in self._present:
                self._left[record.pod] = _Left(record, now, deleted=True, sure=False)

    def pod_changed(self, old: Pod | None, new: Pod | None, now: float) -> None:
        if new is None and old is not None:
            self._gone(old, now)
        elif new is not None and _record(new) != (None if old is None else _record(old)):
            self._recorded(new)
        if new is not None and has_ended(new) and new.metadata.uid in self._present:
            record = self._present[new.metadata.uid]
            self._left.setdefault(record.pod, _Left(record, now, deleted=False, sure=True))

    def _recorded(self, pod: Pod) -> None:
        try:
            record = record_of(pod)
        except InputError:  # not ours
            return
        if record is not None and self._present.get(record.pod) != record:
            self._present[record.pod] = record
            self._records.save(record)

    def _gone(self, pod: Pod, now: float) -> None:
        self.news = self.news or RECORD in pod.metadata.annotations
        record = self._present.pop(pod.metadata.uid, None)
        if record is not None:
            self._left[record.pod] = _Left(record, now, deleted=True, sure=_is_over(pod))

    def looked(self, running: frozenset[str], now: float) -> tuple[Record, ...]:
        """What is held after a look at the processes."""
        held = []
        for uid, left in sorted(self._left.items()):
            runs, age = uid in running, now - left.since
            settled = age >= self._timing.settle_s
            if left.is_held(runs, settled):
                held.append(left.record)
            if left.deleted and runs and uid not in self._running:
                self._records.save(left.record)  # it may have been started late
            elif left.deleted and not runs and settled:
                self._records.remove(uid)
            if not runs and age >= self._timing.forget_s:
                del self._left[uid]
        self._running = running
        return tuple(held)

    def next_look_s(self, now: float) -> float:
        """How long what was seen will do."""
        soon = any(uid in self._running or now - left.since < self._timing.settle_s for uid, left in self._left.items())
        return self._timing.looks_s if soon else self._timing.sweeps_s

    @property
    def is_worth_a_look(self) -> bool:
        """Whether there is anything that should not run any more."""
        return bool(self._left)


def _record(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(RECORD)


def _is_over(pod: Pod) -> bool:
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return has_ended(pod) or bool(statuses and all(one.state.terminated is not None for one in statuses))


class NodePods:
    """Follows the pods of one node, and says what runs on without one."""

    def __init__(
        self,
        client: Client,
        node: str,
        folder: Path,
        *,
        publish: Publish,
        changed: Callable[[], object],
        report: Callable[[str], object],
        pace: Pace = Pace(),  # noqa: B008 -- frozen
        timing: Timing = Timing(),  # noqa: B008 -- frozen
        proc: Path = PROC,
    ) -> None:
        self.looked = asyncio.Event()
        """set when all pods are known and it was told what runs on without one"""
        self._publish, self._notify, self._proc, self._timing = publish, changed, proc, timing
        self._records = Records(folder, report)
        self._leftovers = Leftovers(self._records, timing)
        self._wake = asyncio.Event()
        which = Selection(fields=f"spec.nodeName={node}")
        self._reflector = Reflector(client, PODS, self._changed, which, pace=pace, report=report)

    def pods(self) -> Collection[Pod]:
        """All that the API server has, in any state."""
        return self._reflector.objects.values()

    def known(self) -> frozenset[str]:
        """UIDs of pods that were given GPUs here and are not known to have ended."""
        return self._leftovers.known

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._look_again_and_again())
            tasks.create_task(self._records.keep())

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        self._leftovers.pod_changed(old, new, time.monotonic())
        if self._leftovers.news:
            self._wake.set()
        self._notify()

    async def _look_again_and_again(self) -> NoReturn:
        await self._reflector.synced.wait()
        self._leftovers.compare(self._records.load(), time.monotonic())
        held: tuple[Record, ...] = ()
        lists = 0
        while True:
            # A list says nothing of pods that came and went unseen, and somebody may wait to hear of them.
            news = self._leftovers.news or self._reflector.counts["lists"] != lists
            self._leftovers.news, lists = False, self._reflector.counts["lists"]
            seen, before = self._reflector.version, held
            held = self._leftovers.looked(await self._running(), time.monotonic())
            if news or held != before:
                self._publish(orphans_for(seen, held))
            self.looked.set()
            await self._wait(self._leftovers.next_look_s(time.monotonic()))

    async def _running(self) -> frozenset[str]:
        if not self._leftovers.is_worth_a_look:
            return frozenset()
        return await asyncio.to_thread(running_pods, self._leftovers.known, self._proc)

    async def _wait(self, seconds: float) -> None:
        """Until there is news, but never shorter than two looks are apart."""
        await asyncio.sleep(self._timing.looks_s)
        try:
            async with asyncio.timeout(seconds - self._timing.looks_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
