# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The peak memory of a workload: which observations raise it, and when it is stored."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cotenant.core.model import Slot
from cotenant.local.journal import Journal
from cotenant.local.profiles import ProfileStore
from cotenant.node.measurement import JobUsage
from cotenant.node.peak_memory import PeakMemory
from cotenant.node.tenant import TenantState
from tests.local.engines import placed
from tests.node.tenants import BERT, V100, Trials, request


class Observed:
    """A tenant of a workload whose profile has a peak of 200 MiB."""

    def __init__(self, profiles: ProfileStore) -> None:
        self.profiles, self.tuner = profiles, Trials()
        profiles.add(msgspec.structs.replace(BERT, memory_mib=200.0))
        self.peaks = PeakMemory(profiles, self.tuner)

    def add(self, gpus: tuple[int, ...] = (0,)) -> None:
        job = placed("j", request(workload="bert", batch=32), gpu_type="V100", since=0.0)
        job = replace(job, placement=replace(job.placement, slot=Slot("local", gpus)))
        self.peaks.add(TenantState(job, job.workload, "V100", None, default_batch=32))

    def use(self, memory: int, at: float) -> None:
        self.peaks.tick(lambda job: JobUsage(memory_mib=memory), at)

    @property
    def stored(self) -> float | None:
        (profile,) = self.profiles.find()
        assert profile.times == 1, "a larger peak is no further measurement"
        return profile.memory_mib


@pytest.fixture
def observed(tmp_path: Path) -> Iterator[Observed]:
    with Journal.open(tmp_path / "journal.db") as journal:
        yield Observed(ProfileStore(journal, V100))


def test_a_larger_peak_is_stored_every_ten_seconds_and_at_the_end(observed: Observed) -> None:
    observed.add()
    observed.use(300, 100.0)
    assert observed.stored == 300
    observed.use(400, 109.0)
    assert observed.stored == 300, "it was written less than 10 s ago"
    observed.use(350, 110.0)
    assert observed.stored == 400
    observed.use(500, 111.0)
    observed.use(100, 112.0)
    assert observed.peaks.peak("j") == 500
    observed.peaks.remove("j")
    assert observed.stored == 500


def test_a_smaller_peak_does_not_replace_a_larger_one(observed: Observed) -> None:
    observed.add()
    observed.use(150, 100.0)
    observed.peaks.remove("j")
    assert observed.stored == 200


def test_memory_at_a_tuned_batch_size_is_not_that_of_the_workload(observed: Observed) -> None:
    observed.add()
    for second, batch, memory in ((2.0, 32, 300), (20.0, 128, 900), (40.0, 32, 900)):
        observed.tuner.told = batch
        observed.use(memory, second)
    observed.peaks.remove("j")
    assert observed.stored == 300, "a framework keeps what a larger batch needed"


def test_memory_of_a_job_on_several_gpus_is_not_that_of_one(observed: Observed) -> None:
    observed.add((0, 1))
    observed.use(900, 100.0)
    observed.peaks.remove("j")
    assert observed.stored == 200


def test_a_workload_without_a_profile_gets_none_from_its_memory(observed: Observed) -> None:
    observed.profiles.remove(observed.profiles.find())
    observed.add()
    observed.use(300, 100.0)
    observed.peaks.remove("j")
    assert observed.profiles.find() == []
