# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Records the decisions of an engine, in a thread of its own and in bounded space.

Jobs never wait for it: if the disk is full, or lines come faster than they can be written, lines are left out, and the
next one begins a new part with the whole cluster.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from cotenant import __version__
from cotenant.core.cluster import Cluster
from cotenant.core.model import Job, Slot
from cotenant.core.placement.policies import queue_name
from cotenant.core.placement.ranking import Policy
from cotenant.core.units import Seconds
from cotenant.history.segments import Segments
from cotenant.wire.decision import RecordedCompany, RecordedMildness, RecordedNode, beliefs, specs
from cotenant.wire.recording import Arrived, Begin, Decided, Ended, Line, encode_line

MOST_PENDING = 1_000
"""lines that may wait for the disk"""
TOGETHER_S = 0.02
"""for which lines are collected before they are written; a process that is killed loses them. To wake the thread for
each line costs ten times as much as the line itself, and the engine has to wait meanwhile: Python runs one thread at a
time."""
MOST_BELIEVED = 64
"""nodes of a cluster up to which predicted speeds are recorded with each decision"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """What a policy was given and what it answered, as values that never change."""

    at: float
    policy: Policy
    job: Job
    cluster: Cluster
    slots: tuple[Slot, ...]
    """none: the job waits"""
    waits: str = ""
    """why it waits although the policy may find a slot"""
    crowding: float | None = 0.0
    closed: Collection[str] = ()
    offered: frozenset[str] | None = None
    """the only nodes that were considered; None: all"""
    companies: tuple[RecordedCompany, ...] = ()
    mildness: tuple[RecordedMildness, ...] = ()
    partial: bool = False

    def with_beliefs(self) -> "Considered":
        """With the speeds that the policy predicted. Call it at once: they change with every measurement."""
        if not self.policy.more_checks:
            return self
        if len(self.cluster) > MOST_BELIEVED:
            return replace(self, partial=True)
        companies, mildness = beliefs(self.policy, self.job, self.cluster)
        return replace(self, companies=companies, mildness=mildness)


class DecisionRecorder:
    """Writes lines in the order of the calls. `failed` is called with a message when writing begins to fail."""

    def __init__(
        self,
        segments: Segments,
        begin: Callable[[], Begin],
        failed: Callable[[str], object] = lambda text: None,
    ) -> None:
        """`begin` describes the engine, without nodes; it is called in another thread."""
        self._segments, self._begin, self._failed = segments, begin, failed
        self._thread = ThreadPoolExecutor(1, "decisions")
        self._turn = threading.Lock()
        self._pending: deque[tuple[float, Callable[[], None]]] = deque()
        """what writes each line, and when it came in seconds since 1970"""
        self._awaited = False
        """whether the thread is going to write what is pending"""
        self._hurry = threading.Event()
        self._works = True
        self._gap = True
        self._came = 0.0
        """when the line came that is written now"""
        self._last: Cluster | None = None
        self._shorter: tuple[frozenset[str] | None, tuple[str, ...], _Listed] = None, (), (None, ())
        self._mix: object = None

    def job(self, line: Arrived, cluster: Cluster | None = None) -> None:
        """`cluster` is that of the moment: a recording that has not begun begins with it."""
        self._submit(lambda: self._write(line, cluster))

    def decided(self, considered: Considered) -> None:
        self._submit(lambda: self._write_decision(considered))

    def ended(self, make: Callable[[], Ended]) -> None:
        """`make` is called in another thread, because it may have to read the history."""
        self._submit(lambda: self._write(make()))

    def snapshot(self, cluster: Cluster) -> None:
        """Records all nodes, for instance at the start of an engine."""
        self._submit(lambda: self._write_begin(cluster))

    def parts(self) -> list[int]:
        """The numbers of all parts, the oldest first."""
        self.flush()
        return self._segments.parts()

    def part(self, number: int, since: float = 0.0) -> list[bytes]:
        """The lines of a part; none if it was deleted, or does not reach beyond a time in seconds since 1970."""
        lines = list(self._segments.read(number))
        return lines if since <= 0 or any(time_of(line) >= since for line in reversed(lines)) else []

    def lines(self, since: float = 0.0) -> Iterator[bytes]:
        """The recorded lines of the parts that reach beyond a time: a part is understood only as a whole."""
        return (line for number in self.parts() for line in self.part(number, since))

    def flush(self) -> None:
        """Waits until all lines are written."""
        self._hurry.set()
        try:
            self._thread.submit(lambda: None).result()
        finally:
            self._hurry.clear()

    def close(self) -> None:
        self._hurry.set()
        self._thread.shutdown()
        self._segments.close()

    def _submit(self, write: Callable[[], None]) -> None:
        with self._turn:
            if len(self._pending) >= MOST_PENDING:
                self._gap = True
                return
            self._pending.append((time.time(), write))
            if self._awaited:
                return
            self._awaited = True
        self._thread.submit(self._write_pending)

    def _write_pending(self) -> None:
        """Writes the lines that came within `TOGETHER_S`; fewer if `flush` or `close` waits for them."""
        self._hurry.wait(TOGETHER_S)
        while True:
            with self._turn:
                if not self._pending:
                    self._awaited = False
                    return
                self._came, write = self._pending.popleft()
            try:
                write()
                self._works = True
            except Exception as error:  # noqa: BLE001 -- whatever is wrong with a line, jobs are not affected
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._gap = True
        if self._works:
            self._failed(f"decisions cannot be recorded: {error}; jobs are not affected")
        self._works = False

    def _write(self, line: Line, cluster: Cluster | None = None) -> None:
        known = cluster or self._last
        if self._gap and known is not None:
            self._write_begin(known)
        if not self._gap:
            self._segments.append(encode_line(line))

    def _write_begin(self, cluster: Cluster) -> None:
        """Begins a new part, which is understood without the parts before it. It begins when the line came, not when it
        is written: what came meanwhile belongs to it."""
        nodes = tuple(RecordedNode(machine=node.machine, tenants=node.tenants) for node in cluster)
        head = self._begin()
        at = Seconds(min(head.at, self._came))
        self._segments.begin(encode_line(replace(head, at=at, nodes=nodes)))
        self._last, self._gap, self._mix = cluster, False, None

    def _write_decision(self, one: Considered) -> None:
        if self._gap or self._segments.is_full or self._last is None:
            self._write_begin(one.cluster)
        before, cluster = self._last, one.cluster
        assert before is not None
        changed = _changed(before, cluster)
        mix = one.policy.known.mix
        offered, left_out = self._listed(one.offered, cluster)
        line = Decided(
            at=Seconds(one.at),
            job=one.job,
            slots=one.slots,
            policy=one.policy.name,
            queue=queue_name(one.policy),
            nodes=tuple(
                RecordedNode(machine=node.machine, tenants=node.tenants) for node in map(cluster.node, changed)
            ),
            gone=tuple(sorted(set(before.names) - set(cluster.names))) if before.names is not cluster.names else (),
            offered=offered,
            closed=(*one.closed, *left_out),
            waits=one.waits,
            crowding=one.crowding,
            mix=None if mix is self._mix else specs(mix),
            companies=one.companies,
            mildness=one.mildness,
            partial=one.partial,
        )
        self._segments.append(encode_line(line))
        self._last, self._mix = cluster, mix

    def _listed(self, offered: frozenset[str] | None, cluster: Cluster) -> "_Listed":
        """As `_shorter`, remembered for the last set: most decisions are about the same nodes."""
        if self._shorter[0] is not offered or self._shorter[1] is not cluster.names:
            self._shorter = offered, cluster.names, _shorter(offered, cluster)
        return self._shorter[2]


def begin_line(at: float, engine: str, policy: str, queue: str, backfill: bool) -> Begin:
    """The description of an engine, without nodes."""
    return Begin(at=Seconds(at), engine=engine, cotenant=__version__, policy=policy, queue=queue, backfill=backfill)


def _changed(before: Cluster, now: Cluster) -> list[str]:
    """The names of the nodes whose values differ, or that are new. Equal versions mean equal values."""
    if before.names == now.names:
        return [now.names[i] for i in np.flatnonzero(before.versions != now.versions)]
    return [
        name for name in now.names if name not in before.index or before.node(name).version != now.node(name).version
    ]


_Listed = tuple[tuple[str, ...] | None, tuple[str, ...]]
"""the only nodes that were considered (None: all others), and those that were not"""


def _shorter(offered: frozenset[str] | None, cluster: Cluster) -> _Listed:
    """The nodes that were considered, or all others, whichever are fewer: most pods are offered almost all nodes."""
    if offered is None:
        return None, ()
    there = cluster.index.keys()
    left_out = there - offered
    if 2 * len(left_out) <= len(there):
        return None, tuple(sorted(left_out))
    return tuple(sorted(offered & there)), ()


def begins_part(line: bytes) -> bool:
    """Whether a recorded line is the first one of its part."""
    return b'"type":"begin"' in line[:60]


class _Timed(msgspec.Struct):
    at: float = 0.0


_timed = msgspec.json.Decoder(_Timed)


def time_of(line: bytes) -> float:
    """When a recorded line was written; 0 if it cannot be read."""
    try:
        return _timed.decode(line).at
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0.0
