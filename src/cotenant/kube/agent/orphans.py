# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Orphans: processes that still run though the API server no longer has their pod, or calls it ended.

Their GPUs are not free. The scheduler frees the GPUs of a force-deleted pod when the agent of its node has looked at
the processes after the deletion and does not list the pod. Records are kept on disk, so an agent that restarts knows
what such a pod was given.
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
from cotenant.kube.agent.jobs import PROC, running_pods
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.api.reflector import Pace, Reflector
from cotenant.kube.codec.assignment import RECORD, Record, decode_record, encode_record, valid_record
from cotenant.kube.codec.inventory import orphans_for
from cotenant.kube.codec.keys import MOST_BYTES

_UID = re.compile(r"[A-Za-z0-9-]{1,253}")

Publish = Callable[[str], object]
"""Takes the value of the node's annotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals in seconds."""

    settle_s: float = 5.0
    """After a deletion kubelet may still be starting a container, and after an end it may still be cleaning up."""
    forget_s: float = 600.0
    """A pod without processes is watched for so long: a kubelet that was cut off may start it late."""
    looks_s: float = 1.0
    """Between two looks, while something may change soon."""
    sweeps_s: float = 30.0
    """Between two looks otherwise."""


class Records:
    """The records of pods on disk, one file for each.

    A disk may be slow, and kubelet should not wait for it: `keep` writes changes in a thread. An agent that is killed
    in between starts again as if it had been killed before they reached it.
    """

    def __init__(self, folder: Path, report: Callable[[str], object]) -> None:
        self._folder, self._report = folder, report
        self._waiting: deque[tuple[str, Record | None]] = deque()
        self._changed = asyncio.Event()
        self._writing = threading.Lock()

    def load(self) -> list[Record]:
        """All records that can be read; files that cannot be read are removed."""
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
        """Writes all changes until now."""
        for trouble in self._written():
            self._report(trouble)

    async def keep(self) -> NoReturn:
        """Writes changes until cancelled, and then the remaining ones."""
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
        """Writes all changes, in any thread; returns the errors."""
        with self._writing:  # changes of one pod must stay in order
            error_log = []
            while self._waiting:
                pod, record = self._waiting.popleft()
                path = self._folder / f"{pod}.json"
                try:
                    _put(path, record)
                except (OSError, InputError) as error:  # the record is still in memory
                    error_log.append(f"{path}: {error}")
            return error_log


def _put(path: Path, record: Record | None) -> None:
    if record is None:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_suffix(".new")
    fresh.write_text(encode_record(record))
    os.replace(fresh, path)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A pod that should have no processes any more."""

    record: Record
    since: float
    deleted: bool
    """From the API server; else it only ended."""
    sure: bool
    """Whether all its containers were seen to end."""

    def is_orphan(self, runs: bool, settled: bool) -> bool:
        """In doubt, a deleted pod is an orphan, and one that ended is not: its GPUs are freed by its phase."""
        return runs or not (self.sure or settled) if self.deleted else runs and settled


class OrphanTracker:
    """A state machine: takes changes of pods and looks at the processes, with the time, and returns the orphans."""

    def __init__(self, records: Records, timing: Timing) -> None:
        self.must_publish = True
        """Whether the scheduler may be waiting for the result of a look."""
        self._records, self._timing = records, timing
        self._present: dict[str, Record] = {}
        self._candidates: dict[str, _Candidate] = {}
        self._running: frozenset[str] = frozenset()

    @property
    def known(self) -> frozenset[str]:
        """UIDs of all pods with a record."""
        return frozenset(self._present) | frozenset(self._candidates)

    def compare(self, kept: Iterable[Record], now: float) -> None:
        """At the start, when all pods are known: takes the records on disk, some of whose pods are gone."""
        for record in kept:
            if record.pod not in self._present:
                self._candidates[record.pod] = _Candidate(record, now, deleted=True, sure=False)

    def pod_changed(self, old: Pod | None, new: Pod | None, now: float) -> None:
        if new is None and old is not None:
            self._gone(old, now)
        elif new is not None and _record(new) != (None if old is None else _record(old)):
            self._recorded(new)
        if new is not None and has_ended(new) and new.metadata.uid in self._present:
            record = self._present[new.metadata.uid]
            self._candidates.setdefault(record.pod, _Candidate(record, now, deleted=False, sure=True))

    def _recorded(self, pod: Pod) -> None:
        record = valid_record(pod)
        if record is not None and self._present.get(record.pod) != record:
            self._present[record.pod] = record
            self._records.save(record)

    def _gone(self, pod: Pod, now: float) -> None:
        self.must_publish = self.must_publish or RECORD in pod.metadata.annotations
        record = self._present.pop(pod.metadata.uid, None)
        if record is not None:
            self._candidates[record.pod] = _Candidate(record, now, deleted=True, sure=_is_over(pod))

    def observe(self, running: frozenset[str], now: float) -> tuple[Record, ...]:
        """The orphans after a look at the processes, which found those of these pods."""
        held = []
        for uid, candidate in sorted(self._candidates.items()):
            runs, age = uid in running, now - candidate.since
            settled = age >= self._timing.settle_s
            if candidate.is_orphan(runs, settled):
                held.append(candidate.record)
            if candidate.deleted and runs and uid not in self._running:
                self._records.save(candidate.record)  # kubelet may have started it late
            elif candidate.deleted and not runs and settled:
                self._records.remove(uid)
            if not runs and age >= self._timing.forget_s:
                del self._candidates[uid]
        self._running = running
        return tuple(held)

    def next_look_s(self, now: float) -> float:
        """Time until the next look."""
        soon = any(
            uid in self._running or now - candidate.since < self._timing.settle_s
            for uid, candidate in self._candidates.items()
        )
        return self._timing.looks_s if soon else self._timing.sweeps_s

    @property
    def has_candidates(self) -> bool:
        """Whether a look at the processes can find an orphan."""
        return bool(self._candidates)


def _record(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(RECORD)


def _is_over(pod: Pod) -> bool:
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return has_ended(pod) or bool(statuses and all(one.state.terminated is not None for one in statuses))


class NodePods:
    """Watches the pods of one node, and publishes its orphans."""

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
        """Set when all pods are known and the orphans have been published once."""
        self.looks = 0
        """Number of looks at the processes, each with what was published after it."""
        self._publish, self._notify, self._proc, self._timing = publish, changed, proc, timing
        self._records = Records(folder, report)
        self._tracker = OrphanTracker(self._records, timing)
        self._wake = asyncio.Event()
        which = Selection(fields=f"spec.nodeName={node}")
        self._reflector = Reflector(client, PODS, self._changed, which, pace=pace, report=report)

    def pods(self) -> Collection[Pod]:
        """All pods of the node that the API server has, in any phase."""
        return self._reflector.objects.values()

    def known(self) -> frozenset[str]:
        """UIDs of pods that were given GPUs here and are not known to have ended."""
        return self._tracker.known

    async def run(self) -> None:
        """Watches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._keep_looking())
            tasks.create_task(self._records.keep())

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        self._tracker.pod_changed(old, new, time.monotonic())
        if self._tracker.must_publish:
            self._wake.set()
        self._notify()

    async def _keep_looking(self) -> NoReturn:
        await self._reflector.synced.wait()
        self._tracker.compare(self._records.load(), time.monotonic())
        held: tuple[Record, ...] = ()
        lists = 0
        while True:
            # A list does not show pods that were deleted before it, and the scheduler may wait for a look after that.
            publish = self._tracker.must_publish or self._reflector.counts["lists"] != lists
            self._tracker.must_publish, lists = False, self._reflector.counts["lists"]
            seen, before = self._reflector.version, held
            held = self._tracker.observe(await self._running(), time.monotonic())
            if publish or held != before:
                self._publish(orphans_for(seen, held))
            self.looked.set()
            self.looks += 1
            await self._wait(self._tracker.next_look_s(time.monotonic()))

    async def _running(self) -> frozenset[str]:
        if not self._tracker.has_candidates:
            return frozenset()
        return await asyncio.to_thread(running_pods, self._tracker.known, self._proc)

    async def _wait(self, seconds: float) -> None:
        """Waits until a pod changes or the time has passed, but at least for the time between two looks."""
        await asyncio.sleep(self._timing.looks_s)
        try:
            async with asyncio.timeout(seconds - self._timing.looks_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
