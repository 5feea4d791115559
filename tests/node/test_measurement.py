# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The throughput of tenants: from when it is measured, which reports count, and when there are enough of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from cotenant.core.units import Seconds
from cotenant.node.measurement import OBSERVE_S, JobUsage, Meter, Period, TenantMeasurement
from cotenant.wire.agent import Steps
from tests.node.tenants import steps

UNUSED = JobUsage()


class Measured:
    """A meter of one GPU, and the periods that it sent. A period takes 20 s, the time for loading is 30 s."""

    def __init__(self, *jobs: str, observe: float = OBSERVE_S) -> None:
        self.periods: list[dict[str, TenantMeasurement]] = []
        self.lengths: list[float] = []
        self.meter = Meter(Seconds(observe))
        self.meter.measured.subscribe(self._measured)
        self.meter.set_tenants(0, jobs, 0.0)

    def _measured(self, gpu: int, tenants: Mapping[str, TenantMeasurement], seconds: float) -> None:
        assert gpu == 0
        self.periods.append({job: replace(one) for job, one in tenants.items()})
        self.lengths.append(seconds)

    def rates(self, job: str) -> list[float]:
        return [one[job].rate for one in self.periods]

    def report(self, seconds: range, reported: Callable[[int], Steps] = lambda second: steps()) -> None:
        """The first job reports each second."""
        for second in seconds:
            self.meter.report("a", reported(second), float(second))
            self.meter.tick(lambda job: UNUSED, float(second))


def test_a_silent_job_gets_a_profile_without_speeds_and_only_after_it_could_have_loaded() -> None:
    measured = Measured("a")
    used = JobUsage(memory_mib=300, utilisation=80.0)
    for second in range(50):
        assert measured.meter.tick(lambda job: used, float(second)), "still measuring"
    assert measured.periods == []
    measured.meter.tick(lambda job: used, 50.0)
    (tenants,) = measured.periods
    assert (tenants["a"].steps, tenants["a"].busy_fraction(exclusive_steps=True), tenants["a"].memory) == (0, 0.8, 300)


def test_a_job_that_reports_is_measured_from_its_first_report_for_the_time_of_a_period() -> None:
    measured = Measured("a")
    measured.report(range(5, 25))
    assert measured.periods == []
    measured.report(range(25, 60))
    assert measured.lengths == [20.0], "once, and without the time for loading"
    assert measured.periods[0]["a"].steps == 200, "the report at the start covers the time before it"


def test_neighbours_are_measured_only_from_when_all_of_them_report() -> None:
    measured = Measured("a", "b")
    for second in range(1, 60):
        measured.meter.report("a", steps(samples=100 if second <= 30 else 50), float(second))
        if second >= 30:
            measured.meter.report("b", steps(), float(second))
        measured.meter.tick(lambda job: UNUSED, float(second))
    assert measured.rates("a") == [50.0], "while b was loading a was not slowed down as it is now"


def test_neighbours_that_never_report_are_not_measured_and_no_longer_awaited_after_a_while() -> None:
    measured = Measured("a", "b")
    assert measured.meter.tick(lambda job: UNUSED, 109.0)
    assert not measured.meter.tick(lambda job: UNUSED, 110.0)
    assert measured.periods == []


def test_disturbed_reports_are_left_out() -> None:
    measured = Measured("a")

    def reported(second: int) -> Steps:
        if second % 3 == 0:
            measured.meter.disturbed(0, second - 0.5)
        return steps(samples=1 if second % 3 == 0 else 100)

    measured.report(range(1, 60), reported)
    assert measured.rates("a") == [100.0]


def test_on_a_gpu_that_is_never_quiet_disturbed_reports_count_in_the_end() -> None:
    measured = Measured("a")

    def reported(second: int) -> Steps:
        measured.meter.disturbed(0, second - 0.5)
        return steps(samples=70)

    measured.report(range(1, 42), reported)  # the first report begins the period
    ((_, period),) = measured.meter.incomplete()
    assert period.tenants["a"].steps == 0
    measured.report(range(42, 100), reported)
    assert measured.rates("a") == [70.0]


def test_reports_from_trials_of_batch_sizes_are_left_out() -> None:
    measured = Measured("a")

    def reported(second: int) -> Steps:
        if second <= 10:
            measured.meter.tuned(0, float(second))
        return steps(samples=1 if second <= 10 else 100)

    measured.report(range(1, 60), reported)
    assert measured.rates("a") == [100.0]


def test_another_batch_size_starts_the_measurement_again() -> None:
    measured = Measured("a")
    measured.report(range(1, 60), lambda second: steps(batch=32 if second < 10 else 64, samples=5 * second))
    (period,) = measured.periods
    assert period["a"].batch == 64
    assert period["a"].samples == 5 * sum(range(11, 31))


def test_a_period_needs_steps_that_cover_half_of_it() -> None:
    """A job that reports seldom is measured for longer, until there is enough."""
    measured = Measured("a", observe=40.0)
    measured.report(range(1, 61, 3))
    assert measured.periods == []
    measured.report(range(61, 100))
    assert [one["a"].wall for one in measured.periods] == [20.0]


@pytest.mark.parametrize(
    ("count", "seconds", "usable"),
    [(5, 2.0, True), (4, 2.0, False), (5, 1.9, False)],
)
def test_a_short_run_is_used_if_it_reported_enough_steps_over_enough_time(
    count: int, seconds: float, usable: bool
) -> None:
    period = Period(("a",), 0.0, 0.0)
    period.restart(0.0)
    period.tenants["a"].add_steps(steps(n=count, wall_s=seconds))
    assert period.usable is usable


def test_a_gpu_without_tenants_is_not_measured_and_a_new_neighbour_begins_a_period() -> None:
    measured = Measured("a")
    measured.report(range(1, 15))
    measured.meter.set_tenants(0, ("a", "b"), 15.0)
    (_, period) = measured.meter.incomplete()[0]
    assert (period.jobs, period.placed_at, period.reporting) == (("a", "b"), 15.0, {"a"})
    measured.meter.set_tenants(0, (), 16.0)
    assert measured.meter.incomplete() == []
    assert measured.meter.period("a") is None
    measured.report(range(17, 60))
    assert measured.periods == []


def test_the_use_of_a_device_is_averaged_and_its_memory_is_the_peak() -> None:
    tenant = TenantMeasurement()
    assert tenant.busy_fraction(exclusive_steps=False) is None
    for usage in (
        JobUsage(memory_mib=200, utilisation=50.0, bandwidth=20.0, pcie_mib_s=100.0),
        UNUSED,
        JobUsage(memory_mib=300, utilisation=100.0, bandwidth=40.0, pcie_mib_s=300.0),
        JobUsage(memory_mib=100),
    ):
        tenant.add_usage(usage)
    assert (tenant.memory, tenant.busy_fraction(exclusive_steps=False)) == (300, 0.75)
    assert tenant.bandwidth.fraction == pytest.approx(0.3)
    assert tenant.pcie_mib_s.value == 200.0


def test_a_device_that_reports_no_use_or_is_exclusive_is_busy_during_steps() -> None:
    tenant = TenantMeasurement()
    tenant.add_steps(steps(samples=64, wall_s=4.0))  # busy for half of it
    assert (tenant.rate, tenant.busy_fraction(exclusive_steps=False)) == (16.0, 0.5)
    tenant.add_usage(JobUsage(utilisation=90.0))
    assert tenant.busy_fraction(exclusive_steps=False) == pytest.approx(0.9)
    assert tenant.busy_fraction(exclusive_steps=True) == 0.5
