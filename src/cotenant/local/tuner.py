# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tuning loop of one machine: jobs report to the agent's socket, and one coordinator per GPU sets batch sizes.

A job on several GPUs is measured but not tuned: its batch is spread over GPUs that have different neighbours.
"""

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

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
from cotenant.local.events import log_error
from cotenant.local.supervisor import look_at
from cotenant.local.tenants import PlacedJob
from cotenant.node.agent import AgentServer, Connected, Disconnected, JobEvent, Reported
from cotenant.node.compute_lock import ComputeLockServer
from cotenant.node.foreign import ForeignWork
from cotenant.node.launch import Paths
from cotenant.signals import Signal
from cotenant.wire import agent as messages

TICK_S = 0.25
ABSURD_GRADIENT = 1e30
"""squared norms of gradients from here on are ignored: an average of such numbers means nothing"""
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
        self.heard: Signal[[JobEvent]] = Signal()
        """a tenant sent a message"""
        self.disturbed: Signal[[int, float, bool]] = Signal()
        """sent with a GPU, the time, and whether trials of batch sizes disturbed it (else foreign work did)"""
        self.ticked: Signal[[float]] = Signal()
        self.noted: Signal[[str, str]] = Signal()
        """sent with a job and a sentence for its owner"""
        self.measured_elsewhere = False
        """a listener measures too, so foreign work is looked for even if no batch size is tried"""
        self._supervisor_of, self._cores_of = supervisor_of, cores_of
        self._settings = settings or Tuning()
        self._tenants: dict[str, PlacedJob] = {}
        self._rejected: set[str] = set()
        """jobs for which `noted` was sent because they cannot be tuned"""
        self._coordinators: dict[int, Coordinator] = {}
        self._agent = AgentServer(str(paths.agent), job_of=self._job_of, sink=self._hear)
        self._engines = [ComputeLockServer(str(path)) for path in paths.compute_locks.values()]
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
                    self.ticked.send(_now())
                    self._look_for_foreign_work()
                    for coordinator in self._coordinators.values():
                        self._act(coordinator.handle(Tick(at=_now())))
                except (OSError, CotenantError) as error:  # of a disk, for example: the next tick may succeed
                    log_error(f"tuning: {error}")
        finally:
            await self._agent.close()
            for engine in self._engines:
                await engine.close()

    def add(self, job: PlacedJob) -> None:
        self._tenants[job.id] = job

    def remove(self, job: str) -> None:
        tenant = self._tenants.pop(job, None)
        self._rejected.discard(job)
        for gpu in tenant.gpus if tenant else ():
            if gpu in self._coordinators:
                self._act(self._coordinators[gpu].handle(Left(at=_now(), job=job)))

    def batch(self, job: str) -> int | None:
        """The batch size that a job was last asked to use."""
        coordinator = self._coordinator_of(job)
        return None if coordinator is None else coordinator.sizes().get(job)

    def solo(self, job: str) -> float | None:
        """Samples per second alone at its own batch size; None: not measured."""
        coordinator = self._coordinator_of(job)
        return None if coordinator is None else coordinator.solo(job)

    def untuned(self, job: str) -> Trial | None:
        """The last trial of a job and its neighbours at their own batch sizes."""
        coordinator = self._coordinator_of(job)
        trials = [] if coordinator is None else coordinator.history(job)
        return next((one for one in reversed(trials) if one.kind == "default" and one.measured), None)

    def history(self, job: str) -> list[dict[str, Any]]:
        """All trials of a job; times are seconds since it was placed."""
        coordinator = self._coordinator_of(job)
        if coordinator is None:
            return []
        since = self._tenants[job].since
        return [asdict(trial) | {"at": round(trial.at - since, 1)} for trial in coordinator.history(job)]

    def _coordinator_of(self, job: str) -> Coordinator | None:
        gpus = self._tenants[job].gpus if job in self._tenants else ()
        return self._coordinators.get(gpus[0]) if len(gpus) == 1 else None

    def _hear(self, event: JobEvent) -> None:
        tenant = self._tenants.get(event.job)
        if tenant is None:
            return
        self.heard.send(event)
        if len(tenant.gpus) != 1:
            return
        try:
            translated = coordinator_event(event, tenant)
        except ValueError as error:  # the job contradicts itself or its request
            if event.job not in self._rejected:
                self._rejected.add(event.job)
                self.noted.send(event.job, f"not tuned: {error}")
            return
        gpu = tenant.gpus[0]
        coordinator = self._coordinators.setdefault(gpu, Coordinator(f"GPU {gpu}", self._settings))
        self._act(coordinator.handle(translated))
        if not coordinator.idle:  # batch sizes are tried, for which some jobs pause
            self.disturbed.send(gpu, event.at, True)

    def _look_for_foreign_work(self) -> None:
        """Only while something is measured, because it reads the process table."""
        if not self.measured_elsewhere and all(coordinator.idle for coordinator in self._coordinators.values()):
            return
        leaders = {leader: self._cores_of(self._tenants[job].gpus) for leader, job in self._leaders().items()}
        for gpu, share in self._foreign.measure(leaders).items():
            usual = self._usual.setdefault(gpu, deque([share], maxlen=USUAL_LOOKS))
            # Constant foreign work slows every trial alike; only a change of it spoils a comparison.
            changed = abs(share - statistics.median(usual)) > QUIET
            usual.append(share)
            if changed:
                self.disturbed.send(gpu, _now(), False)
            if changed and gpu in self._coordinators:
                self._act(self._coordinators[gpu].handle(Disturbed(at=_now())))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            self._agent.send(action.job, message_of(action))

    def _leaders(self) -> dict[int, str]:
        return {leader: job for job in self._tenants if (leader := self._supervisor_of(job)) is not None}

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


def coordinator_event(event: JobEvent, tenant: PlacedJob) -> Event:
    """A message of a job as an event of the core; ValueError if the job contradicts itself or its request."""
    at = Seconds(event.at)
    match event:
        case Connected():
            return _joined(event, at, tenant)
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
    """An action of the core as a message to a job."""
    match action:
        case SetBatch(size=size, lr_scale=scale):
            return messages.SetBatch(size=size, lr_scale=scale)
        case Pause():
            return messages.Pause()
        case Resume():
            return messages.Resume()
        case ReportEvery(seconds=seconds):
            return messages.ReportEvery(every_s=seconds)


def _joined(event: Connected, at: Seconds, tenant: PlacedJob) -> Joined:
    """The job's own description; its owner's request takes precedence."""
    hello, request = event.hello, tenant.request
    batch = request.batch or hello.batch
    bounds = request.batch_range
    if bounds is None and hello.min is not None and hello.max is not None:
        bounds = (hello.min, hello.max)
    if batch is None or not request.tune:
        bounds = None
    model = None
    if hello.memory_mib_per_sample is not None:
        model = MemoryModel(baseline=MiB(0), per_sample=hello.memory_mib_per_sample, limit=tenant.memory)
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
        remaining=None if expected is None else Seconds(max(0.0, expected - (at - tenant.since))),
    )


def _now() -> Seconds:
    return Seconds(time.monotonic())
