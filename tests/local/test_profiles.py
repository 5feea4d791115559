# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles: what is measured of a job that is alone, what is kept of it, and what is refused."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.core.fragmentation.mix import inventory_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.local.admission import Admission
from cotenant.local.engine import Engine
from cotenant.local.journal import Journal
from cotenant.local.profiles import ProfileStore
from cotenant.local.views import usage_by_job
from cotenant.node.agent import Reported
from cotenant.node.devices.backend import GpuUsage, Running
from cotenant.node.measurement import OBSERVE_S, JobUsage
from cotenant.node.peak_memory import STORED_EVERY_S
from cotenant.wire.profile import VERSION, JobProfile, Profiles, averaged, decode_profiles, workload_of
from tests.local.engines import engine_on
from tests.node.tenants import BERT, V100, request, steps


def reports(engine: Engine, job: str, since: float, seconds: int, **about: Any) -> float:
    """A report each second; when the last came."""
    for second in range(1, seconds + 1):
        engine.interference.handle(Reported(job, since + second, steps(**about)))
        engine.interference.tick(since + second)
    return since + seconds


def store(state: Path) -> tuple[Journal, ProfileStore]:
    journal = Journal.open(state / "journal.db")
    return journal, ProfileStore(journal, V100)


@contextmanager
def one_card(state: Path, policy: str = "cotenant") -> Iterator[tuple[Engine, Journal]]:
    with engine_on(state, V100, policy) as found:
        yield found


def started(engine: Engine, **wishes: Any) -> tuple[str, float]:
    """A job on the card, and when it came."""
    job = engine.submit(request(**wishes)).id
    engine.schedule()
    return job, engine.parts.tenants.placed[job].since


def test_a_job_that_is_alone_gets_a_profile_from_its_reports(tmp_path: Path) -> None:
    async def scene() -> list[JobProfile]:
        with one_card(tmp_path) as (engine, _):
            job, since = started(engine, workload="bert", batch=32)
            reports(engine, job, since, int(OBSERVE_S) + 2)
            return engine.profiles.find()

    (profile,) = asyncio.run(scene())
    assert (profile.family, profile.batch, profile.card) == ("bert", 32, "V100")
    assert profile.step_seconds == pytest.approx(0.1)
    assert profile.samples_per_second == pytest.approx(320.0)
    assert profile.utilisation == pytest.approx(0.5), "half of its time was in steps, and nobody looks at this device"


def test_what_the_card_was_seen_to_do_is_in_the_profile(tmp_path: Path) -> None:
    async def scene() -> list[JobProfile]:
        with one_card(tmp_path) as (engine, _):
            job, since = started(engine)
            last = since
            for pcie_mib_s in (1000.0, 3000.0):
                card = GpuUsage(
                    uuid="GPU-0", used_mib=None, utilisation=None, processes=(), bandwidth=40, pcie_mib_s=pcie_mib_s
                )
                engine.parts.devices._used = usage_by_job([Running(job=job, gpus=(0,), supervisor=1)], [card])
                last = reports(engine, job, last, int(OBSERVE_S) // 2 + 1)
            return engine.profiles.find()

    (profile,) = asyncio.run(scene())
    assert profile.bandwidth == pytest.approx(0.4)
    assert profile.pcie_mib_s == pytest.approx(2000.0, rel=0.1), "MiB/s, on average over the looks"


def test_a_job_that_is_held_to_a_share_says_nothing_of_its_workload_alone(tmp_path: Path) -> None:
    async def scene() -> list[JobProfile]:
        with one_card(tmp_path) as (engine, _):
            job, since = started(engine, compute="30%")
            last = reports(engine, job, since, int(OBSERVE_S) + 2)
            engine.interference.remove(job, last)
            return engine.profiles.find()

    assert asyncio.run(scene()) == []


def peak_of(engine: Engine) -> float | None:
    (profile,) = engine.profiles.find()
    return profile.memory_mib


def test_the_peak_follows_a_job_after_its_first_measurement(tmp_path: Path) -> None:
    async def scene() -> None:
        with one_card(tmp_path) as (engine, _):
            job, since = started(engine)
            engine.parts.devices._used = {job: JobUsage(memory_mib=300)}
            last = reports(engine, job, since, int(OBSERVE_S) + 2)
            assert peak_of(engine) == 300
            engine.parts.devices._used = {job: JobUsage(memory_mib=900)}
            last = reports(engine, job, last, int(STORED_EVERY_S))
            assert peak_of(engine) == 900
            engine.parts.devices._used = {job: JobUsage(memory_mib=901)}
            last = reports(engine, job, last, 1)
            engine.parts.devices._used = {job: JobUsage(memory_mib=200)}
            last = reports(engine, job, last, 1)
            engine.interference.remove(job, last)
            assert peak_of(engine) == 901, "a job that ends leaves what it used last"
            (profile,) = engine.profiles.find()
            assert profile.samples_per_second == pytest.approx(320.0)
            assert profile.times == 1, "only the peak changed"

    asyncio.run(scene())


def test_the_peak_rises_beside_a_neighbour_too_but_a_job_that_was_never_measured_leaves_none(tmp_path: Path) -> None:
    async def scene() -> None:
        with one_card(tmp_path, "binpack") as (engine, _):
            engine.profiles.add(msgspec.structs.replace(BERT, memory_mib=100.0))
            one, since = started(engine, workload="bert", batch=32)
            other, _ = started(engine, workload="other")
            engine.parts.devices._used = {one: JobUsage(memory_mib=118), other: JobUsage(memory_mib=50)}
            engine.interference.tick(since + 1)
            engine.interference.remove(one, since + 2)
            assert peak_of(engine) == 118, "it came near its limit, so the next one gets more"

    asyncio.run(scene())


def test_a_job_that_is_held_to_a_share_says_how_much_memory_its_workload_needs(tmp_path: Path) -> None:
    async def scene() -> list[JobProfile]:
        with one_card(tmp_path) as (engine, _):
            job, since = started(engine, compute="30%")
            engine.parts.devices._used = {job: JobUsage(memory_mib=300, utilisation=20.0)}
            reports(engine, job, since, int(OBSERVE_S) + 2)
            return engine.profiles.find()

    (profile,) = asyncio.run(scene())
    assert profile.memory_mib == 300
    assert (profile.step_seconds, profile.samples_per_second, profile.utilisation) == (None, None, None)


def test_a_profile_without_step_times_hides_none_that_has_them(tmp_path: Path) -> None:
    two = Machine(name="local", gpus=(V100.gpus[0], Gpu(uuid="GPU-1", type="T4", memory=MiB(1024))))
    with Journal.open(tmp_path / "journal.db") as journal:
        known = ProfileStore(journal, two)
        known.add(msgspec.structs.replace(BERT, step_seconds=None, samples_per_second=None))
        known.add(msgspec.structs.replace(BERT, card="T4"))
        found = known.measured_here(BERT.workload)
    assert found is not None
    assert found.card == "T4"


def test_a_short_job_leaves_a_profile_when_it_ends(tmp_path: Path) -> None:
    async def scene() -> int:
        with one_card(tmp_path) as (engine, _):
            job, since = started(engine)
            last = reports(engine, job, since, 5)
            assert engine.profiles.find() == []
            engine.interference.remove(job, last)
            return len(engine.profiles.find())

    assert asyncio.run(scene()) == 1


def test_profiles_survive_a_restart_and_are_averaged_with_newer_ones(tmp_path: Path) -> None:
    journal, before = store(tmp_path)
    before.add(BERT)
    journal.close()
    journal, after = store(tmp_path)
    kept = after.add(msgspec.structs.replace(BERT, step_seconds=0.04, at=2.0))
    assert kept.step_seconds == pytest.approx(0.03)
    assert (kept.times, kept.at) == (2, 2.0)
    replaced = after.add(msgspec.structs.replace(BERT, step_seconds=0.04), replace=True)
    assert (replaced.step_seconds, replaced.times) == (0.04, 1)
    journal.close()


def test_an_average_never_counts_more_than_eight_measurements() -> None:
    profile = BERT
    for _ in range(50):
        profile = averaged(profile, BERT)
    changed = averaged(profile, msgspec.structs.replace(BERT, step_seconds=0.1))
    assert changed.step_seconds == pytest.approx(0.02 + 0.08 / 8)


def test_a_profile_of_another_card_is_kept_apart(tmp_path: Path) -> None:
    journal, known = store(tmp_path)
    admission = Admission(Learner("binpack", inventory_of([V100]), "fifo", belief=known.belief), known, V100)
    known.add(msgspec.structs.replace(BERT, card="H100", step_seconds=0.001))
    with pytest.raises(InputError, match="run `cotenant profile`"):
        admission.admit("new", request(workload="bert", batch=32, latency_s=0.05), 0.0)
    known.add(BERT)
    assert [one.card for one in known.find("bert@32")] == ["H100", "V100"]
    assert known.profile(BERT.workload, "V100") == BERT
    known.remove(known.find("bert"))
    assert known.find() == []
    journal.close()


def exported(**changes: object) -> bytes:
    profile = msgspec.to_builtins(BERT) | changes
    return msgspec.json.encode({"version": 1, "profiles": [profile]})


def test_what_is_exported_can_be_imported() -> None:
    assert decode_profiles(msgspec.json.encode(Profiles(profiles=(BERT,)))).profiles == (BERT,)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (exported(version=2), "version 2: this cotenant reads version 1"),
        (b'{"version": 9, "whatever": 1}', "version 9: this cotenant reads version 1"),
        (exported(step_seconds=0), "step_seconds: Expected float > 0"),
        (exported(samples_per_second=-1), "samples_per_second: Expected float > 0"),
        (exported(samples_per_second=1e300), "samples_per_second: Expected float <= 1000000000000"),
        (exported().replace(b"0.02", b"NaN"), "not profiles: JSON is malformed"),
        (exported().replace(b"0.02", b"1e999"), "not profiles"),
        (exported(utilisation=1000), "utilisation: Expected float <= 1"),
        (exported(surprise=1), "surprise"),
        (b"[]", "not profiles"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(content: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        decode_profiles(content)
    assert "\n" not in str(refused.value)


def test_absurd_reports_make_no_profile_and_are_said_once(tmp_path: Path) -> None:
    async def scene() -> tuple[list[JobProfile], list[str]]:
        with one_card(tmp_path) as (engine, journal):
            job, since = started(engine)
            last = reports(engine, job, since, int(OBSERVE_S) + 2, samples=10**15, n=10**9)
            engine.interference.remove(job, last)
            return engine.profiles.find(), [event.text for event in journal.events() if event.kind == "refused"]

    kept, said = asyncio.run(scene())
    assert kept == []
    assert len(said) == 1
    assert "its reports are ignored because they are impossible" in said[0]


def test_a_profile_that_cannot_be_read_any_more_is_forgotten_and_the_daemon_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        journal.remember("profile:V100:bert", '{"version": 1, "family": "bert"}')
        later = msgspec.json.encode(msgspec.structs.replace(BERT, family="later", version=VERSION + 1)).decode()
        journal.remember("profile:V100:later", later)
        journal.remember("predictor:V100", '{"version": 7}')
        known = ProfileStore(journal, V100)
    assert known.find() == []
    said = [line.split(" is skipped")[0] for line in capfd.readouterr().err.splitlines()]
    assert said == [f"cotenant: {key}" for key in ("profile:V100:bert", "profile:V100:later", "predictor:V100")]


def test_the_same_command_is_the_same_workload_and_its_batch_tells_sizes_apart() -> None:
    assert workload_of(request()) == workload_of(request())
    assert workload_of(request()) != workload_of(request(command=("train", "more")))
    assert workload_of(request(workload="bert", batch=32)).name == "bert@32"
    assert workload_of(request()).name.startswith("command-")


def test_profiles_that_are_nested_without_end_are_refused() -> None:
    with pytest.raises(InputError, match="not profiles"):
        decode_profiles(b'{"version": 1, "more": ' + 100_000 * b"[")
