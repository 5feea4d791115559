# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tenants of one GPU: which profile a run leaves, what is learned of neighbours, and who must leave."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.core.interference.predictor import Speed
from cotenant.core.tuning.episode import Trial
from cotenant.core.units import MilliGpu, Seconds
from cotenant.errors import InputError
from cotenant.local.journal import Journal
from cotenant.local.profiles import ProfileStore
from cotenant.node.agent import Reported
from cotenant.node.interference import InterferenceMonitor, Newcomer
from cotenant.node.measurement import JobUsage
from cotenant.wire.profile import JobProfile
from tests.local.engines import placed
from tests.node.tenants import BERT, V100, Trials, request, steps


class Unpredicted(ProfileStore):
    """Knows workloads, and predicts no speed."""

    def predict(self, gpu_type: str, workloads: Mapping[str, str]) -> dict[str, Speed]:
        return {}


class Gpu:
    """A monitor with one GPU, its tenants, and what it sent."""

    def __init__(self, profiles: ProfileStore, trial: Trial | None = None) -> None:
        self.profiles, self.used, self.now = profiles, JobUsage(), 0.0
        self.newcomers: list[Newcomer] = []
        self.harmful: list[tuple[str, str]] = []
        self.notes: list[tuple[str, str, str]] = []
        self.monitor = InterferenceMonitor(profiles, Trials(trial), lambda job: self.used, exclusive_steps=True)
        self.monitor.newcomer_measured.subscribe(self.newcomers.append)
        self.monitor.harmful.subscribe(lambda job, why: self.harmful.append((job, why)))
        self.monitor.noted.subscribe(lambda kind, job, text: self.notes.append((kind, job, text)))

    def add(self, job: str, *, crowding: float | None = None, profiled: bool = True, **wishes: Any) -> None:
        """A job whose workload has the same name, and a profile of 100 samples per second unless told otherwise."""
        if profiled:
            self.profiles.add(profile(job))
        placing = placed(job, request(workload=job, **wishes), gpu_type="V100", crowding=crowding, since=self.now)
        self.monitor.add(placing)

    def report(self, seconds: int, **samples: int) -> None:
        """Each second, the jobs report so many samples of one step each."""
        for _ in range(seconds):
            self.now += 1
            for job, count in samples.items():
                self.monitor.handle(Reported(job, self.now, steps(samples=count, batch=1)))
            self.monitor.tick(self.now)


def profile(family: str) -> JobProfile:
    return msgspec.structs.replace(BERT, family=family, batch=None, step_seconds=0.01, samples_per_second=100.0)


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Gpu]:
    with Journal.open(tmp_path / "journal.db") as journal:
        yield Gpu(Unpredicted(journal, V100))


def test_the_trial_of_the_tuner_at_the_job_s_own_batch_size_makes_the_profile(tmp_path: Path) -> None:
    own = Trial(at=Seconds(5.0), kind="default", sizes={"j": 32}, measured={"j": 640.0})
    with Journal.open(tmp_path / "journal.db") as journal:
        gpu = Gpu(ProfileStore(journal, V100), own)
        gpu.now = 1.0
        gpu.add("j", profiled=False, batch=32)
        gpu.monitor.handle(Reported("j", 6.0, steps(batch=128)))
        gpu.monitor.tick(6.5)
        (kept,) = gpu.profiles.find()
    assert (kept.samples_per_second, kept.step_seconds, kept.utilisation) == (640.0, 0.05, 0.5)


def test_a_newcomer_is_judged_by_its_measured_speed_if_none_was_predicted(gpu: Gpu) -> None:
    gpu.add("one")
    gpu.report(1, one=100)
    gpu.add("two", crowding=2.0)
    gpu.report(21, one=30, two=40)
    (newcomer,) = gpu.newcomers
    assert newcomer.text == "one was at 30%, two was at 40%"
    assert (newcomer.job, newcomer.crowding, newcomer.pairs) == ("two", 2.0, frozenset({("two", "one")}))
    assert (gpu.monitor.speed("one"), gpu.monitor.speed("two")) == (0.3, 0.4)
    gpu.report(60, one=30, two=40)
    assert gpu.newcomers == [newcomer], "it is judged once"


def test_a_newcomer_that_was_placed_long_ago_is_not_judged(gpu: Gpu) -> None:
    """It would lose too much work: the time is 4 periods of 20 s, and 30 s for loading."""
    gpu.add("one")
    gpu.add("two", crowding=2.0)
    gpu.report(90, one=30)
    gpu.report(30, one=30, two=40)
    assert gpu.newcomers == []


def test_tenants_of_an_idle_gpu_and_those_that_may_not_be_removed_are_not_judged(gpu: Gpu) -> None:
    gpu.add("one", crowding=2.0)
    gpu.report(1, one=100)
    gpu.add("two", crowding=2.0, revert=False)
    gpu.report(30, one=30, two=40)
    assert gpu.newcomers == []


def test_a_run_that_was_alone_leaves_a_profile_even_if_it_was_short(gpu: Gpu) -> None:
    gpu.add("j", profiled=False)
    gpu.report(4, j=50)
    assert gpu.profiles.find() == []
    gpu.monitor.remove("j", gpu.now)
    (kept,) = gpu.profiles.find()
    assert (kept.samples_per_second, kept.measured_s) == (50.0, 3.0)


def test_a_run_beside_a_neighbour_leaves_no_profile(gpu: Gpu) -> None:
    gpu.add("one", profiled=False)
    gpu.add("two", profiled=False)
    gpu.report(10, one=50, two=50)
    gpu.monitor.remove("one", gpu.now)
    assert gpu.profiles.find() == []


def test_of_a_job_that_is_limited_to_a_share_only_the_memory_is_known(gpu: Gpu) -> None:
    gpu.add("j", profiled=False)
    gpu.monitor.set_limit("j", MilliGpu(300), gpu.now)
    gpu.used = JobUsage(memory_mib=700, utilisation=30.0)
    gpu.report(22, j=10)
    (kept,) = gpu.profiles.find()
    assert (kept.memory_mib, kept.samples_per_second, kept.utilisation) == (700, None, None)
    with pytest.raises(InputError, match="limited to a compute share"):
        gpu.monitor.profile_after("j", 5.0, gpu.now)


def test_a_limit_begins_another_measurement(gpu: Gpu) -> None:
    gpu.add("j", profiled=False)
    gpu.report(15, j=10)
    gpu.monitor.set_limit("j", MilliGpu(300), gpu.now)
    gpu.report(5, j=5)
    gpu.monitor.set_limit("j", MilliGpu(0), gpu.now)
    gpu.report(21, j=90)
    (kept,) = gpu.profiles.find()
    assert kept.samples_per_second == 90.0


def test_the_newest_neighbour_leaves_at_the_second_violation_and_the_pair_is_separated_once(gpu: Gpu) -> None:
    def serve(seconds: int, per_second: int) -> None:
        for _ in range(seconds):
            gpu.now += 1
            gpu.monitor.handle(Reported("server", gpu.now, steps(n=per_second)))

    gpu.add("server", latency_s=0.08)
    for neighbour in ("older", "newest"):
        serve(3, 20)
        gpu.add(neighbour)
    serve(3, 5)
    assert gpu.harmful == []
    serve(3, 5)
    (left,) = gpu.harmful
    assert left == ("newest", "steps of server take 200 ms beside it; its objective is 80 ms")
    assert (gpu.monitor.violations("server"), gpu.monitor.violations_total) == (2, 2)
    serve(6, 5)
    assert gpu.harmful == [left], "it is leaving already"
    gpu.monitor.remove("newest", gpu.now)
    gpu.monitor.remove("older", gpu.now)
    serve(3, 20)
    gpu.add("newest")
    serve(12, 5)
    assert gpu.harmful == [left], "a pair is separated once"
    gpu.monitor.forget("newest")
    serve(3, 20)
    serve(6, 5)
    assert [job for job, _ in gpu.harmful] == ["newest", "newest"], "another job of that name is not the same"


def test_impossible_reports_are_refused_with_one_event(gpu: Gpu) -> None:
    gpu.add("one")
    gpu.report(1, one=100)
    gpu.add("two", crowding=2.0)
    gpu.report(30, one=50, two=100_000)
    assert gpu.notes == [
        ("refused", "two", "its reports are ignored because they are impossible: 1e+03 times its speed alone")
    ]
    assert gpu.newcomers == []


def test_a_profile_on_request_needs_a_job_that_is_alone_for_long_enough(gpu: Gpu) -> None:
    gpu.add("j", profiled=False)
    gpu.report(5, j=50)
    assert gpu.monitor.profile_after("j", 5.0, gpu.now) is None
    gpu.report(1, j=50)
    found = gpu.monitor.profile_after("j", 5.0, gpu.now)
    assert found is not None
    assert found.samples_per_second == 50.0
    gpu.add("two")
    with pytest.raises(InputError, match="j is not alone on one GPU"):
        gpu.monitor.profile_after("j", 5.0, gpu.now)


def test_the_company_of_a_job_has_the_speeds_of_all_tenants_of_its_gpu(gpu: Gpu) -> None:
    gpu.add("one")
    gpu.add("two")
    gpu.report(2, one=70, two=40)
    assert gpu.monitor.company("one") == [
        {"job": "one", "workload": "one", "predicted": None, "measured": 0.7},
        {"job": "two", "workload": "two", "predicted": None, "measured": 0.4},
    ]
    assert gpu.monitor.company("stranger") == []
