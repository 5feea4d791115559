# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tuning loop of one machine: jobs report to the agent's socket, one coordinator per GPU decides, jobs are told.

A job on several GPUs is measured but not tuned: its batch is spread over devices that have different neighbours.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from cotenant.core.candidates import MemoryModel
from cotenant.core.coordination import Coordinator
from cotenant.core.events import Action, Event, Joined, Left, Pause, Resume, SetBatch, StepReport, Tick
from cotenant.core.goodput import GradientNoise, LearningRate
from cotenant.core.model import Gpus
from cotenant.core.units import MiB, Seconds
from cotenant.node.agent import AgentServer, Connected, Disconnected, JobEvent, Reported
from cotenant.node.engine import EngineServer
from cotenant.wire import agent as messages
from cotenant.wire.local import JobRequest

TICK_S = 0.5


class TuningLoop:
    """Serves the sockets of the agent and of the simulated engines in the running event loop."""

    def __init__(self, agent: str, engines: Mapping[int, str], leader_of: Callable[[str], int | None]) -> None:
        self._leader_of = leader_of
        self._seats: dict[str, tuple[Gpus, JobRequest, MiB | None]] = {}
        self._speeds: dict[str, float] = {}
        self._coordinators: dict[int, Coordinator] = {}
        self._agent = AgentServer(agent, job_of=self._job_of, sink=self._hear)
        self._engines = [EngineServer(path) for path in engines.values()]

    async def run(self) -> None:
        """Until cancelled."""
        await self._agent.start()
        for engine in self._engines:
            await engine.start()
        try:
            while True:
                await asyncio.sleep(TICK_S)
                for coordinator in self._coordinators.values():
                    self._act(coordinator.handle(Tick(at=_now())))
        finally:
            await self._agent.close()
            for engine in self._engines:
                await engine.close()

    def seat(self, job: str, gpus: Gpus, request: JobRequest, memory: MiB | None) -> None:
        """A job is to run on these GPUs, with so much memory on each."""
        self._seats[job] = (gpus, request, memory)

    def unseat(self, job: str) -> None:
        gpus, _, _ = self._seats.pop(job, ((), None, None))
        self._speeds.pop(job, None)
        for gpu in gpus:
            if gpu in self._coordinators:
                self._act(self._coordinators[gpu].handle(Left(at=_now(), job=job)))

    def batch(self, job: str) -> int | None:
        """The size a job was last asked to use."""
        coordinator = self._coordinator_of(job)
        return None if coordinator is None else coordinator.sizes().get(job)

    def speed(self, job: str) -> float | None:
        """Of its speed alone, where that is known."""
        coordinator = self._coordinator_of(job)
        solo = None if coordinator is None else coordinator.solo(job)
        return None if not solo or job not in self._speeds else self._speeds[job] / solo

    def history(self, job: str) -> list[dict[str, Any]]:
        """Everything that was tried for a job."""
        coordinator = self._coordinator_of(job)
        return [] if coordinator is None else [asdict(trial) for trial in coordinator.history(job)]

    def _coordinator_of(self, job: str) -> Coordinator | None:
        gpus = self._seats[job][0] if job in self._seats else ()
        return self._coordinators.get(gpus[0]) if len(gpus) == 1 else None

    def _hear(self, event: JobEvent) -> None:
        if event.job not in self._seats:
            return
        gpus, request, memory = self._seats[event.job]
        heard = self._translated(event, request, memory)
        if len(gpus) != 1:
            return
        coordinator = self._coordinators.setdefault(gpus[0], Coordinator(f"GPU {gpus[0]}"))
        self._act(coordinator.handle(heard))

    def _translated(self, event: JobEvent, request: JobRequest, memory: MiB | None) -> Event:
        at = Seconds(event.at)
        match event:
            case Connected():
                return _joined(event, at, request, memory)
            case Reported(steps=steps):
                if steps.wall_s > 0:
                    self._speeds[event.job] = steps.samples / steps.wall_s
                known = steps.grad_sqr is not None and steps.grad_var is not None
                return StepReport(
                    at=at,
                    job=event.job,
                    samples=steps.samples,
                    steps=steps.n,
                    wall=Seconds(steps.wall_s),
                    busy=Seconds(steps.busy_s),
                    batch=steps.batch,
                    noise=GradientNoise(steps.grad_sqr or 0.0, steps.grad_var or 0.0) if known else None,
                )
            case Disconnected():
                return Left(at=at, job=event.job)

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SetBatch(job=job, size=size, lr_scale=scale):
                    self._agent.send(job, messages.SetBatch(size=size, lr_scale=scale))
                case Pause(job=job):
                    self._agent.send(job, messages.Pause())
                case Resume(job=job):
                    self._agent.send(job, messages.Resume())

    def _job_of(self, pid: int) -> str | None:
        """The job whose leader is this process or one of its ancestors."""
        leaders = {leader: job for job in self._seats if (leader := self._leader_of(job)) is not None}
        for _ in range(64):
            if pid in leaders:
                return leaders[pid]
            pid = _parent(pid)
            if pid <= 1:
                return None
        return None


def _joined(event: Connected, at: Seconds, request: JobRequest, memory: MiB | None) -> Joined:
    """What the job says of itself, within what its owner allows."""
    hello = event.hello
    batch = hello.batch or request.batch
    bounds = request.batch_range
    if bounds is None and hello.min is not None and hello.max is not None:
        bounds = (hello.min, hello.max)
    if batch is None or bounds is None or not bounds[0] <= batch <= bounds[1]:
        bounds = None
    model = None
    if hello.memory_mib_per_sample is not None:
        model = MemoryModel(baseline=MiB(0), per_sample=hello.memory_mib_per_sample, limit=memory)
    return Joined(
        at=at,
        job=event.job,
        batch=batch,
        bounds=bounds,
        memory=model,
        learning_rate=None if hello.lr_rule is None else LearningRate(hello.lr_rule),
        floor=request.floor if request.floor is not None else hello.floor,
        workload=request.workload,
    )


def _now() -> Seconds:
    return Seconds(time.monotonic())


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
