# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The session of a training loop with its agent: steps are reported about once a second, batch sizes come back.

There is no thread: the step that finds something due does it, without waiting.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
import weakref

from cotenant.job import messages
from cotenant.job.blocks import Request, Step, Untimed
from cotenant.job.compute_lock import ComputeLock
from cotenant.job.link import Link
from cotenant.job.noise import Smoothed, estimate
from cotenant.job.numbers import batch_bounds, finite, positive
from cotenant.job.tally import Tally

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal, SupportsFloat

    from cotenant.job.numbers import Number

EVERY = 1.0
"""seconds between reports, unless the agent requests another interval"""
LISTEN_EVERY = 0.1
"""seconds between two checks for messages"""
LONGEST_PAUSE = 30.0
"""seconds; for a longer pause the agent must send the message again"""
NEVER = math.inf
MOST_MESSAGES = 16
"""read at a time, so that a flood of messages cannot delay a step"""

_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_shared: Session | None = None


def connect(
    *,
    batch: int | None = None,
    batch_range: tuple[int, int] | None = None,
    memory_mib_per_sample: float | None = None,
    lr_rule: Literal["sqrt", "adascale"] | None = None,
    floor: float | None = None,
) -> Session:
    """The session of this process; the agent, the compute lock and the first batch size come from the environment.

    A process has one session: while it is open, further calls return it and ignore their arguments.
    """
    global _shared
    if _shared is None or _shared.closed:
        _shared = Session(
            agent=os.environ.get("COTENANT_AGENT"),
            engine=os.environ.get("COTENANT_ENGINE"),
            job=os.environ.get("COTENANT_JOB", ""),
            batch=positive(os.environ.get("COTENANT_BATCH")) or batch,
            batch_range=batch_range,
            memory_mib_per_sample=memory_mib_per_sample,
            lr_rule=lr_rule,
            floor=floor,
        )
    return _shared


class Session:
    """The interface of a training loop. Threads that load data may use it, too."""

    def __init__(
        self,
        *,
        agent: str | None = None,
        engine: str | None = None,
        job: str = "",
        batch: int | None = None,
        batch_range: tuple[int, int] | None = None,
        memory_mib_per_sample: float | None = None,
        lr_rule: Literal["sqrt", "adascale"] | None = None,
        floor: float | None = None,
    ) -> None:
        self.closed = False
        self._job = job
        self._named = positive(batch)
        self._range = batch_bounds(batch_range, self._named)
        self._memory_mib_per_sample = finite(memory_mib_per_sample)
        self._lr_rule = lr_rule
        self._floor = finite(floor)

        self._link = Link(agent) if agent else None
        self._compute_lock = ComputeLock(engine) if engine else None
        self._lock = threading.RLock()  # reentrant: a signal handler may close the session at any point
        self._every = EVERY
        self._report_at = self._listen_at = 0.0 if agent else NEVER
        self._paused_until: float | None = None

        self._used = self._requested = messages.BatchSetting(self._named or 1, 1.0)
        self._request_changed = False
        self._first = True
        """the next step is the first of its batch size: it compiles and warms up, so it is not counted"""

        self._answered_at = time.monotonic()
        self._noise: tuple[Number, Number] = (None, None)
        self._smoothed = Smoothed()
        self._tally = Tally()
        _open_sessions.add(self)
        with self._lock:
            self._talk(time.monotonic())

    # Queries

    @property
    def batch_size(self) -> int:
        """The batch size to use from now on; read it where your loop can change it, at an epoch or every N steps."""
        with self._lock:
            self._listen()
            if self._used is not self._requested:
                if self._used.size != self._requested.size:
                    self._send_report(time.monotonic())
                    self._tally.begin(None)
                    self._first = True
                self._used = self._requested
            return self._used.size

    @property
    def used_batch_size(self) -> int:
        """The batch size that `batch_size` returned last; reading it changes nothing."""
        return self._used.size

    @property
    def lr_scale(self) -> float:
        """The factor on your learning rate that belongs to `used_batch_size`."""
        return self._used.lr_scale

    @property
    def batch_changed(self) -> bool:
        """Whether another batch size was requested since this was last read."""
        with self._lock:
            self._listen()
            changed, self._request_changed = self._request_changed, False
            return changed

    def sizes(self, steps: int, *, every: int = 50) -> Iterator[int]:
        """The batch size for each of `steps` steps; it changes at most every `every` steps."""
        size = 1
        for step in range(steps):
            if step % max(1, every) == 0:
                size = self.batch_size
            yield size

    # Reports

    def step(self, *, samples: int, grad_sqr: Number = None, grad_var: Number = None) -> Step:
        """Wraps one training step without the wait for its input. The result must be computed when the block ends.

        On a simulated GPU the step holds the compute lock.
        """
        return Step(self, samples, grad_sqr, grad_var)

    def report(
        self, *, samples: int, seconds: float, steps: int = 1, grad_sqr: Number = None, grad_var: Number = None
    ) -> None:
        """Reports steps that you timed yourself; call it right after them."""
        busy, whole_steps = finite(seconds), positive(steps)
        if busy is not None and busy >= 0 and whole_steps is not None:
            self._count(whole_steps, samples, busy, time.monotonic(), grad_sqr, grad_var)

    def request(self) -> Request:
        """Wraps the answer to one request of a server, with its wait. Several threads may answer at a time.

        A server has the latency objective of its pod. It is never paused, and waits for no compute lock.
        """
        return Request(self)

    def answered(self, *, seconds: float, requests: int = 1) -> None:
        """Reports requests whose latency you measured yourself; call it right after them."""
        latency, count = finite(seconds), positive(requests)
        if latency is None or latency < 0 or count is None:
            return
        now = time.monotonic()
        with self._lock:
            if now >= self._listen_at:
                self._listen_at = now + LISTEN_EVERY
                self._listen()
            self._tally.add_latency(latency, count)
            # Answers overlap, so the time of one counts only as far as it is after the one before.
            busy = min(latency, max(0.0, now - self._answered_at))
            self._answered_at = now
            self._count(count, count, busy, now, None, None)

    def gradient_norms(
        self, sqr_small: SupportsFloat, sqr_big: SupportsFloat, small: int, big: int
    ) -> tuple[float, float] | None:
        """Estimates grad_sqr and grad_var from the squared gradient norms of two batch sizes, and reports them.

        The estimates are averaged over calls. None: the numbers allow no estimate.
        """
        norms = finite(sqr_small), finite(sqr_big)
        if norms[0] is None or norms[1] is None or not 0 < small < big:
            return None
        with self._lock:
            self._noise = smoothed = self._smoothed.add(*estimate(norms[0], norms[1], small, big))
        return smoothed

    def untimed(self) -> Untimed:
        """Wraps work that is not training and must not count: compiling, evaluating, writing a checkpoint."""
        return Untimed(self)

    def close(self) -> None:
        """Sends the last report and closes the connection. Further steps run but are not reported."""
        with self._lock:
            if not self.closed and self._link is not None:
                self._listen()
                self._send_report(time.monotonic())
                self._link.send(messages.BYE)
            self._shut()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Between steps

    def _begin(self, now: float) -> None:
        """Starts a new report."""
        self._tally.begin(now)
        if self._link is not None:
            self._report_at = now + self._every

    def _before(self) -> float:
        """Does what is due before a step; the time after it."""
        now = time.monotonic()
        if now >= self._listen_at:
            with self._lock:
                self._listen_at = now + LISTEN_EVERY
                self._listen()
            if self._paused_until is not None:
                now = self._wait_for_resume()
        if self._tally.since is None:
            self._tally.since = now
        return now

    def _wait_for_resume(self) -> float:
        began = now = time.monotonic()
        while (until := self._paused_until) is not None and now < until:
            link = self._link
            if link is None or not link.is_open:
                break
            link.wait(min(1.0, until - now))
            with self._lock:
                self._listen()
            now = time.monotonic()
        self._paused_until = None
        self._tally.exclude(began, now)
        return now

    def _after(self, samples: int, started: float, grad_sqr: Number, grad_var: Number) -> None:
        now = time.monotonic()
        if self._first:
            self._first = False
            with self._lock:
                self._begin(now)
            return
        self._count(1, samples, now - started, now, grad_sqr, grad_var)

    def _count(self, steps: int, samples: int, busy: float, now: float, grad_sqr: Number, grad_var: Number) -> None:
        with self._lock:
            self._tally.add(steps, positive(samples) or 0, busy, now)
            if grad_sqr is not None and grad_var is not None:
                self._noise = grad_sqr, grad_var
            if now >= self._report_at:
                self._talk(now)

    def _talk(self, now: float) -> None:
        if self._link is None:
            return
        self._report_at = now + self._every
        if self._link.open():
            self._every = EVERY
            self._link.send(self._hello())
        self._send_report(now)

    def _hello(self) -> bytes:
        return messages.hello(
            job=self._job,
            pid=os.getpid(),
            batch=self._named,
            batch_range=self._range,
            memory_mib_per_sample=self._memory_mib_per_sample,
            lr_rule=self._lr_rule,
            floor=self._floor,
        )

    def _send_report(self, now: float) -> None:
        if self._link is None or self._tally.since is None or self._tally.steps == 0:
            return
        if self._link.is_open:
            batch = self._used.size if self._named else None
            self._link.send(self._tally.message(now, batch, self._measured_noise()))
        self._begin(now)

    def _measured_noise(self) -> tuple[float, float] | None:
        # Converted to numbers only here: for a scalar on a GPU that waits for the GPU.
        (grad_sqr, grad_var), self._noise = self._noise, (None, None)
        sqr, var = finite(grad_sqr), finite(grad_var)
        return (sqr, var) if sqr is not None and var is not None else None

    def _listen(self) -> None:
        link = self._link
        if link is None:
            return
        for _ in range(MOST_MESSAGES):
            if (message := link.receive()) is None:
                break
            self._apply(messages.action(message))
        if not link.is_open:
            self._paused_until = None

    def _apply(self, action: messages.BatchSetting | messages.ReportInterval | messages.Refusal | str | None) -> None:
        if isinstance(action, messages.BatchSetting):
            least, most = self._range or (1, messages.LARGEST_BATCH)
            if least <= action.size <= most:
                self._request_changed |= action.size != self._requested.size
                self._requested = action
        elif isinstance(action, messages.ReportInterval):
            self._every = action.every_s
            if self._tally.since is not None:
                self._report_at = self._tally.since + self._every
        elif isinstance(action, messages.Refusal):
            self._give_up(action.why)
        elif action == messages.PAUSE:
            self._paused_until = time.monotonic() + LONGEST_PAUSE
        elif action == messages.RESUME:
            self._paused_until = None

    def _give_up(self, why: str) -> None:
        """Training goes on without the agent, which would refuse every further attempt."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._report_at = self._listen_at = NEVER
        with contextlib.suppress(OSError, ValueError):
            print(f"cotenant: not tuned: {why!a}", file=sys.stderr, flush=True)

    def _shut(self) -> None:
        self.closed = True
        self._report_at = self._listen_at = NEVER
        self._paused_until = None
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._compute_lock is not None:
            self._compute_lock.close()
            self._compute_lock = None

    def _forget(self) -> None:
        """Closes the connections in a forked child: they are the parent's, and would outlive it if held open here."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._shut()


def _close_all() -> None:
    for session in list(_open_sessions):
        session.close()


def _forget_all() -> None:
    global _shared
    _shared = None
    for session in list(_open_sessions):
        session._forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
