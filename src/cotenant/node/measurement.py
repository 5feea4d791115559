# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the throughput of the tenants of each GPU while the set of tenants stays the same.

A period begins when the last tenant of a GPU has sent its first report. Reports that cover a disturbance are left out.
Once enough has been reported the period is sent to the listeners, exactly once. Time is an argument.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cotenant.core.units import Seconds
from cotenant.signals import Signal
from cotenant.wire.agent import Steps

OBSERVE_S = Seconds(20.0)
"""how long tenants are measured together before their speeds are believed"""
GIVE_UP_AFTER = 4
"""multiples of `OBSERVE_S` after which a period that is not complete is no longer waited for"""
LEAST_STEPS, LEAST_SECONDS = 5, 2.0
"""reported by each tenant, below which a period is not used"""
QUIET_WITHIN = 2
"""multiples of `OBSERVE_S` during which reports that cover a disturbance are left out"""
LOADING_S = 30.0
"""after which a tenant that has not reported is assumed never to report"""
COVERED = 0.5
"""fraction of a period that each tenant's reports must cover"""


class JobUsage(NamedTuple):
    """What a job uses of its GPUs; None: not known."""

    memory_mib: int | None = None
    """summed over its GPUs"""
    utilisation: float | None = None
    """percent"""
    bandwidth: float | None = None
    """memory bandwidth in percent, known while the job is alone on its only GPU"""
    pcie_mib_s: float | None = None
    """PCIe traffic in MiB/s, known while the job is alone on its only GPU"""


UNKNOWN_USAGE = JobUsage()


@dataclass(slots=True)
class Mean:
    """A running mean in constant memory."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def fraction(self) -> float | None:
        """The mean of percentages as a number from 0 to 1."""
        return None if self.value is None else min(1.0, self.value / 100)


@dataclass(slots=True)
class TenantMeasurement:
    """What one tenant did during a period."""

    batch: int = 0
    steps: int = 0
    samples: int = 0
    wall: float = 0.0
    """seconds of training"""
    busy: float = 0.0
    """seconds inside steps"""
    utilisation: Mean = field(default_factory=Mean)
    """percent, as the device reports it"""
    bandwidth: Mean = field(default_factory=Mean)
    """percent, as the device reports it"""
    pcie_mib_s: Mean = field(default_factory=Mean)
    memory: int | None = None
    """peak, in MiB"""

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.wall if self.wall > 0 else 0.0

    def busy_fraction(self, exclusive_steps: bool) -> float | None:
        """The fraction of the device's time that the tenant used.

        If a step has the device to itself, or the device reports no utilisation, it is the time spent inside steps.
        """
        if self.wall > 0 and (exclusive_steps or not self.utilisation.count):
            return min(1.0, self.busy / self.wall)
        return self.utilisation.fraction

    def add_steps(self, steps: Steps) -> None:
        self.batch = steps.batch
        self.steps += steps.n
        self.samples += steps.samples
        self.wall += steps.wall_s
        self.busy += steps.busy_s

    def add_usage(self, usage: JobUsage) -> None:
        self.utilisation.add(usage.utilisation)
        self.bandwidth.add(usage.bandwidth)
        self.pcie_mib_s.add(usage.pcie_mib_s)
        if usage.memory_mib is not None:
            self.memory = max(self.memory or 0, usage.memory_mib)


@dataclass(slots=True)
class Period:
    """A time during which the tenants of one GPU and their batch sizes stay the same."""

    jobs: tuple[str, ...]
    placed_at: float
    """when the last tenant was placed or removed"""
    since: float
    """when measuring began"""
    reporting: set[str] = field(default_factory=set)
    """tenants that have sent a report"""
    tenants: dict[str, TenantMeasurement] = field(default_factory=dict)
    quiet_from: float = 0.0
    """end of the last disturbance by other work"""
    tuned_until: float = 0.0
    """end of the last trial of batch sizes"""
    complete: bool = False
    """the listeners have received it"""

    def restart(self, at: float) -> None:
        self.since = at
        self.tenants = {job: TenantMeasurement() for job in self.jobs}

    def measured_for(self, seconds: float, at: float) -> bool:
        if not self.reporting and len(self.jobs) == 1:  # a job without the library: only the device is measured
            return at - self.since >= seconds + min(LOADING_S, 10 * seconds)
        return at - self.since >= seconds and all(
            one.steps >= LEAST_STEPS and one.wall >= COVERED * seconds for one in self.tenants.values()
        )

    @property
    def usable(self) -> bool:
        """Whether each tenant has reported enough for a profile, even if the period was short."""
        return all(one.steps >= LEAST_STEPS and one.wall >= LEAST_SECONDS for one in self.tenants.values())


class Meter:
    """The current period of each GPU.

    Only jobs on a single GPU are measured: a job on several GPUs has different neighbours on each of them.
    """

    def __init__(self, observe: Seconds) -> None:
        self.measured: Signal[[int, Mapping[str, TenantMeasurement], float]] = Signal()
        """sent with the GPU, the measurement of each tenant, and the length of the period in seconds"""
        self._observe = observe
        self._periods: dict[int, Period] = {}
        self._gpus: dict[str, int] = {}

    def set_tenants(self, gpu: int, jobs: tuple[str, ...], at: float) -> None:
        """Begins a period; with no jobs, the GPU is not measured."""
        before = self._periods.pop(gpu, None)
        self._gpus = {job: index for job, index in self._gpus.items() if index != gpu}
        if jobs:
            reporting = set(jobs) & (before.reporting if before else set())
            period = self._periods[gpu] = Period(jobs, at, at, reporting)
            period.restart(at)
            self._gpus |= dict.fromkeys(jobs, gpu)

    def period(self, job: str) -> Period | None:
        gpu = self._gpus.get(job)
        return None if gpu is None else self._periods[gpu]

    def incomplete(self) -> list[tuple[int, Period]]:
        return [(gpu, period) for gpu, period in self._periods.items() if not period.complete]

    def disturbed(self, gpu: int, at: float) -> None:
        """Work that is not a job's used the GPU until now."""
        if gpu in self._periods:
            self._periods[gpu].quiet_from = at

    def tuned(self, gpu: int, at: float) -> None:
        """Batch sizes were tried on the GPU until now; some tenants paused for it."""
        if gpu in self._periods:
            self._periods[gpu].tuned_until = at

    def report(self, job: str, steps: Steps, at: float) -> None:
        """Takes in a report of a tenant."""
        period = self.period(job)
        if period is None:
            return
        if job not in period.reporting:  # until now it was loading, which slowed its neighbours down
            period.reporting.add(job)
            period.restart(at)
            return
        tenant = period.tenants[job]
        if tenant.steps and tenant.batch != steps.batch:
            period.restart(at)
            return
        # If a GPU is never quiet, disturbances are part of its usual speed and are counted.
        quiet = period.quiet_from if at - period.since <= QUIET_WITHIN * self._observe else 0.0
        if at - steps.wall_s >= max(period.since, period.tuned_until, quiet):
            tenant.add_steps(steps)

    def tick(self, usage_of: Callable[[str], JobUsage], at: float) -> bool:
        """Adds the devices' usage and sends each period that became complete; whether any is still awaited."""
        for gpu, period in list(self._periods.items()):
            for job, tenant in period.tenants.items():
                tenant.add_usage(usage_of(job))
            if not period.complete and period.measured_for(self._observe, at):
                period.complete = True
                self.measured.send(gpu, period.tenants, at - period.since)
        give_up = GIVE_UP_AFTER * self._observe + LOADING_S
        return any(not one.complete and at - one.placed_at < give_up for one in self._periods.values())
