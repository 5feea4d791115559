# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tuning loop of one machine: jobs report to the agent's socket, one coordinator per GPU decides, jobs are told.

A job on several GPUs is measured but not tuned: its batch is spread over devices that have different neighbours.
"""

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cotenant.core.model import Gpus
from cotenant.core.tuning.candidates import MemoryModel
from cotenant.core.tuning.coordination import Coordinator, Trial, Tuning
from cotenant.core.tuning.events import (
    Action,
    Disturbed,
    Event,
    Joined,
    Left,
    Pause,
    ReportEvery,
    Resume,
    SetBatch,
    StepReport,
    Tick,
)
from cotenant.core.tuning.goodput import GradientNoise, LearningRate
from cotenant.core.units import MiB, Seconds
from cotenant.errors import CotenantError
from cotenant.local.events import complain
from cotenant.local.supervisor import look_at
from cotenant.node.agent import AgentServer, Connected, Disconnected, JobEvent, Reported
from cotenant.node.compute_lock import ComputeLockServer
from cotenant.node.foreign import ForeignWork
from cotenant.wire import agent as messages
from cotenant.wire.local import JobRequest

TICK_S = 0.25
ABSURD_GRADIENT = 1e30
"""a squared norm from which on nothing is learned: averages of such numbers are none"""
QUIET = 0.08
"""share of a simulated device's cores by which the work of others may change while something is measured there"""
USUAL_LOOKS = 8
"""what others usually do is the median of so many looks, about a second apart"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A job and the GPUs it runs on."""

    gpus: Gpus
    request: JobRequest
    memory: MiB | None
    """on each GPU; None: not limited"""
    since: float
    """of the monotonic clock"""


class TuningLoop:
    """Serves the sockets of the agent and of the simulated engines in the running event loop."""

    def __init__(
        self,
        agent: str,
        engines: Mapping[int, str],
        leader_of: Callable[[str], int | None],
        *,
        cores_of: Callable[[Gpus], tuple[int, ...]] = lambda gpus: (),
        say: Callable[[str, str], None] = lambda job, text: None,
        settings: Tuning | None = None,
        hear: Callable[[JobEvent], None] = lambda event: None,
        disturbed: Callable[[int, float, bool], None] = lambda gpu, at, tuning: None,
        tick: Callable[[float], bool] = lambda at: False,
    ) -> None:
        """`say` is called with a job and a sentence about it, for its owner. Whoever else measures is told what is
        heard and which GPU was disturbed (whether by tuning), and says with each tick whether it still measures."""
        self._leader_of, self._cores_of, self._say = leader_of, cores_of, say
        self._hear_too, self._disturbed, self._tick = hear, disturbed, tick
        self._settings = settings or Tuning()
        self._seats: dict[str, Seat] = {}
        self._refused: set[str] = set()
        self._coordinators: dict[int, Coordinator] = {}
        self._agent = AgentServer(agent, job_of=self._job_of, sink=self._hear)
        self._engines = [ComputeLockServer(path) for path in engines.values()]
        self._usual: dict[int, deque[float]] = {}
        self._foreign = ForeignWork({gpu: cores for gpu in engines if (cores := cores_of((gpu,)))})

    async def run(self) -> None:
        """Until cancelled."""
        await self._agent.start()
        for engine in self._engines:
            await engine.start()
        try:
            while True:
                await asyncio.sleep(TICK_S)
                try:
                    self._look_for_foreign_work(self._tick(_now()))
                    for coordinator in self._coordinators.values():
                        self._act(coordinator.handle(Tick(at=_now())))
                except (OSError, CotenantError) as error:  # of a disk, say: the next look may do better
                    complain(f"tuning: {error}")
        finally:
            await self._agent.close()
            for engine in self._engines:
                await engine.close()

    def seat(self, job: str, gpus: Gpus, request: JobRequest, memory: MiB | None) -> None:
        """A job is to run on these GPUs, with so much memory on each."""
        self._seats[job] = Seat(gpus=gpus, request=request, memory=memory, since=time.monotonic())

    def unseat(self, job: str) -> None:
        seat = self._seats.pop(job, None)
        self._refused.discard(job)
        for gpu in seat.gpus if seat else ():
            if gpu in self._coordinators:
                self._act(self._coordinators[gpu].handle(Left(at=_now(), job=job)))

    def batch(self, job: str) -> int | None:
        """The size a job was last asked to use."""
        coordinator = self._coordinator_of(job)
        return None if coordinator is None else coordinator.sizes().get(job)

    def solo(self, job: str) -> float | None:
        """Its samples per second alone at its own batch size, where that was measured."""
        coordinator = self._coordinator_of(job)
        return None if coordinator is None else coordinator.solo(job)

    def untuned(self, job: str) -> Trial | None:
        """The last time that it and its neighbours were measured at their own batch sizes."""
        coordinator = self._coordinator_of(job)
        trials = [] if coordinator is None else coordinator.history(job)
        return next((one for one in reversed(trials) if one.kind == "default" and one.measured), None)

    def history(self, job: str) -> list[dict[str, Any]]:
        """Everything that was tried for a job; times are seconds since it was given its place."""
        coordinator = self._coordinator_of(job)
        if coordinator is None:
            return []
        since = self._seats[job].since
        return [asdict(trial) | {"at": round(trial.at - since, 1)} for trial in coordinator.history(job)]

    def _coordinator_of(self, job: str) -> Coordinator | None:
        gpus = self._seats[job].gpus if job in self._seats else ()
        return self._coordinators.get(gpus[0]) if len(gpus) == 1 else None

    def _hear(self, event: JobEvent) -> None:
        seat = self._seats.get(event.job)
        if seat is None:
            return
        self._hear_too(event)
        if len(seat.gpus) != 1:
            return
        try:
            heard = translated(event, seat)
        except ValueError as error:  # it says of itself what cannot be
            if event.job not in self._refused:
                self._refused.add(event.job)
                self._say(event.job, f"not tuned: {error}")
            return
        gpu = seat.gpus[0]
        coordinator = self._coordinators.setdefault(gpu, Coordinator(f"GPU {gpu}", self._settings))
        self._act(coordinator.handle(heard))
        if not coordinator.idle:  # sizes are being tried, and for that some pause
            self._disturbed(gpu, event.at, True)

    def _look_for_foreign_work(self, measuring: bool) -> None:
        """Only while something is measured: it means to read the table of processes."""
        if not measuring and all(coordinator.idle for coordinator in self._coordinators.values()):
            return
        leaders = {leader: self._cores_of(self._seats[job].gpus) for leader, job in self._leaders().items()}
        for gpu, share in self._foreign.measure(leaders).items():
            usual = self._usual.setdefault(gpu, deque([share], maxlen=USUAL_LOOKS))
            # Others who are always there slow every trial alike; who comes or goes spoils a comparison.
            changed = abs(share - statistics.median(usual)) > QUIET
            usual.append(share)
            if changed:
                self._disturbed(gpu, _now(), False)
            if changed and gpu in self._coordinators:
                self._act(self._coordinators[gpu].handle(Disturbed(at=_now())))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            self._agent.send(action.job, message_of(action))

    def _leaders(self) -> dict[int, str]:
        return {leader: job for job in self._seats if (leader := self._leader_of(job)) is not None}

    def _job_of(self, pid: int) -> str | None:
        """The job whose leader is this process or one of its ancestors."""
        leaders = self._leaders()
        for _ in range(64):
            if pid in leaders:
                return leaders[pid]
            seen = look_at(pid)
            if seen is None or seen.parent <= 1:
                return None
            pid = seen.parent
        return None


def translated(event: JobEvent, seat: Seat) -> Event:
    """What the agent heard, as the core wants it; ValueError where a job contradicts itself."""
    at = Seconds(event.at)
    match event:
        case Connected():
            return _joined(event, at, seat)
        case Reported(steps=steps):
            sqr, var = steps.grad_sqr, steps.grad_var
            known = sqr is not None and var is not None and max(abs(sqr), abs(var)) < ABSURD_GRADIENT
            return StepReport(
                at=at,
                job=event.job,
                samples=steps.samples,
                steps=steps.n,
                wall=Seconds(steps.wall_s),
                busy=Seconds(steps.busy_s),
                batch=steps.batch,
                noise=GradientNoise(sqr or 0.0, var or 0.0) if known else None,
            )
        case Disconnected():
            return Left(at=at, job=event.job)


def message_of(action: Action) -> messages.ToJob:
    """What the core wants, as a job is told it."""
    match action:
        case SetBatch(size=size, lr_scale=scale):
            return messages.SetBatch(size=size, lr_scale=scale)
        case Pause():
            return messages.Pause()
        case Resume():
            return messages.Resume()
        case ReportEvery(seconds=seconds):
            return messages.ReportEvery(every_s=seconds)


def _joined(event: Connected, at: Seconds, seat: Seat) -> Joined:
    """What the job says of itself, within what its owner allows."""
    hello, request = event.hello, seat.request
    batch = request.batch or hello.batch
    bounds = request.batch_range
    if bounds is None and hello.min is not None and hello.max is not None:
        bounds = (hello.min, hello.max)
    if batch is None or not request.tune:
        bounds = None
    model = None
    if hello.memory_mib_per_sample is not None:
        model = MemoryModel(baseline=MiB(0), per_sample=hello.memory_mib_per_sample, limit=seat.memory)
    expected = request.estimate_s
    return Joined(
        at=at,
        job=event.job,
        batch=batch,
        bounds=bounds,
        memory=model,
        learning_rate=None if hello.lr_rule is None else LearningRate(hello.lr_rule),
        floor=request.floor if request.floor is not None else hello.floor,
        workload=request.workload,
        remaining=None if expected is None else Seconds(max(0.0, expected - (at - seat.since))),
    )


def _now() -> Seconds:
    return Seconds(time.monotonic())
