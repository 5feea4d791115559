# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tuner of one node: reports of jobs go to the coordinator of their GPU, and its actions go to the jobs.

A job on several GPUs is measured but not tuned: its batch is spread over GPUs that have different neighbours.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

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
from cotenant.metrics.figures import TunerState
from cotenant.node.agent import Connected, Disconnected, JobEvent, Reported
from cotenant.signals import Signal
from cotenant.wire import agent as messages

TICK_S = 0.25
"""between two ticks of an engine"""
ABSURD_GRADIENT = 1e30
"""squared norms of gradients from here on are ignored: an average of such numbers means nothing"""


class TuningRequest(Protocol):
    """What the owner of a job requested; what is not set comes from the job itself."""

    @property
    def tune(self) -> bool: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def batch_range(self) -> tuple[int, int] | None: ...
    @property
    def floor(self) -> float | None: ...
    @property
    def workload(self) -> str | None: ...
    @property
    def estimate_s(self) -> float | None: ...


class TunedJob(Protocol):
    """A run of a job on its GPUs."""

    @property
    def id(self) -> str: ...
    @property
    def gpus(self) -> Gpus: ...
    @property
    def memory(self) -> MiB | None:
        """Its limit on each GPU; None: not limited."""
        ...

    @property
    def since(self) -> float: ...
    @property
    def request(self) -> TuningRequest: ...


class Tuner:
    """One coordinator for each GPU. Called from one event loop; times are those of time.monotonic."""

    def __init__(self, send: Callable[[str, messages.ToJob], object], settings: Tuning | None = None) -> None:
        """`send` passes a message on to a job."""
        self.received: Signal[[JobEvent]] = Signal()
        """a tenant sent a message"""
        self.disturbed: Signal[[int, float, bool]] = Signal()
        """sent with a GPU, the time, and whether trials of batch sizes disturbed it (else other work did)"""
        self.noted: Signal[[str, str]] = Signal()
        """sent with a job and a sentence for its owner"""
        self.measured_elsewhere = False
        """a listener measures too, so other work is looked for even if no batch size is tried"""
        self.tenants: dict[str, TunedJob] = {}
        self._send, self._settings = send, settings or Tuning()
        self._rejected: set[str] = set()
        """jobs for which `noted` was sent because they cannot be tuned"""
        self._coordinators: dict[int, Coordinator] = {}
        self._changes: Counter[str] = Counter()
        """batch sizes that each job was asked to use"""

    @property
    def idle(self) -> bool:
        """Whether no batch size is tried."""
        return all(coordinator.idle for coordinator in self._coordinators.values())

    def add(self, job: TunedJob) -> None:
        self.tenants[job.id] = job

    def remove(self, job: str, at: float) -> None:
        tenant = self.tenants.pop(job, None)
        self._rejected.discard(job)
        del self._changes[job]
        for gpu in tenant.gpus if tenant else ():
            self._handle(gpu, Left(at=Seconds(at), job=job))

    def tick(self, at: float) -> None:
        for gpu in self._coordinators:
            self._handle(gpu, Tick(at=Seconds(at)))

    def disturb(self, gpu: int, at: float) -> None:
        """Work that is not a job's uses a GPU."""
        self.disturbed.send(gpu, at, False)
        self._handle(gpu, Disturbed(at=Seconds(at)))

    def batch(self, job: str) -> int | None:
        """The batch size that a job was last asked to use."""
        coordinator = self._coordinator_of(job)
        return None if coordinator is None else coordinator.sizes().get(job)

    def changes(self, job: str) -> int:
        """How many batch sizes a job was asked to use."""
        return self._changes[job]

    def state(self, job: str) -> TunerState:
        """What is done with a job, for the metrics."""
        coordinator = self._coordinator_of(job)
        if coordinator is None or not coordinator.can_tune(job):
            return TunerState.OFF
        if not coordinator.idle:
            return TunerState.TRYING
        return TunerState.WAITING if self.chosen(job) is None else TunerState.CHOSEN

    def solo(self, job: str) -> float | None:
        """Samples per second alone at its own batch size; None: not measured."""
        coordinator = self._coordinator_of(job)
        return None if coordinator is None else coordinator.solo(job)

    def untuned(self, job: str) -> Trial | None:
        """The last trial of a job and its neighbours at their own batch sizes."""
        coordinator = self._coordinator_of(job)
        trials = [] if coordinator is None else coordinator.history(job)
        return next((one for one in reversed(trials) if one.kind == "default" and one.measured), None)

    def chosen(self, job: str) -> int | None:
        """The batch size that tuning chose last, which may be the job's own; None: nothing was chosen yet."""
        coordinator = self._coordinator_of(job)
        trials = [] if coordinator is None else coordinator.history(job)
        return next((one.sizes[job] for one in reversed(trials) if one.kind == "choice"), None)

    def history(self, job: str) -> list[dict[str, Any]]:
        """All trials of a job; times are seconds since it was placed."""
        coordinator = self._coordinator_of(job)
        if coordinator is None:
            return []
        since = self.tenants[job].since
        return [asdict(trial) | {"at": round(trial.at - since, 1)} for trial in coordinator.history(job)]

    def handle(self, event: JobEvent) -> None:
        """A message of a job."""
        tenant = self.tenants.get(event.job)
        if tenant is None:
            return
        self.received.send(event)
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
        self._handle(gpu, translated)
        if not coordinator.idle:  # batch sizes are tried, for which some jobs pause
            self.disturbed.send(gpu, event.at, True)

    def _coordinator_of(self, job: str) -> Coordinator | None:
        gpus = self.tenants[job].gpus if job in self.tenants else ()
        return self._coordinators.get(gpus[0]) if len(gpus) == 1 else None

    def _handle(self, gpu: int, event: Event) -> None:
        if gpu in self._coordinators:
            for action in self._coordinators[gpu].handle(event):
                self._changes[action.job] += isinstance(action, SetBatch)
                self._send(action.job, message_of(action))


def coordinator_event(event: JobEvent, tenant: TunedJob) -> Event:
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


def _joined(event: Connected, at: Seconds, tenant: TunedJob) -> Joined:
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
