# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How the tenants of a GPU slow each other down on this node, and what follows from it.

A tenant that is alone for a while gets a profile, and the speeds of tenants that share a GPU are passed on to be
learned. Then the one that was placed last is judged again, if the engine subscribes to that.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from cotenant.core.interference import FASTEST
from cotenant.core.sharing.objectives import latency_at
from cotenant.core.units import WHOLE_GPU, MilliGpu, Seconds
from cotenant.errors import InputError
from cotenant.node.agent import Connected, JobEvent, Reported
from cotenant.node.measurement import GIVE_UP_AFTER, LOADING_S, OBSERVE_S, JobUsage, Meter, TenantMeasurement
from cotenant.node.objectives import LatencyObjectives
from cotenant.node.peak_memory import PeakMemory
from cotenant.node.tenant import Knowledge, MeasuredJob, TenantState, TunerRates
from cotenant.signals import Signal
from cotenant.wire.profile import JobProfile, validated


class Newcomer(NamedTuple):
    """The tenant that was placed last on a GPU, once it and its neighbours have been measured together."""

    job: str
    crowding: float
    """waiting jobs for each GPU when it was placed"""
    pairs: frozenset[tuple[str, str]]
    """it and each of its neighbours"""
    text: str
    """the predicted and the measured speed of each tenant"""


class InterferenceMonitor:
    """Called from one event loop; times are those of time.monotonic."""

    def __init__(
        self,
        profiles: Knowledge,
        tuner: TunerRates,
        usage_of: Callable[[str], JobUsage],
        *,
        exclusive_steps: bool,
        observe: Seconds = OBSERVE_S,
    ) -> None:
        """With `exclusive_steps` a step has its GPU to itself, as on simulated GPUs."""
        self.learned: Signal[[]] = Signal()
        """predictions changed, so a waiting job may fit better or worse"""
        self.newcomer_measured: Signal[[Newcomer]] = Signal()
        self.harmful: Signal[[str, str]] = Signal()
        """sent with a job that must leave its GPU, and the reason"""
        self.noted: Signal[[str, str, str]] = Signal()
        """sent with the kind of an event, its job and its text"""
        self._profiles, self._tuner, self._usage_of = profiles, tuner, usage_of
        self._exclusive_steps, self._observe = exclusive_steps, observe
        self._tenants: dict[str, TenantState] = {}
        self._meter = Meter(observe)
        self._meter.measured.subscribe(self._measured)
        self._peaks = PeakMemory(profiles, tuner)
        self._objectives = LatencyObjectives(self.noted)
        self._objectives.violated.subscribe(self._protect)
        self._now = 0.0
        self._separated: set[tuple[str, str]] = set()
        """jobs that were removed, and from which neighbour: each pair is separated once only"""

    # Tenants

    def add(self, job: MeasuredJob) -> None:
        if job.gpu_type is None:
            return
        self._profiles.introduce(job.workload)
        tenant = self._tenants[job.id] = TenantState(
            job, job.workload, job.gpu_type, None, default_batch=job.request.batch
        )
        self._peaks.add(tenant)
        self._objectives.add(job)
        if tenant.gpu is not None and len(self._on(tenant.gpu)) > 1:
            tenant.crowding = job.crowding
        self._tenants_changed(job, job.since)

    def set_limit(self, job: str, limit: MilliGpu, at: float) -> None:
        """The compute share to which a tenant that claims none is limited from now on; 0: it is not limited."""
        tenant = self._tenants.get(job)
        if tenant is not None and tenant.limit != limit:
            was_limited, tenant.limit = tenant.limited, limit
            if tenant.limited != was_limited:
                self._tenants_changed(tenant.job, at)

    def remove(self, job: str, at: float | None = None) -> None:
        """The run has ended. A run that was alone leaves a profile even if its period was not complete, and each run
        leaves its peak memory."""
        now = time.monotonic() if at is None else at
        tenant, period = self._tenants.get(job), self._meter.period(job)
        if tenant is None:
            return
        if period is not None and period.jobs == (job,) and not period.complete and period.usable:
            self._measured_alone(job, period.tenants[job], now - period.since)
        self._peaks.remove(job)
        self._objectives.remove(job)
        del self._tenants[job]
        self._tenants_changed(tenant.job, now)

    def forget(self, job: str) -> None:
        """The job has ended and is not queued again."""
        self._separated = {pair for pair in self._separated if job not in pair}

    def separate(self, newcomer: Newcomer) -> None:
        """These pairs are not judged again."""
        self._separated |= newcomer.pairs

    def _tenants_changed(self, job: MeasuredJob, at: float) -> None:
        for gpu in job.gpus:
            jobs = self._on(gpu)
            for one in jobs:
                self._tenants[one].predicted = None
                self._objectives.neighbours_changed(one)
            several = any(self._tenants[one].gpu is None for one in jobs)
            self._meter.set_tenants(gpu, () if several else jobs, at)

    def _on(self, gpu: int) -> tuple[str, ...]:
        return tuple(job for job, one in self._tenants.items() if gpu in one.job.gpus)

    # Measurements

    def handle(self, event: JobEvent) -> None:
        """A message of a job."""
        tenant = self._tenants.get(event.job)
        if tenant is None:
            return
        if isinstance(event, Connected):
            tenant.default_batch = tenant.job.request.batch or event.hello.batch
        elif isinstance(event, Reported) and event.steps.wall_s > 0:
            tenant.rate = event.steps.samples / event.steps.wall_s
            tenant.busy = event.steps.busy_s / event.steps.wall_s
            self._meter.report(event.job, event.steps, event.at)
            self._objectives.report(event)

    def disturbed(self, gpu: int, at: float, tuning: bool) -> None:
        """Something other than the jobs' own steps used a GPU: trials of batch sizes, or foreign work."""
        (self._meter.tuned if tuning else self._meter.disturbed)(gpu, at)

    def tick(self, at: float) -> None:
        self._now = at
        usage_of = cache(self._usage_of)  # each job's is read once
        self._peaks.tick(usage_of, at)
        self._use_tuner_trials()
        self._tuner.measured_elsewhere = self._meter.tick(usage_of, at)
        self._profiles.save(at)

    def _use_tuner_trials(self) -> None:
        """The tuner's first trial is at the jobs' own batch sizes and free of disturbance: better than any period."""
        for gpu, period in self._meter.incomplete():
            trial = self._tuner.untuned(period.jobs[0])
            rates = trial.measured if trial is not None and trial.at > period.placed_at else None
            if trial is not None and rates is not None and set(rates) == set(period.jobs) and min(rates.values()) > 0:
                period.complete = True
                for job, tenant in period.tenants.items():
                    tenant.batch = tenant.samples = trial.sizes[job]
                    tenant.steps, tenant.wall = 1, trial.sizes[job] / rates[job]
                    tenant.busy = tenant.wall * self._tenants[job].busy
                self._measured(gpu, period.tenants, trial.at - period.placed_at)

    def _measured(self, gpu: int, measurements: Mapping[str, TenantMeasurement], seconds: float) -> None:
        if len(measurements) == 1:
            ((job, measurement),) = measurements.items()
            self._measured_alone(job, measurement, seconds)
        else:
            self._compare(gpu, measurements)

    def _measured_alone(self, job: str, measurement: TenantMeasurement, seconds: float) -> None:
        """Stores a profile. If the tenant is limited to a compute share, its memory is all that is known of it alone;
        it is stored unless a profile says more."""
        tenant = self._tenants[job]
        if not tenant.limited:
            self._add_profile(job, measurement, seconds)
            return
        peak = self._peaks.peak(job)
        if peak is not None and self._profiles.profile(tenant.workload, tenant.gpu_type) is None:
            empty = TenantMeasurement(memory=peak)
            profile = validated(_profile(tenant, empty, seconds, self._exclusive_steps))
            if profile is not None:
                self._profiles.add(profile)

    def _add_profile(
        self, job: str, measurement: TenantMeasurement, seconds: float, *, replace: bool = False
    ) -> JobProfile | None:
        tenant = self._tenants[job]
        if not tenant.comparable(measurement):
            return None
        profile = validated(_profile(tenant, measurement, seconds, self._exclusive_steps))
        if profile is None:
            self._reject(job, tenant, f"{measurement.samples} samples in {measurement.wall:.3g} s")
            return None
        stored = self._profiles.add(profile, replace=replace)
        self.learned.send()  # now others can be measured beside it
        return stored

    def _compare(self, gpu: int, measurements: Mapping[str, TenantMeasurement]) -> None:
        """Learns the speeds of tenants that share a GPU, then has the newest one judged with that knowledge."""
        tenants = {job: self._tenants[job] for job in measurements}
        if not all(tenants[job].comparable(one) for job, one in measurements.items()):
            return
        predicted = self._predict(gpu)
        # A tenant that was never alone has no speed, but its effect on the others can still be learned.
        speeds = {job: one.rate / solo for job, one in measurements.items() if (solo := self._solo(job))}
        if not speeds:
            return
        for job, speed in speeds.items():
            if not 0 < speed <= FASTEST:
                self._reject(job, tenants[job], f"{speed:.3g} times its speed alone")
                return
        for job, tenant in tenants.items():
            tenant.predicted = predicted.get(job)
        self._observe_speeds(measurements, speeds)
        newest = max(tenants, key=lambda job: tenants[job].job.since)
        self._judge(newest, tenants, predicted, speeds)

    def _observe_speeds(self, jobs: Iterable[str], speeds: Mapping[str, float]) -> None:
        """Lets the predictor learn the speeds of some of the jobs on one GPU."""
        tenants = {job: self._tenants[job] for job in jobs}
        gpu_type = next(iter(tenants.values())).gpu_type
        if self._profiles.observe(gpu_type, {job: one.workload.name for job, one in tenants.items()}, speeds):
            self.learned.send()

    def _judge(
        self, job: str, tenants: Mapping[str, TenantState], predicted: Mapping[str, float], speeds: Mapping[str, float]
    ) -> None:
        """Sends the newest tenant to the listeners, once, unless it was placed so long ago that it lost much work."""
        newest = tenants[job]
        crowding, newest.crowding = newest.crowding, None
        pairs = frozenset((job, other) for other in tenants if other != job)
        late = self._now - newest.job.since > GIVE_UP_AFTER * self._observe + LOADING_S
        if crowding is None or late or not newest.job.request.revert or self._separated & pairs:
            return
        texts = (
            f"{one} expected at {predicted[one]:.0%} and was at {speed:.0%}"
            if one in predicted
            else f"{one} was at {speed:.0%}"
            for one, speed in speeds.items()
        )
        self.newcomer_measured.send(Newcomer(job, crowding, pairs, ", ".join(texts)))

    # Latency objectives

    def _protect(self, job: str, latency: float) -> None:
        """Removes the newest neighbour of a job whose objective is violated since that neighbour was placed."""
        tenant = self._tenants[job]
        others = self._on(tenant.gpu) if tenant.gpu is not None else ()
        newest = max(others, key=lambda one: self._tenants[one].job.since, default=job)
        if newest == job or not self._tenants[newest].job.request.revert or (newest, job) in self._separated:
            return
        self._separated.add((newest, job))
        alone = self._latency_alone(tenant)
        if alone is not None and len(others) == 2:
            self._observe_speeds(others, {job: min(1.0, alone / latency)})
        objective = 1000 * (tenant.job.request.latency_s or 0.0)
        text = f"steps of {job} take {1000 * latency:.3g} ms beside it; its objective is {objective:g} ms"
        self.harmful.send(newest, text)

    def _latency_alone(self, tenant: TenantState) -> float | None:
        """Seconds of a step on an otherwise idle GPU, at the job's compute share."""
        profile = self._profiles.profile(tenant.workload, tenant.gpu_type)
        if profile is None or profile.step_seconds is None:
            return None
        compute = tenant.job.compute or WHOLE_GPU
        return latency_at(
            compute, Seconds(profile.step_seconds), 1.0 if profile.utilisation is None else profile.utilisation
        )

    def _reject(self, job: str, tenant: TenantState, what: str) -> None:
        if not tenant.rejected:
            tenant.rejected = True
            self.noted.send("refused", job, f"its reports are ignored because they are impossible: {what}")

    # Queries

    def speed(self, job: str) -> float | None:
        """Throughput in its last report, divided by its throughput alone."""
        solo = self._solo(job)
        rate = self._tenants[job].rate if job in self._tenants else None
        return None if not solo or rate is None else rate / solo

    def predicted(self, job: str) -> float | None:
        """The speed that was predicted before it was measured; None: it has no neighbour."""
        tenant = self._tenants.get(job)
        if tenant is None or tenant.gpu is None or len(self._on(tenant.gpu)) < 2:
            return None
        return self._predict(tenant.gpu).get(job) if tenant.predicted is None else tenant.predicted

    def default_batch(self, job: str) -> int | None:
        """The batch size that its owner or its program chose; None: not known."""
        tenant = self._tenants.get(job)
        return None if tenant is None else tenant.default_batch

    def violations(self, job: str) -> int:
        """How often its latency objective was violated in this run."""
        return self._objectives.violations(job)

    @property
    def violations_total(self) -> int:
        """Violations of the latency objectives of all jobs."""
        return self._objectives.total

    def company(self, job: str) -> list[dict[str, Any]]:
        """A job and its neighbours, each with its predicted and its measured speed."""
        gpu = self._tenants[job].gpu if job in self._tenants else None
        return [
            {
                "job": one,
                "workload": self._tenants[one].workload.name,
                "predicted": self.predicted(one),
                "measured": self.speed(one),
            }
            for one in (self._on(gpu) if gpu is not None else ())
        ]

    def profile_after(self, job: str, seconds: float, at: float) -> JobProfile | None:
        """A profile of this run alone; None until it was measured for that long, InputError if there cannot be one."""
        period = self._meter.period(job)
        if period is None or period.jobs != (job,):
            raise InputError(f"{job} is not alone on one GPU, so it has no profile of its own")
        if not period.measured_for(seconds, at):
            return None
        period.complete = True
        profile = self._add_profile(job, period.tenants[job], at - period.since, replace=True)
        if profile is None:
            raise InputError(
                f"{job} has no profile: it is tuned, limited to a compute share, or sends impossible reports; "
                "an event of the job says which (GET /v1/events)"
            )
        return profile

    def _solo(self, job: str) -> float | None:
        """Samples per second alone: as the tuner measured it in this run, else as in the profile."""
        tenant = self._tenants.get(job)
        if tenant is None:
            return None
        profile = self._profiles.profile(tenant.workload, tenant.gpu_type)
        return self._tuner.solo(job) or (profile.samples_per_second if profile is not None else None)

    def _predict(self, gpu: int) -> dict[str, float]:
        tenants = {job: self._tenants[job] for job in self._on(gpu)}
        gpu_type = next(iter(tenants.values())).gpu_type
        speeds = self._profiles.predict(gpu_type, {job: one.workload.name for job, one in tenants.items()})
        return {job: speed.mean for job, speed in speeds.items()}


def _profile(tenant: TenantState, measurement: TenantMeasurement, seconds: float, exclusive_steps: bool) -> JobProfile:
    return JobProfile(
        family=tenant.workload.family,
        batch=tenant.workload.batch,
        card=tenant.gpu_type,
        digest=tenant.job.digest,
        step_seconds=measurement.wall / measurement.steps if measurement.steps else None,
        samples_per_second=measurement.rate if measurement.steps else None,
        utilisation=measurement.busy_fraction(exclusive_steps),
        bandwidth=measurement.bandwidth.fraction,
        memory_mib=measurement.memory,
        pcie_mib_s=measurement.pcie_mib_s.value,
        measured_s=seconds,
        at=time.time(),
    )
