# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tuning loop of one machine: its sockets, its ticks, and other work on the cores of simulated GPUs."""

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from cotenant.core.model import Gpus
from cotenant.core.tuning.episode import Tuning
from cotenant.errors import CotenantError
from cotenant.local.events import log_error
from cotenant.local.processes import look_at
from cotenant.node.agent import AgentServer, JobEvent
from cotenant.node.compute_lock import ComputeLockServer
from cotenant.node.foreign import ForeignWork
from cotenant.node.launch import Paths
from cotenant.node.tuning import TICK_S, Tuner
from cotenant.signals import Signal
from cotenant.wire.agent import ToJob

QUIET = 0.08
"""change in the share of a simulated GPU's cores that foreign work uses, above which a measurement is disturbed"""
USUAL_LOOKS = 8
"""the usual foreign work is the median of this many looks, which are about 1 s apart"""
HISTORY = "tuning.json"


class TuningLoop:
    """Serves the sockets of the agent and of the simulated GPUs' compute locks in the running event loop."""

    def __init__(
        self,
        paths: Paths,
        supervisor_of: Callable[[str], int | None],
        cores_of: Callable[[Gpus], tuple[int, ...]] = lambda gpus: (),
        settings: Tuning | None = None,
    ) -> None:
        self.ticked: Signal[[float]] = Signal()
        self.tuner = Tuner(self._send, settings)
        self._supervisor_of, self._cores_of = supervisor_of, cores_of
        mode = 0o666 if paths.shared else 0o600
        self._agent = AgentServer(str(paths.agent), job_of=self._job_of, sink=self._handle, mode=mode)

        def admits(pid: int) -> bool:
            return not paths.shared or self._job_of(pid) is not None

        locks = paths.compute_locks.values()
        self._engines = [ComputeLockServer(str(path), mode=mode, admits=admits) for path in locks]
        self._usual: dict[int, deque[float]] = {}
        self._foreign = ForeignWork({gpu: cores for gpu in paths.compute_locks if (cores := cores_of((gpu,)))})

    async def run(self) -> None:
        """Runs until it is cancelled."""
        await self._agent.start()
        for engine in self._engines:
            await engine.start()
        try:
            while True:
                await asyncio.sleep(TICK_S)
                try:
                    self.ticked.send(time.monotonic())
                    self._look_for_foreign_work()
                    self.tuner.tick(time.monotonic())
                except (OSError, CotenantError) as error:  # of a disk, for example: the next tick may succeed
                    log_error(f"tuning: {error}")
        finally:
            await self._agent.close()
            for engine in self._engines:
                await engine.close()

    def remove(self, job: str) -> None:
        self.tuner.remove(job, time.monotonic())

    def _send(self, job: str, message: ToJob) -> None:
        self._agent.send(job, message)

    def _handle(self, event: JobEvent) -> None:
        self.tuner.handle(event)

    def _look_for_foreign_work(self) -> None:
        """Only while something is measured, because it reads the process table."""
        if not self.tuner.measured_elsewhere and self.tuner.idle:
            return
        leaders = {leader: self._cores_of(self.tuner.tenants[job].gpus) for leader, job in self._leaders().items()}
        for gpu, share in self._foreign.measure(leaders).items():
            usual = self._usual.setdefault(gpu, deque([share], maxlen=USUAL_LOOKS))
            # Constant foreign work slows every trial alike; only a change of it spoils a comparison.
            changed = abs(share - statistics.median(usual)) > QUIET
            usual.append(share)
            if changed:
                self.tuner.disturb(gpu, time.monotonic())

    def _leaders(self) -> dict[int, str]:
        return {leader: job for job in self.tuner.tenants if (leader := self._supervisor_of(job)) is not None}

    def _job_of(self, pid: int) -> str | None:
        """The job whose supervisor is this process or one of its ancestors."""
        leaders = self._leaders()
        for _ in range(64):
            if pid in leaders:
                return leaders[pid]
            seen = look_at(pid)
            if seen is None or seen.parent <= 1:
                return None
            pid = seen.parent
        return None


def save_history(folder: Path, history: list[dict[str, Any]]) -> None:
    """Writes a job's trials beside its logs. They are only shown, so a failed write is only logged."""
    if history:
        try:
            (folder / HISTORY).write_bytes(msgspec.json.encode(history))
        except OSError as error:
            log_error(f"the tuning history in {folder} could not be written: {error}")


def read_history(folder: Path) -> tuple[dict[str, Any], ...]:
    """The tuning history of a job that has ended; empty if there is none, or if the file is damaged."""
    try:
        return msgspec.json.decode((folder / HISTORY).read_bytes(), type=tuple[dict[str, Any], ...])
    except (OSError, msgspec.MsgspecError):
        return ()
