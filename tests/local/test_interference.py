# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The loop closed on one machine: neighbours are measured, the next placement knows it, who does harm is sent back."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from cotenant.core.sharing.speeds import tenant_set_of
from cotenant.core.tuning.coordination import Coordinator
from cotenant.core.tuning.goodput import NOISE_BOUNDS
from cotenant.errors import InputError
from cotenant.local.engine import Engine
from cotenant.local.journal import Journal
from cotenant.local.journal_rows import JournalEvent
from cotenant.local.tenants import PlacedJob
from cotenant.node.agent import Connected, Reported
from cotenant.node.measurement import GIVE_UP_AFTER, LOADING_S, OBSERVE_S
from cotenant.node.tuning import coordinator_event
from cotenant.wire.agent import Hello
from cotenant.wire.profile import JobProfile
from tests.local.daemon import Daemon, running_daemon, until
from tests.local.engines import placed
from tests.local.test_profiles import one_card, started
from tests.metrics.nodes import series
from tests.node.tenants import BERT, request, steps

T = TypeVar("T")
RESIDENT, NEWCOMER = 100, 100
"""samples per second alone of the two jobs of these tests"""


def in_company(
    state: Path, then: Callable[[Engine, Journal, str, str, float], T], *, profiled: bool = True, **wishes: Any
) -> T:
    """Two jobs on one card, the second placed there while two others wait, and both known alone unless told."""

    async def scene() -> T:
        with one_card(state) as (engine, journal):
            resident, since = started(engine, workload="resident")
            alone(engine, resident, since)
            if profiled:
                engine.profiles.add(profile("newcomer"))
            newcomer = engine.submit(request(workload="newcomer", **wishes)).id
            for _ in range(2):
                engine.submit(request(workload="resident"))
            engine.schedule()
            assert engine.queries.job(newcomer).state == "starting", engine.why(newcomer)
            return then(engine, journal, resident, newcomer, engine.parts.tenants.placed[newcomer].since)

    return asyncio.run(scene())


def profile(family: str) -> JobProfile:
    return msgspec.structs.replace(
        BERT, family=family, batch=None, step_seconds=0.01, samples_per_second=float(NEWCOMER)
    )


def alone(engine: Engine, job: str, since: float) -> None:
    together(engine, {job: RESIDENT}, since)


def together(engine: Engine, rates: dict[str, int], since: float, seconds: int = int(OBSERVE_S) + 2) -> None:
    for second in range(1, seconds + 1):
        for job, rate in rates.items():
            engine.interference.handle(Reported(job, since + second, steps(samples=rate, batch=1)))
        engine.interference.tick(since + second)


def events(journal: Journal, kind: str) -> list[JournalEvent]:
    return [event for event in journal.events() if event.kind == kind]


def gain_expected(engine: Engine) -> float:
    speeds = engine.profiles.belief.speeds(tenant_set_of("V100", ("newcomer", "resident")))
    return sum(speed.mean for speed in speeds) - 1


def test_a_newcomer_that_does_harm_is_told_to_leave_with_the_numbers(tmp_path: Path) -> None:
    def scene(engine: Engine, journal: Journal, resident: str, newcomer: str, since: float) -> None:
        together(engine, {resident: 30, newcomer: 40}, since)
        (event,) = events(journal, "reverting")
        assert event.job == newcomer
        assert "was at 30%" in event.text
        assert "was at 40%" in event.text
        assert "expected at" in event.text
        assert "sharing must add" in event.text
        assert journal.job(newcomer).stop == "revert"
        assert gain_expected(engine) == pytest.approx(-0.3, abs=0.1), "the next placement knows"

    in_company(tmp_path, scene)


def test_a_newcomer_that_was_never_alone_is_judged_by_what_it_does_to_the_other(tmp_path: Path) -> None:
    def scene(engine: Engine, journal: Journal, resident: str, newcomer: str, since: float) -> None:
        together(engine, {resident: 10, newcomer: 40}, since)
        (event,) = events(journal, "reverting")
        assert event.job == newcomer
        assert f"{resident} expected at" in event.text
        assert f"{newcomer} expected at" not in event.text
        assert gain_expected(engine) < -0.2, "the next placement knows"

    in_company(tmp_path, scene, profiled=False)


def test_a_newcomer_that_does_no_harm_stays_and_its_speed_is_shown(tmp_path: Path) -> None:
    def scene(engine: Engine, journal: Journal, resident: str, newcomer: str, since: float) -> None:
        expected = engine.queries.job(newcomer).predicted
        together(engine, {resident: 90, newcomer: 80}, since)
        assert events(journal, "reverting") == []
        assert gain_expected(engine) == pytest.approx(0.7, abs=0.1)
        view = engine.queries.job(newcomer)
        assert view.speed == pytest.approx(0.8)
        assert view.predicted == expected == pytest.approx(0.58, abs=0.05), "what was expected, not what is known now"
        told = {one["job"]: one for one in engine.why(resident)["company"]}
        assert told[resident]["measured"] == pytest.approx(0.9)
        assert told[newcomer]["predicted"] == view.predicted

    in_company(tmp_path, scene)


def test_the_first_pair_is_tried_once_one_of_the_two_was_measured_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        with one_card(tmp_path) as (engine, journal):
            resident, since = started(engine, workload="resident")
            newcomer = engine.submit(request(workload="newcomer")).id
            engine.schedule()
            assert engine.queries.job(newcomer).state == "queued", "from two that were never alone nothing is learned"
            learned: list[bool] = []
            engine.interference.learned.subscribe(lambda: learned.append(True))
            alone(engine, resident, since)
            assert learned, "so that the queue is looked at again"
            engine.schedule()
            assert engine.queries.job(newcomer).state == "starting", "no other job waits"
            together(engine, {resident: 20, newcomer: 40}, engine.parts.tenants.placed[newcomer].since)
            assert [event.job for event in events(journal, "reverting")] == [newcomer]
            assert gain_expected(engine) < 0, "and the pair is not tried again"

    asyncio.run(scene())


def test_a_job_that_may_not_be_reverted_stays_whatever_it_does(tmp_path: Path) -> None:
    def scene(engine: Engine, journal: Journal, resident: str, newcomer: str, since: float) -> None:
        together(engine, {resident: 30, newcomer: 40}, since)
        assert events(journal, "reverting") == []
        assert gain_expected(engine) < 0, "but it is learned"

    in_company(tmp_path, scene, revert=False)


def test_a_job_that_never_reports_is_never_reverted(tmp_path: Path) -> None:
    def scene(engine: Engine, journal: Journal, resident: str, newcomer: str, since: float) -> None:
        long = int(GIVE_UP_AFTER * OBSERVE_S + LOADING_S) + 5
        together(engine, {resident: 10}, since, long)
        assert events(journal, "reverting") == []
        together(engine, {resident: 10, newcomer: 10}, since + long)
        assert events(journal, "reverting") == [], "it is too late to take work from it"

    in_company(tmp_path, scene)


@pytest.mark.parametrize("poison", [1000 * NEWCOMER, 0])
def test_a_poisoned_observation_is_refused_and_said_once(tmp_path: Path, poison: int) -> None:
    def scene(engine: Engine, journal: Journal, resident: str, newcomer: str, since: float) -> None:
        before = gain_expected(engine)
        together(engine, {resident: 90, newcomer: poison}, since)
        engine.interference.remove(newcomer, since + 50)
        assert gain_expected(engine) == before
        assert [event.job for event in events(journal, "refused")] == [newcomer]
        for company in (("newcomer", "resident"), ("newcomer", "newcomer"), ("resident",) * 3):
            assert all(
                0 < part <= 1.5 for one in engine.profiles.belief.speeds(tenant_set_of("V100", company)) for part in one
            )

    in_company(tmp_path, scene)


def test_a_pair_is_parted_once_only(tmp_path: Path) -> None:
    def scene(engine: Engine, journal: Journal, resident: str, newcomer: str, since: float) -> None:
        together(engine, {resident: 30, newcomer: 40}, since)
        placement, asked = engine.parts.tenants.placed[newcomer].placement, request(workload="newcomer")
        engine.interference.remove(newcomer, since + 30)
        engine.interference.add(
            PlacedJob(placement=placement, request=asked, gpu_type="V100", crowding=2.0, since=since + 40)
        )
        together(engine, {resident: 30, newcomer: 40}, since + 40)
        assert len(events(journal, "reverting")) == 1

    in_company(tmp_path, scene)


def test_sizes_that_were_tuned_say_nothing_of_a_workload_at_its_own(tmp_path: Path) -> None:
    def scene(engine: Engine, journal: Journal, resident: str, newcomer: str, since: float) -> None:
        before = gain_expected(engine)
        engine.interference.handle(Connected(newcomer, since, Hello(v=1, job=newcomer, pid=1, batch=64)))
        together(engine, {resident: 30, newcomer: 40}, since)  # at a batch size of 1
        assert gain_expected(engine) == before

    in_company(tmp_path, scene)


def test_an_absurd_gradient_norm_is_not_taken_and_the_speed_is() -> None:
    tenant = placed("j", request(batch=32), since=0.0)
    tuned = Coordinator("GPU 0")
    tuned.handle(coordinator_event(Connected("j", 0.0, Hello(v=1, job="j", pid=1, batch=32, min=8, max=64)), tenant))
    for second in range(1, 40):
        sqr = 1e308 if second % 2 else -1e308
        report = coordinator_event(Reported("j", float(second), steps(grad_sqr=sqr, grad_var=1e308)), tenant)
        tuned.handle(report)
        tuned.check()
    noise = tuned._seats["j"].noise_scale
    assert noise is None or NOISE_BOUNDS[0] * 32 <= noise <= NOISE_BOUNDS[1] * 32
    (speed,) = (tuned.history("j")[0].measured or {}).values()
    assert speed == pytest.approx(320.0)


# Latency objectives


def test_a_latency_without_a_profile_is_refused_and_one_that_cannot_be_held_too(tmp_path: Path) -> None:
    async def scene() -> None:
        with one_card(tmp_path) as (engine, _):
            with pytest.raises(InputError, match="run `cotenant profile` with this command first"):
                engine.submit(request(workload="bert", batch=32, latency_s=0.05))
            engine.profiles.add(BERT)
            with pytest.raises(InputError, match="takes 20 ms even alone on a V100"):
                engine.submit(request(workload="bert", batch=32, latency_s=0.01))

    asyncio.run(scene())


def test_the_smallest_share_that_holds_is_given_and_enforced_and_survives_a_restart(tmp_path: Path) -> None:
    async def first() -> str:
        with one_card(tmp_path) as (engine, _):
            engine.profiles.add(BERT)  # 20 ms alone, half of the card
            job = engine.submit(request(workload="bert", batch=32, latency_s=0.05)).id
            engine.schedule()
            demand = engine.parts.tenants.placed[job].placement.job.demand
            assert demand.compute == 200, "50 % of 20 ms at 20 % of the card is 50 ms"
            return job

    async def second(job: str) -> None:
        with one_card(tmp_path) as (engine, _):
            engine.profiles.remove(engine.profiles.find())
            engine.recover()
            assert engine.parts.tenants.placed[job].placement.job.demand.compute == 200
            assert engine.queries.job(job).gpus == (0,)
            assert engine.queries.gpus()[0].free_compute == 800

    asyncio.run(second(asyncio.run(first())))


def test_a_violation_is_an_event_once_a_minute_and_counted_each_time(tmp_path: Path) -> None:
    async def scene() -> None:
        with one_card(tmp_path) as (engine, journal):
            engine.profiles.add(BERT)
            engine.submit(request(workload="bert", batch=32, latency_s=0.05))
            engine.schedule()
            (job,) = engine.parts.tenants.placed
            for second in range(90):
                engine.interference.handle(Reported(job, 1000.0 + second, steps(n=10, wall_s=1.0)))
            said = [event.text for event in events(journal, "slo-violated")]
            assert said == ["steps took 100 ms over 3 s; the objective is 50 ms"] * 2
            assert engine.queries.job(job).slo_violations == engine.queries.status()["slo_violations"] == 30
            for second in range(90):
                engine.interference.handle(Reported(job, 2000.0 + second, steps(n=30, wall_s=1.0)))
            assert engine.queries.job(job).slo_violations == 30

    asyncio.run(scene())


def test_a_latency_that_the_policy_does_not_look_at_is_told(tmp_path: Path) -> None:
    async def scene(policy: str) -> str:
        (tmp_path / policy).mkdir()
        with one_card(tmp_path / policy, policy) as (engine, _):
            engine.profiles.add(BERT)
            job = engine.submit(request(workload="bert", batch=32, latency_s=0.08)).id
            engine.schedule()
            return "\n".join(engine.queries.job(job).enforcement)

    assert "latency: binpack does not choose neighbours by it" in asyncio.run(scene("binpack"))
    assert "latency" not in asyncio.run(scene("cotenant"))


def beside_a_server(state: Path, then: Callable[[Engine, Journal, str, str], None], before: int = 30) -> None:
    """A server that promises 80 ms and does so many steps a second; then somebody comes beside it."""

    async def scene() -> None:
        with one_card(state) as (engine, journal):
            engine.profiles.add(BERT)
            engine.profiles.add(profile("newcomer"))
            pair = {"server": "bert@32", "newcomer": "newcomer"}
            engine.profiles.observe("V100", pair, {"server": 1.0, "newcomer": 1.0})
            server = engine.submit(request(workload="bert", batch=32, latency_s=0.08)).id
            engine.schedule()
            serve(engine, server, before, 0.0)
            newcomer = engine.submit(request(workload="newcomer")).id
            engine.schedule()
            assert engine.queries.job(newcomer).state == "starting", engine.why(newcomer)
            then(engine, journal, server, newcomer)

    asyncio.run(scene())


def serve(engine: Engine, server: str, per_second: int, since: float, seconds: int = 12) -> None:
    for second in range(seconds):
        engine.interference.handle(Reported(server, 1e6 + since + second, steps(n=per_second, wall_s=1.0)))


def test_who_comes_beside_a_server_and_breaks_its_promise_leaves_and_does_not_come_back(tmp_path: Path) -> None:
    def scene(engine: Engine, journal: Journal, server: str, newcomer: str) -> None:
        serve(engine, server, 30, 100.0)
        assert events(journal, "reverting") == []
        serve(engine, server, 5, 200.0)
        (event,) = events(journal, "reverting")
        assert event.job == newcomer
        assert f"steps of {server} take 200 ms beside it; its objective is 80 ms" in event.text
        assert journal.job(newcomer).stop == "revert"
        again = engine.submit(request(workload="newcomer")).id
        engine.parts.tenants.remove(newcomer)
        engine.schedule()
        assert engine.queries.job(again).state == "queued"
        assert "keep the speed they were promised" in (engine.queries.job(again).reason or "")

    beside_a_server(tmp_path, scene)


def test_nobody_is_blamed_for_a_promise_that_was_broken_before_it_came(tmp_path: Path) -> None:
    def scene(engine: Engine, journal: Journal, server: str, newcomer: str) -> None:
        serve(engine, server, 5, 100.0)
        assert events(journal, "reverting") == []

    beside_a_server(tmp_path, scene, before=5)


# The whole of it, with real processes

TRAIN = """
import time
from cotenant.job import connect
with connect() as session:
    while True:
        with session.step(samples=8):
            time.sleep(0.02)
"""


@pytest.mark.slow
def test_two_jobs_that_halve_each_other_are_parted_and_the_next_daemon_still_knows() -> None:
    with running_daemon("--policy", "cotenant", "--queue", "aged", "--look", "2") as daemon:
        daemon.stop()
        daemon.up("--simulate", "1", "--gpu-memory", "1GiB")
        train = (sys.executable, "-c", TRAIN)
        first = train_job(daemon, train)
        until(lambda: daemon.client.get("/v1/profiles", list[dict[str, Any]]))
        others = [train_job(daemon, train) for _ in range(3)]  # fewer would wait for a GPU alone
        reverted = until(lambda: next((job for job in others if "reverted" in (daemon.job(job).reason or "")), None))
        view = until(lambda: one if (one := daemon.job(reverted)).state == "queued" else None)
        assert view.attempts == 1
        assert daemon.job(first).state == "running"
        daemon.kill()
        daemon.up("--simulate", "1", "--gpu-memory", "1GiB")
        reason = daemon.job(reverted).reason or ""
        adds = float(reason.partition("best slot adds ")[2].split()[0])
        assert adds < 10, "two that never met are believed to add 15.5 %"


@pytest.mark.slow
def test_the_page_of_metrics_shows_how_much_two_jobs_slow_each_other_down() -> None:
    with running_daemon("--policy", "binpack", "--look", "2") as daemon:
        train = (sys.executable, "-c", TRAIN)
        first = train_job(daemon, train)
        until(lambda: daemon.client.get("/v1/profiles", list[dict[str, Any]]))
        pair = {first, train_job(daemon, train)}

        def measured() -> dict[str, tuple[float, float]] | None:
            text = b"".join(daemon.client.lines("/metrics"))
            speeds, slowdowns = (by_job(text, f"cotenant_tenant_{name}_ratio") for name in ("speed", "slowdown"))
            known = {job: (speeds[job], slowdowns[job]) for job in pair & speeds.keys() if slowdowns[job] > 1.3}
            return known if known.keys() == pair else None

        for speed, slowdown in until(measured).values():
            assert 0.2 < speed < 0.8, "two programs that are always busy on one GPU"
            assert slowdown == pytest.approx(1 / speed)


def by_job(text: bytes, name: str) -> dict[str, float]:
    """A metric of tenants by job."""
    return {dict(labels)["tenant"]: value for (one, labels), value in series(text).items() if one == name}


def train_job(daemon: Daemon, command: tuple[str, ...]) -> str:
    return daemon.submit(*command, workload="busy", env={"PYTHONPATH": ":".join(sys.path)}, grace_s=1.0).id
