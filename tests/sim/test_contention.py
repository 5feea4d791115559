# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Timed runs in a world where neighbours slow each other down."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from cotenant.core.interference import ALONE, Speed
from cotenant.core.model import Demand, Gpu, Job, Machine
from cotenant.core.sharing.speeds import Basis, Belief, Predicted, Tabled, TenantSet, tenant_set_of
from cotenant.core.units import MilliGpu, Seconds
from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival
from cotenant.sim.colocation import FILE, Colocation, Oracle, read_colocation, signature
from cotenant.sim.contention import Episode
from cotenant.sim.experiment import Plan, check, run_one
from cotenant.sim.timed import TimedRun, Timing

PAIR = TenantSet("v100", ("bert", "lstm"))


def world(*speeds: float) -> Colocation:
    rates = {("v100", name): 2.0 for name in ("bert", "lstm")} | {("k80", name): 0.5 for name in ("bert", "lstm")}
    return Colocation(rates, {PAIR: (speeds[0], speeds[1])}, frozenset())


def arrival(name: str, workload: str, duration: float, at: float = 0.0, estimate: float | None = None) -> Arrival:
    job = Job(
        id=name,
        demand=Demand(compute=MilliGpu(0), workload=workload),
        submitted=Seconds(at),
        estimate=None if estimate is None else Seconds(estimate),
    )
    return Arrival(job, Seconds(duration))


def run(
    truth: Colocation,
    policy: str,
    *arrivals: Arrival,
    belief: Belief | None = None,
    card: str = "v100",
    gpus: int = 1,
    noise: float = 0.0,
    startup: float = 0.0,
) -> dict[str, float]:
    machine = Machine(name="a", gpus=tuple(Gpu(uuid=f"a-{i}", type=card, slots=2) for i in range(gpus)))
    timing = Timing(
        restart=Seconds(0.0),
        startup=Seconds(startup),
        look=Seconds(10.0),
        noise=noise,
        fragmentation=False,
        heat=False,
    )
    timed = TimedRun([machine], policy, {}, 0, timing, world=truth, belief=belief)
    return dict(timed.run(iter(arrivals)).result(policy, 0).summary)


def test_neighbours_progress_at_their_shared_speeds_until_one_ends() -> None:
    # bert: 100 s at half speed; lstm: 160 of its 200 s done by then, the rest alone
    summary = run(world(0.5, 0.8), "share", arrival("b", "bert", 50), arrival("l", "lstm", 200))
    assert summary["makespan"] == pytest.approx(100 + 200 - 80)
    assert summary["mean_jct"] == pytest.approx((100 + 220) / 2)
    assert summary["shared"] == 2


def test_a_job_that_starts_up_holds_its_gpu_and_slows_no_other() -> None:
    # b works alone from 20 to 30 s and does 10 of its 50 s. Then both work; b ends at 110 s, and l has done 64 s.
    summary = run(world(0.5, 0.8), "share", arrival("b", "bert", 50), arrival("l", "lstm", 200, at=10), startup=20)
    assert summary["makespan"] == pytest.approx(110 + 200 - 64)
    assert summary["mean_jct"] == pytest.approx((110 + 246 - 10) / 2)
    alone = run(world(0.5, 0.8), "alone", arrival("b", "bert", 50), arrival("l", "lstm", 200), startup=20)
    assert alone["makespan"] == pytest.approx(20 + 50 + 20 + 200)


def test_a_job_that_is_parted_while_it_starts_up_begins_again() -> None:
    belief = Predicted({name: signature(name, 2.0) for name in ("bert", "lstm")})
    for other in "abcdefgh":
        belief.observe(tenant_set_of("v100", ["lstm", other]), [0.95, 0.95])
        belief.observe(tenant_set_of("v100", ["bert", other]), [0.95, 0.95])
    jobs = arrival("l", "lstm", 1000), arrival("b", "bert", 100, at=1.0)
    summary = run(world(0.3, 0.4), "cotenant", *jobs, belief=belief, startup=50)
    assert summary["reverted"] == 1
    # l: 50 s of start-up and its work, and never beside a job that works; then b, from its beginning
    assert summary["makespan"] == pytest.approx(1050 + 150)


def test_alone_nobody_is_slowed() -> None:
    summary = run(world(0.5, 0.8), "alone", arrival("b", "bert", 50), arrival("l", "lstm", 200))
    assert summary["makespan"] == pytest.approx(250)
    assert summary["shared"] == 0


def test_a_slower_card_takes_longer() -> None:
    assert run(world(1, 1), "alone", arrival("b", "bert", 50), card="k80")["makespan"] == pytest.approx(200)


def test_a_pair_that_turns_out_badly_is_parted_after_the_look() -> None:
    belief = Predicted({name: signature(name, 2.0) for name in ("bert", "lstm")})
    for other in "abcdefgh":
        belief.observe(tenant_set_of("v100", ["lstm", other]), [0.95, 0.95])
        belief.observe(tenant_set_of("v100", ["bert", other]), [0.95, 0.95])
    summary = run(
        world(0.3, 0.4), "cotenant", arrival("l", "lstm", 1000), arrival("b", "bert", 100, at=1.0), belief=belief
    )
    # ten seconds at 0.3 and 0.4, then it is known: nobody tries again
    assert summary["shared"] == summary["reverted"] == 1
    assert summary["makespan"] == pytest.approx(1000 + 6 + 97)
    assert summary["mean_jct"] == pytest.approx((1006 + 1102) / 2), "the one that was there before stays"


def test_a_pair_that_does_well_stays_and_is_learned() -> None:
    belief = Predicted()
    before = belief.version
    summary = run(world(0.95, 0.95), "share", arrival("l", "lstm", 100), arrival("b", "bert", 100), belief=belief)
    assert summary["reverted"] == 0
    assert belief.version > before
    assert belief.speeds(PAIR)[0].mean == pytest.approx(0.95, abs=0.05)


class Recorder:
    """A belief that keeps the measurements, and expects no interference."""

    version, knows_memory = 0, False

    def __init__(self) -> None:
        self.measured: list[Sequence[float | None]] = []

    def speeds(self, company: TenantSet) -> tuple[Speed, ...]:
        return (ALONE,) * len(company.workloads)

    def mildness(self, gpu_type: str, workload: str | None) -> float:
        return 1.0

    def basis(self, pair: TenantSet) -> Basis:
        return Basis.MEASURED

    def apart(self, company: TenantSet) -> bool:
        return False

    def observe(self, company: TenantSet, speeds: Sequence[float | None]) -> bool:
        self.measured.append(speeds)
        return False


def measured_in(noise: float, pairs: int = 400) -> tuple[list[Sequence[float | None]], float]:
    """What is measured of so many pairs, one after the other, and when the last of them has ended."""
    jobs = [
        arrival(f"{name}{i}", name, 100, at=1000.0 * i + later)
        for i in range(pairs)
        for later, name in enumerate(("bert", "lstm"))
    ]
    belief = Recorder()
    return belief.measured, run(world(0.5, 0.8), "share", *jobs, belief=belief, noise=noise)["makespan"]


def test_without_noise_the_true_speeds_are_measured() -> None:
    measured, _ = measured_in(0.0, pairs=3)
    assert measured == [[0.5, 0.8]] * 3


def test_noise_is_the_spread_of_the_logarithm_of_each_measured_speed() -> None:
    measured, ended = measured_in(0.1)
    errors = [
        [math.log(speed / true) for speed in column if speed]
        for column, true in zip(zip(*measured, strict=True), (0.5, 0.8), strict=True)
    ]
    for of_one in errors:
        assert len(of_one) == 400
        assert statistics.mean(of_one) == pytest.approx(0.0, abs=0.02)
        assert statistics.stdev(of_one) == pytest.approx(0.1, rel=0.15)
    assert abs(statistics.correlation(*errors)) < 0.2, "the two jobs of a pair are measured independently"
    assert ended == measured_in(0.0)[1], "only what is measured is noisy, not how fast jobs run"


def test_pairs_that_ran_out_of_memory_are_never_put_together() -> None:
    truth = world(0.9, 0.9)
    belief = Tabled({}, learns=False, apart=frozenset({PAIR}))
    for policy in ("share", "iadeep", "coscheml", "lucid", "cotenant", "binpack", "spread@online"):
        assert run(truth, policy, arrival("b", "bert", 50), arrival("l", "lstm", 50), belief=belief)["shared"] == 0


def test_in_the_measured_world_pairs_that_ran_out_of_memory_are_never_put_together(data: Path, tmp_path: Path) -> None:
    pair = min(one for one in read_colocation(data / FILE).apart if one.gpu_type == "v100")
    trace = tmp_path / "jobs.csv"
    rows = [f"{i},0,50,{workload}" for i, workload in enumerate(pair.workloads)]
    trace.write_text("\n".join(["id,submitted_s,duration_s,workload", *rows, ""]))
    for oracle in (False, True):
        plan = Plan(
            trace=str(trace), nodes="1x1:v100", policies=("share",), seeds=(1,), mode="timed",
            world="gavel", oracle=oracle, data=data,
        )  # fmt: skip
        check(plan)
        summary = run_one(plan, "share", 1).result.summary
        assert (summary["jobs"], summary["shared"]) == (2, 0)


def test_jobs_of_gavels_own_trace_share_gpus_in_its_world(data: Path) -> None:
    plan = Plan(
        trace="gavel", nodes="4x2:v100", policies=("alone", "share"), seeds=(1,), mode="timed",
        world="gavel", data=data, limit=60,
    )  # fmt: skip
    check(plan)
    apart, together = (run_one(plan, policy, 1).result.summary for policy in plan.policies)
    assert apart["shared"] == 0
    assert together["shared"] > 20
    assert together["mean_wait"] < apart["mean_wait"]


def test_under_the_oracle_nothing_is_on_trial() -> None:
    truth = world(0.9, 0.9)
    summary = run(truth, "cotenant", arrival("b", "bert", 50), arrival("l", "lstm", 50), belief=Oracle(truth))
    assert (summary["shared"], summary["trials"], summary["reverted"]) == (2, 0, 0)


def test_a_job_that_came_to_an_idle_card_is_not_sent_away_for_who_came_later() -> None:
    # few wait when the first come, so beside others they would have had to add more than 0.3; many do for the others
    truth = world(0.7, 0.6)
    jobs = [arrival(f"l{i}", "lstm", 500, at=i) for i in range(4)]
    jobs += [arrival(f"b{i}", "bert", 500, at=10.0) for i in range(8)]
    summary = run(truth, "cotenant", *jobs, belief=Oracle(truth), gpus=4)
    assert summary["shared"] >= 4
    assert summary["reverted"] == 0


def test_gavel_was_measured_on_three_cards(data: Path) -> None:
    truth = read_colocation(data / FILE)
    assert truth.gpu_types == ["k80", "p100", "v100"]
    assert [sum(pair.gpu_type == card for pair in truth.pairs) for card in truth.gpu_types] == [306, 340, 330]
    assert all(len(truth.workloads(card)) == 26 for card in truth.gpu_types)
    same = tenant_set_of("v100", ["A3C", "A3C"])
    assert truth.speeds(same) == (0.5097, 0.5097)
    assert truth.alone("v100", "A3C") == 1.0
    assert truth.alone("k80", "A3C") < 1.0
    assert truth.signatures("v100")["LM (batch size 10)"].family == "LM"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("x,v100,a,b,1,1,1,1,nan,0.5,0", "norm1"),
        ("x,v100,a,b,0,1,1,1,0.5,0.5,0", "solo1_steps_s"),
        ("x,v100,a,b,1,1,1,1,0.5,0.5", "cells"),
    ],
)
def test_a_broken_table_of_pairs_is_refused_with_its_line(tmp_path: Path, row: str, complaint: str) -> None:
    columns = "source,gpu,job1,job2,solo1_steps_s,solo2_steps_s,co1_steps_s,co2_steps_s,norm1,norm2,oom"
    path = tmp_path / "pairs.csv"
    path.write_text(f"{columns}\n{row}\n")
    with pytest.raises(InputError, match=f":2: .*{complaint}"):
        read_colocation(path)


def test_with_re_pairing_a_job_moves_to_a_card_that_has_become_idle() -> None:
    truth = world(0.6, 0.6)
    jobs = [arrival("a", "bert", 500, estimate=500), arrival("b", "bert", 10, estimate=10)]
    jobs += [arrival("c", "lstm", 500, at=1.0, estimate=500)]
    machine = Machine(name="a", gpus=tuple(Gpu(uuid=f"a-{i}", type="v100", slots=2) for i in range(2)))
    found = {}
    for repair in (False, True):
        timing = Timing(restart=Seconds(5.0), look=Seconds(2.0), repair=repair, fragmentation=False, heat=False)
        timed = TimedRun([machine], "share", {}, 0, timing, world=truth, belief=Oracle(truth))
        found[repair] = timed.run(iter(jobs)).result("share", 0).summary
    assert (found[False]["moved"], found[True]["moved"]) == (0, 1)
    assert found[True]["mean_jct"] < found[False]["mean_jct"]


class Doubling:
    """Sizes are tried for 10 s, in which both do half of what they do alone, and all of it afterwards."""

    def __init__(self, *after: float) -> None:
        self._after = after

    def episode(self, company: TenantSet) -> Episode | None:
        return Episode(10.0, (0.5, 0.5), self._after) if company == PAIR else None


def tuned_run(*arrivals: Arrival, after: tuple[float, float] = (1.0, 1.0), startup: float = 0.0) -> list[float]:
    """The completion times of jobs of which two may share a GPU, shortest first."""
    truth = world(0.6, 0.6)
    machine = Machine(name="a", gpus=(Gpu(uuid="a-0", type="v100", slots=2),))
    timing = Timing(startup=Seconds(startup), fragmentation=False, heat=False)
    timed = TimedRun([machine], "share", {}, 0, timing, world=truth, belief=Oracle(truth), tuning=Doubling(*after))
    result = timed.run(iter(arrivals)).result("share", 0)
    assert result.summary["tuned"] <= 1
    return [result.quantiles["jct"][i] for i in (0, 100)]


def test_tenants_that_are_tuned_run_as_tuning_costs_and_then_as_it_gains() -> None:
    both = arrival("a", "bert", 100), arrival("b", "lstm", 100)
    assert tuned_run(*both) == pytest.approx([105, 105])
    assert tuned_run(*both, startup=3.0) == pytest.approx([108, 108])
    assert tuned_run(*both, after=(1.0, 0.5)) == pytest.approx([105, 5 + 100 + 47.5]), "the second is alone at the end"


def test_an_episode_ends_with_the_pair() -> None:
    assert tuned_run(arrival("a", "bert", 2), arrival("b", "lstm", 100)) == pytest.approx([4, 102])


def test_jobs_whose_sizes_cannot_be_changed_are_not_tuned() -> None:
    assert tuned_run(arrival("a", "bert", 100), arrival("b", "bert", 100)) == pytest.approx([100, 100])
