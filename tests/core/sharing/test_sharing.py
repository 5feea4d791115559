# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who goes beside whom: beliefs, gains, gates; whole decisions are in the scenario tables."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, spec_of
from cotenant.core.interference import ALONE, Signature, Speed
from cotenant.core.model import Demand, Placement, Reason
from cotenant.core.placement.deciding import decide, judge_again, rank
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.queue import Queue
from cotenant.core.placement.ranking import Ranker
from cotenant.core.sharing.gates import LEAST_GAIN_CROWDED, LEAST_GAIN_QUIET, PLACE, least_gain, worth_sharing
from cotenant.core.sharing.objectives import demands_for, latency_at
from cotenant.core.sharing.orders import by_gain, gain, low, mean, meek, promises, unhindered, untried
from cotenant.core.sharing.speeds import FEW_ROWS, Basis, Predicted, Tabled, TenantSet, tenant_set_of
from cotenant.core.units import MilliGpu, Percent, Seconds
from tests.core.builders import card, cluster_with, job, machine, machine_of, node, placed
from tests.properties.strategies import examples

PAIR = TenantSet("gpu", ("bert", "lstm"))


def guest(workload: str | None) -> Demand:
    return Demand(compute=MilliGpu(0), workload=workload)


def speeds_of_pair(*speeds: float, of: TenantSet = PAIR, learns: bool = False) -> Tabled:
    return Tabled({of: speeds}, learns=learns)


# What a newcomer adds


def test_an_idle_card_gains_a_whole_card_of_work() -> None:
    assert gain(speeds_of_pair(0.5, 0.5), mean, guest("bert"), node(machine()), 0) == 1.0


def test_the_gain_beside_one_is_what_both_do_less_what_it_did_alone() -> None:
    assert gain(
        speeds_of_pair(0.75, 0.5), mean, guest("bert"), node(machine(), (guest("lstm"), (0,))), 0
    ) == pytest.approx(0.25)


def test_the_gain_beside_two_counts_what_both_lose() -> None:
    three = tenant_set_of("gpu", ["bert", "lstm", "vgg"])
    belief = Tabled({tenant_set_of("gpu", ["lstm", "vgg"]): (0.8, 0.7), three: (0.5, 0.6, 0.6)}, learns=False)
    here = node(machine(), (guest("lstm"), (0,)), (guest("vgg"), (0,)))
    assert gain(belief, mean, guest("bert"), here, 0) == pytest.approx(1.7 - 1.5)


def test_on_several_cards_the_worst_counts() -> None:
    here = node(machine(gpus=2), (guest("lstm"), (1,)))
    assert by_gain(speeds_of_pair(0.75, 0.5), mean)(guest("bert"), here, [(0, 1)]) == [pytest.approx(0.25)]


def test_two_tenants_of_one_workload_are_told_apart_from_other_pairs() -> None:
    belief = Tabled({tenant_set_of("gpu", ["bert", "bert"]): (0.4, 0.4), PAIR: (0.9, 0.9)}, learns=False)
    here = node(machine(), (guest("bert"), (0,)))
    assert gain(belief, mean, guest("bert"), here, 0) == pytest.approx(-0.2)


# Compute shares


def holder(workload: str | None, share: int = 300) -> Demand:
    return Demand(compute=MilliGpu(share), workload=workload)


def test_beside_tenants_with_shares_a_newcomer_with_one_is_not_expected_to_slow_anyone() -> None:
    here = node(machine(), (holder("lstm"), (0,)), (holder(None), (0,)))
    assert gain(Predicted(), mean, holder("bert"), here, 0) == gain(Predicted(), low, holder("bert"), here, 0) == 1.0
    assert unhindered(Predicted())(holder("bert"), here, [(0,)]) == [1.0]
    assert gain(Predicted(), mean, guest("bert"), here, 0) < 1.0, "without a share it takes what it can get"


def test_a_share_does_not_hold_on_a_gpu_of_which_more_than_all_is_given_out() -> None:
    crowded = machine_of("a", card(compute_scaling=Percent(200)))
    here = node(crowded, (holder("lstm"), (0,)))
    assert gain(Predicted(), mean, holder("bert"), here, 0) < 1.0
    assert unhindered(Predicted())(holder("bert"), here, [(0,)]) == [0.0]


def test_tenants_with_shares_are_slowed_by_those_beside_which_they_were_measured() -> None:
    belief = Predicted()
    belief.observe(PAIR, [0.6, 0.8])
    beside_one = node(machine(), (holder("lstm"), (0,)))
    beside_two = node(machine(), (holder("lstm"), (0,)), (holder("vgg"), (0,)))
    assert gain(belief, mean, holder("bert"), beside_one, 0) == pytest.approx(0.4, abs=0.1)
    assert gain(belief, mean, holder("bert"), beside_two, 0) == gain(belief, mean, holder("bert"), beside_one, 0)
    assert gain(belief, mean, holder("vgg"), beside_one, 0) == 1.0


@given(st.lists(st.tuples(st.sampled_from(["bert", "lstm", "vgg"]), st.integers(1, 250)), max_size=3))
@examples(30)
def test_without_measurements_the_policy_places_shares_as_the_fragmentation_policy_does(
    tenants: list[tuple[str, int]],
) -> None:
    there = Cluster.of([machine(gpus=2)])
    known = Knowledge({spec_of(holder("bert")): 3, spec_of(Demand()): 1}, inventory_of([machine(gpus=2)]))
    for number, (workload, share) in enumerate(tenants):
        newcomer = job(str(number), holder(workload, share))
        ours, theirs = (rank(build_policy(name, known), newcomer, there) for name in ("cotenant", "fragmentation"))
        assert ours.fits[0].slot == theirs.fits[0].slot
        assert ours.verdict == PLACE
        there = there.place(Placement(newcomer, ours.fits[0].slot))


# What is tried


def test_the_first_pairs_are_tried_if_something_can_be_learned_from_them() -> None:
    belief = Predicted()
    assert belief.basis(PAIR) is Basis.PREDICTED, "nothing could be compared: neither was alone"
    belief.describe("lstm", Signature("lstm", 1, 0.1))
    assert belief.basis(PAIR) is Basis.UNTRIED
    here = node(machine(), (guest("lstm"), (0,)))
    assert untried(belief)(guest("bert"), here, [(0,)]) == [1.0]
    assert untried(belief)(guest("bert"), node(machine()), [(0,)]) == [0.0]
    assert untried(belief)(guest("bert"), node(machine(gpus=2), (guest("lstm"), (0,))), [(0, 1)]) == [0.0]
    belief.observe(PAIR, [None, 0.9])
    assert belief.basis(PAIR) is Basis.MEASURED
    assert untried(belief)(guest("bert"), here, [(0,)]) == [0.0]
    assert belief.basis(TenantSet("gpu", ("lstm", None))) is Basis.PREDICTED, "a job without a name teaches nothing"


def test_after_a_few_measurements_the_prediction_decides() -> None:
    belief = Predicted()
    belief.describe("lstm", Signature("lstm", 1, 0.1))
    for number in range(FEW_ROWS // 2):
        assert belief.basis(PAIR) is Basis.UNTRIED
        belief.observe(tenant_set_of("gpu", ["lstm", f"other-{number}"]), [0.9, 0.9])
    assert belief.basis(PAIR) is Basis.PREDICTED
    assert belief.basis(TenantSet("other", PAIR.workloads)) is Basis.UNTRIED, "of that GPU type nothing is known"


# Gates


def test_the_least_gain_falls_with_crowding_and_stays_between_its_ends() -> None:
    asked = [least_gain(crowding) for crowding in (0.0, 0.1, 1.0, 10.0, 1e9)]
    assert asked == sorted(asked, reverse=True)
    assert asked[0] == LEAST_GAIN_QUIET
    assert asked[-1] == pytest.approx(LEAST_GAIN_CROWDED)


@pytest.mark.parametrize("crowding", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_the_least_gain_is_between_those_of_a_gpu_at_once_and_after_another_job(crowding: float) -> None:
    after_another, at_once = 1 / (3 + 2 * crowding), 1 / (1 + crowding)
    assert 1.2 * after_another <= least_gain(crowding) <= at_once, "with a margin, since predictions are not exact"


def test_the_least_gain_exceeds_both_from_twelve_waiting_jobs_per_gpu_on() -> None:
    assert least_gain(11.0) < 1 / (1 + 11.0)
    assert least_gain(12.0) > 1 / (1 + 12.0)
    assert least_gain(1e9) == pytest.approx(LEAST_GAIN_CROWDED)


def test_a_pair_of_which_nothing_is_known_is_tried_if_three_jobs_per_gpu_wait() -> None:
    unknown = sum(map(mean, Predicted().speeds(PAIR))) - 1
    assert least_gain(3.0) < unknown < least_gain(2.0)


@pytest.mark.parametrize(
    ("score", "trial", "waits"),
    [
        ((1.0, 1.0, 1.0, 0.0), False, False),
        ((0.9, 0.0, 0.8, 0.0), False, False),
        ((0.9, 0.0, 0.2, 0.0), True, False),
        ((0.3, 0.0, 0.2, 0.0), False, True),
        ((-0.5, 0.0, -0.9, 0.0), False, True),
        ((-0.3, 0.0, 0.8, 0.0), False, True),
        ((0.1, 0.0, -0.7, 1.0), True, False),
    ],
    ids=["idle", "certain", "not sure", "too little", "a loss", "a loss that bounds do not show", "untried"],
)
def test_what_the_gate_says(score: tuple[float, ...], trial: bool, waits: bool) -> None:
    verdict = worth_sharing(score, 0.0)
    assert (verdict.trial, verdict.reason is not None) == (trial, waits)


def test_a_refusal_says_what_was_needed_and_what_there_was() -> None:
    reason = worth_sharing((0.3, 0.0, 0.2, 0.0), 0.0).reason
    assert (reason.check, reason.needed, reason.available) == ("gain", 500, 300) if reason else False
    assert "must add 50 %" in str(reason)


# Beliefs


def test_a_measured_pair_is_believed_and_changes_the_version() -> None:
    belief = Predicted()
    before = belief.version
    assert belief.observe(PAIR, [0.5, 0.9])
    assert belief.version > before
    assert [speed.mean for speed in belief.speeds(PAIR)] == pytest.approx([0.5, 0.9], abs=0.05)


def test_a_pair_that_was_measured_the_same_before_is_no_news() -> None:
    belief = Predicted()
    for _ in range(3):
        belief.observe(PAIR, [0.5, 0.9])
    version = belief.version
    assert not belief.observe(PAIR, [0.5, 0.9])
    assert belief.version == version


def test_one_speed_of_a_pair_teaches_too_and_a_table_wants_both() -> None:
    belief = Predicted()
    before = belief.speeds(PAIR)
    assert belief.observe(PAIR, [None, 0.1])
    assert belief.speeds(PAIR)[1].mean == pytest.approx(0.1, abs=0.05)
    assert belief.speeds(PAIR)[0].mean > 0.3
    assert not belief.observe(PAIR, [None, None])
    assert not belief.observe(PAIR, [None, math.nan])
    assert belief.speeds(PAIR)[1].mean < before[1].mean
    assert not speeds_of_pair(0.9, 0.9, learns=True).observe(PAIR, [0.5, None])


def test_what_is_learned_on_one_type_of_card_is_not_believed_of_another() -> None:
    belief = Predicted()
    fresh = belief.speeds(PAIR._replace(gpu_type="other"))
    belief.observe(PAIR, [0.3, 0.3])
    assert belief.speeds(PAIR._replace(gpu_type="other")) == fresh


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=2, max_size=2))
@examples(50)
def test_no_measurement_pushes_a_prediction_out_of_bounds(speeds: list[float]) -> None:
    belief = Predicted({"bert": Signature("bert", 8, 0.1)})
    belief.observe(PAIR, speeds)
    for speed in belief.speeds(PAIR):
        assert 0 < speed.low <= speed.mean <= speed.high <= 1.5


def test_of_three_on_a_card_each_is_slower_than_beside_one() -> None:
    belief = Predicted()
    pair = belief.speeds(PAIR)[0]
    three = belief.speeds(tenant_set_of("gpu", ["bert", "lstm", "vgg"]))[0]
    assert three.mean <= pair.mean
    assert belief.speeds(TenantSet("gpu", ("bert",))) == (ALONE,)


def test_larger_companies_do_not_teach_who_slowed_whom() -> None:
    assert not Predicted().observe(tenant_set_of("gpu", ["a", "b", "c"]), [0.5, 0.5, 0.5])


def test_two_that_do_not_fit_together_do_not_fit_beside_a_third_either() -> None:
    apart = frozenset({PAIR})
    for belief in (Predicted(apart=apart), Tabled({}, learns=False, apart=apart)):
        assert belief.apart(tenant_set_of("gpu", ["lstm", "vgg", "bert"]))
        assert not belief.apart(tenant_set_of("gpu", ["lstm", "vgg", "lstm"]))
        assert not belief.apart(tenant_set_of("other", ["lstm", "vgg", "bert"]))


def test_a_table_learns_only_if_it_may() -> None:
    fixed, learning = speeds_of_pair(0.9, 0.9), speeds_of_pair(0.9, 0.9, learns=True)
    assert not fixed.observe(PAIR, (0.4, 0.4))
    assert learning.observe(PAIR, (0.4, 0.4))
    assert (fixed.speeds(PAIR)[0].mean, learning.speeds(PAIR)[0].mean) == (0.9, 0.4)


# What is promised, and what Lucid allows


class Uncertain:
    """A belief with wide bounds, and with one mean speed for each workload beside all others."""

    version, knows_memory = 0, False

    def __init__(self, speed: Speed = ALONE, **mildness: float) -> None:
        self._speed, self._mildness = speed, mildness

    def speeds(self, company: TenantSet) -> tuple[Speed, ...]:
        return (self._speed,) * len(company.workloads)

    def mildness(self, gpu_type: str, workload: str | None) -> float:
        return self._mildness[str(workload)]

    def basis(self, pair: TenantSet) -> Basis:
        return Basis.MEASURED

    def apart(self, company: TenantSet) -> bool:
        return False

    def observe(self, company: TenantSet, speeds: object) -> bool:
        return False


@pytest.mark.parametrize("promised_to", ["newcomer", "tenant"])
@pytest.mark.parametrize(("least", "kept"), [(60, True), (61, False), (80, False), (95, False)])
def test_a_promised_speed_is_judged_by_the_lower_bound(promised_to: str, least: int, kept: bool) -> None:
    belief = Uncertain(Speed(mean=0.8, low=0.6, high=0.95))
    promise, plain = Demand(workload="bert", least_speed=Percent(least)), guest("lstm")
    newcomer, tenant = (promise, plain) if promised_to == "newcomer" else (plain, promise)
    found = promises(belief, newcomer, node(machine(), (tenant, (0,))), [0])
    assert found == [0] if kept else isinstance(found, Reason)


@pytest.mark.parametrize(
    ("tenant", "newcomer", "shares"),
    [
        (0.8, 0.1, True),
        (0.6, 0.6, True),
        (0.79, 0.1, False),
        (0.79, 0.59, False),
        (0.59, 0.8, True),
        (0.59, 0.59, False),
    ],
    ids=["0 and 2", "1 and 1", "1 and 2", "1 and 2 at the limit", "2 and 0 at the limit", "2 and 2"],
)
def test_lucid_shares_up_to_a_sum_of_two(tenant: float, newcomer: float, shares: bool) -> None:
    """Beside others a workload with 80 % of its speed scores 0, one with 60 % scores 1, and a slower one 2."""
    belief = Uncertain(bert=newcomer, lstm=tenant)
    found = meek(belief, guest("bert"), node(machine(), (guest("lstm"), (0,))), [0])
    assert found == [0] if shares else isinstance(found, Reason)


def test_lucid_counts_every_tenant_and_not_only_the_newcomer() -> None:
    belief = Uncertain(bert=0.7, lstm=0.7, vgg=0.7)
    pair = node(machine(), (guest("lstm"), (0,)), (guest("vgg"), (0,)))
    assert isinstance(meek(belief, guest("bert"), pair, [0]), Reason)
    assert meek(belief, guest("bert"), node(machine()), [0]) == [0]


# Decisions that learn


def test_what_was_remembered_is_forgotten_when_the_belief_changes() -> None:
    belief = speeds_of_pair(0.9, 0.9, learns=True)
    policy = build_policy("cotenant", Knowledge(belief=belief))
    cluster = cluster_with([machine()], placed("r", guest("lstm"), "a", 0))
    ranker = Ranker(policy)
    assert decide(policy, [job("new", guest("bert"))], cluster, Seconds(0.0), ranker=ranker).placements
    belief.observe(PAIR, (0.3, 0.3))
    assert not decide(policy, [job("new", guest("bert"))], cluster, Seconds(0.0), ranker=ranker).placements


def test_an_uncertain_pair_is_placed_on_trial_and_sent_back_once_measured() -> None:
    belief = Predicted()
    # others did well, so this pair probably does, too; but nobody has seen it
    for other in ("a", "b", "c", "d", "e", "f"):
        belief.observe(tenant_set_of("gpu", ["lstm", other]), [0.75, 0.75])
    policy = build_policy("cotenant", Knowledge(belief=belief))
    cluster = cluster_with([machine()], placed("r", guest("lstm"), "a", 0))
    waiting = [job(f"new-{i}", guest("bert")) for i in range(3)]
    decision = decide(policy, waiting, cluster, Seconds(0.0))
    (placement, *_) = decision.placements
    assert placement.trial
    assert sum(map(low, belief.speeds(PAIR))) - 1 <= least_gain(3.0) < sum(map(mean, belief.speeds(PAIR))) - 1
    pair = cluster.place(Placement(placement.job, placement.slot))
    assert judge_again(policy, placement, pair, decision.crowding).reason is None
    belief.observe(PAIR, [0.3, 0.3])
    belief.observe(PAIR, [0.3, 0.3])
    assert judge_again(policy, placement, pair, decision.crowding).reason is not None


def test_jobs_without_a_workload_are_still_placed() -> None:
    policy = build_policy("cotenant")
    decision = decide(policy, [job("plain", guest(None))], Cluster.of([machine()]), Seconds(0.0))
    assert decision.placements[0].slot.gpus == (0,)


def test_gpus_with_equal_room_but_other_tenants_are_told_apart() -> None:
    belief = Tabled({PAIR: (0.9, 0.9), tenant_set_of("gpu", ["bert", "vgg"]): (0.3, 0.3)}, learns=False)
    cluster = cluster_with(
        [machine_of("a", card(), card())], placed("r0", guest("vgg"), "a", 0), placed("r1", guest("lstm"), "a", 1)
    )
    policy = build_policy("cotenant", Knowledge(belief=belief))
    (placement,) = decide(policy, [job("new", guest("bert"))], cluster, Seconds(0.0)).placements
    assert placement.slot.gpus == (1,)


def test_the_aged_queue_lets_nobody_wait_for_ever() -> None:
    by = build_policy("cotenant", queue="aged").queue
    long = job("long", submitted=0.0, estimate=Seconds(100_000.0))
    short = [job(f"s{i}", submitted=i * 1000.0, estimate=Seconds(10.0)) for i in range(1000)]
    ahead = [one for one in short if by(one, Seconds(0.0)) < by(long, Seconds(0.0))]
    assert 0 < len(ahead) < len(short)
    assert math.isfinite(by(job("unknown"), Seconds(0.0)))


@pytest.mark.parametrize(("estimate", "first"), [(699.0, "later"), (701.0, "earlier")])
def test_ten_seconds_of_waiting_count_as_three_seconds_of_work(estimate: float, first: str) -> None:
    """The constant stands in the documentation of the queue order, so it is repeated here."""
    by = build_policy("cotenant", queue="aged").queue
    earlier = job("earlier", submitted=0.0, estimate=Seconds(1000.0))
    later = job("later", submitted=1000.0, estimate=Seconds(estimate))
    assert min(earlier, later, key=lambda one: by(one, Seconds(1000.0))).id == first


# Latency objectives


def server(objective: float, alone: float = 0.02, utilisation: float = 0.3) -> tuple[Demand, ...]:
    return demands_for(guest("serving"), Seconds(objective), Seconds(alone), utilisation)


def test_a_share_above_what_it_keeps_busy_does_not_slow_a_server() -> None:
    assert latency_at(MilliGpu(300), Seconds(0.02), 0.3) == pytest.approx(0.02)
    assert latency_at(MilliGpu(100), Seconds(0.02), 0.3) == pytest.approx(0.06)


def test_the_more_compute_the_less_of_its_speed_must_be_left() -> None:
    asked = server(0.05)
    assert [(one.compute, one.least_speed) for one in asked[:3]] == [(200, 60), (300, 40), (400, 40)]
    assert all(one.workload == "serving" for one in asked)


def test_an_objective_below_what_it_does_alone_cannot_be_held() -> None:
    assert server(0.01) == ()


def served_beside(speeds: tuple[float, float]) -> tuple[int, tuple[int, ...]] | None:
    """What share a server of 50 ms gets on one card beside a trainer, and the GPUs."""
    first, *others = server(0.05)
    belief = Tabled({tenant_set_of("gpu", ["serving", "training"]): speeds}, learns=False)
    policy = build_policy("cotenant", Knowledge(belief=belief))
    cluster = cluster_with([machine()], placed("t", guest("training"), "a", 0))
    waiting = Queue(policy, [job("s", first, alternatives=tuple(others))])
    placements = decide(policy, waiting, cluster, Seconds(0.0)).placements
    if not placements:
        return None
    waiting.remove(placements[0].job)
    assert len(waiting) == 0
    return placements[0].job.demand.compute, placements[0].slot.gpus


def test_a_server_takes_the_smallest_share_that_holds_beside_its_neighbours() -> None:
    assert served_beside((0.95, 0.95)) == (200, (0,))
    assert served_beside((0.55, 0.97)) == (300, (0,))
    assert served_beside((0.35, 0.99)) is None


def test_on_an_idle_card_the_smallest_share_will_do() -> None:
    first, *others = server(0.05)
    policy = build_policy("cotenant")
    asking = job("s", first, alternatives=tuple(others))
    (placement,) = decide(policy, [asking], Cluster.of([machine()]), Seconds(0.0)).placements
    assert placement.job.demand.compute == 200


def test_a_newcomer_that_turns_out_to_break_a_servers_objective_is_sent_back() -> None:
    first, *_ = server(0.05)  # 60 % of its speed must be left to it
    pair = tenant_set_of("gpu", ["serving", "training"])
    belief = Tabled({pair: (0.9, 0.9)}, learns=True)
    policy = build_policy("cotenant", Knowledge(belief=belief))
    cluster = cluster_with([machine()], placed("s", first, "a", 0))
    decision = decide(policy, [job("t", guest("training"))], cluster, Seconds(0.0))
    (placement,) = decision.placements
    assert judge_again(policy, placement, decision.cluster, 1.0).reason is None
    belief.observe(pair, (0.55, 0.97))  # more work in sum than asked for, and too little for the server
    reason = judge_again(policy, placement, decision.cluster, 1.0).reason
    assert reason is not None
    assert reason.check == "least-speed"


def test_nobody_comes_who_would_break_a_servers_objective() -> None:
    first, *_ = server(0.05)
    belief = Tabled({tenant_set_of("gpu", ["serving", "training"]): (0.55, 0.97)}, learns=False)
    policy = build_policy("cotenant", Knowledge(belief=belief))
    cluster = cluster_with([machine()], placed("s", first, "a", 0))
    assert not decide(policy, [job("t", guest("training"))], cluster, Seconds(0.0)).placements
