# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Filter, prioritize, choose, preempt and why, called one after the other as kube-scheduler does."""

from collections import Counter
from dataclasses import replace as changed

import msgspec
import pytest
from msgspec.structs import replace

from cotenant.core.model import Reason
from cotenant.core.placement.policies import build_policy
from cotenant.errors import InputError
from cotenant.kube.codec.assignment import RECORD, decode_record
from cotenant.kube.codec.inventory import AWAY
from cotenant.kube.codec.policy import policy_of
from cotenant.kube.codec.request import request_of
from cotenant.kube.scheduler.placement import Choice
from cotenant.kube.scheduler.protocol import ExtenderArgs, MetaPod, MetaVictims, NodeList, PreemptionArgs, Victims
from cotenant.kube.scheduler.rankers import MOST_POLICIES, Rankers
from cotenant.kube.scheduler.refusing import Refusals
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor
from tests.core.builders import one_bad_pair
from tests.kube.worlds import (
    GPU,
    MEMORY,
    PERCENT,
    annotated,
    args,
    bound,
    chosen,
    free_memory,
    machine,
    node,
    place,
    placer_of,
    state_of,
    waiting,
)

NAMES = ("n1", "n2", "n3")


@pytest.fixture
def state() -> ClusterState:
    return state_of(*(node(machine(name)) for name in NAMES))


def untouched(state: ClusterState) -> list[tuple[int, ...]]:
    return [one.memory for one in state.cluster]


def test_filter_answers_the_best_nodes_first(state: ClusterState) -> None:
    place(state, placer_of(state), waiting("a"), "n2")
    assert placer_of(state).filter(args(waiting("b"), *NAMES), 0.0).node_names == ("n2", "n1", "n3")
    assert placer_of(state, shortlist=2).filter(args(waiting("b"), *NAMES), 0.0).node_names == ("n2", "n1")
    spread = placer_of(state, policy="spread").filter(args(waiting("b"), "n3", "n2"), 0.0)
    assert spread.node_names == ("n3", "n2")


def test_several_answers_hold_nothing_and_one_is_held(state: ClusterState) -> None:
    placer = placer_of(state, hold_s=5.0)
    placer.filter(args(waiting("a"), *NAMES), 0.0)
    assert untouched(state) == [(16000, 16000)] * 3
    placer.filter(args(waiting("a"), "n2"), 0.0)
    assert free_memory(state, "n2") == (12000, 16000)
    assert state.expire(5.0) == ["uid-a"]


def test_prioritize_holds_the_winner_so_that_the_next_pod_sees_it(state: ClusterState) -> None:
    placer = placer_of(state, policy="spread")
    whole = {GPU: 2, MEMORY: 9000}
    winners = []
    for name in ("a", "b", "c"):
        scores = placer.prioritize(args(waiting(name, whole), *NAMES), 0.0)
        winners.append(next(one.host for one in scores if one.score == 10))
    assert sorted(winners) == list(NAMES)
    assert placer.filter(args(waiting("d", whole), *NAMES), 0.0).node_names == ()
    assert placer.filter(args(waiting("a", whole), *NAMES), 0.0).node_names == (winners[0],), "its own does not count"


def test_scores_go_down_from_ten_in_rank_order_and_end_at_zero() -> None:
    names = [f"n{i:02}" for i in range(14)]
    state = state_of(*(node(machine(name)) for name in names))
    place(state, placer_of(state), waiting("a"), "n05")
    scores = placer_of(state).prioritize(args(waiting("b"), *names, "stranger", "n05"), 0.0)
    assert [one.host for one in scores] == [*names, "stranger"]
    by_name = {one.host: one.score for one in scores}
    assert [by_name[name] for name in ("n05", "n00", "n01", "n08", "n09", "n13", "stranger")] == [10, 9, 8, 2, 1, 0, 0]


def test_a_pod_that_asks_for_nothing_passes_unharmed(state: ClusterState) -> None:
    placer, pod = placer_of(state), waiting("a", {"cpu": "1"})
    assert placer.filter(args(pod, "n1", "stranger"), 0.0).node_names == ("n1", "stranger")
    assert {one.score for one in placer.prioritize(args(pod, "n1", "stranger"), 0.0)} == {0}
    choice = chosen(placer, pod, "stranger")
    assert (choice.allocation, choice.annotations) == (None, {})


def condition(refused: dict[str, str]) -> str:
    """The sentence that kube-scheduler makes of it (framework.FitError)."""
    counted = sorted(f"{n} {text}" for text, n in Counter(refused.values()).items())
    head = f"0/{len(refused)} nodes are available: {', '.join(counted)}."
    return f"{head} preemption: 0/{len(refused)} nodes are available: {len(refused)} Preemption is not helpful."


def test_the_condition_of_a_pod_stays_short_on_5000_nodes() -> None:
    nodes = []
    for i in range(5000):
        one = machine(f"n{i:04}", cards=i % 3, memory=4000 + i, type=f"type-{i % 7}", healthy=i % 5 != 0)
        nodes.append(node(one, vendor=Vendor.CAMBRICON if i % 11 == 0 else Vendor.NVIDIA))
    state = state_of(*nodes)
    pod = waiting("a", {GPU: 1, MEMORY: 60000}, annotations={"nvidia.com/use-gputype": "type-3,type-4"})
    result = placer_of(state).filter(args(pod, *(one.metadata.name for one in nodes), *map(str, range(100))), 0.0)
    refused = dict(result.failed_and_unresolvable_nodes)
    assert len(refused) == 5100
    assert result.failed_nodes == {}
    assert set(refused.values()) >= {"not enough GPU memory", "no GPU of that type", "GPUs unhealthy or cordoned"}
    assert set(refused.values()) >= {"GPUs of another vendor", "no GPUs known", "too few GPUs"}
    assert len(condition(refused)) < 512


def test_reasons_follow_the_cluster(state: ClusterState) -> None:
    placer, big = placer_of(state), waiting("a", {GPU: 1, MEMORY: 15000})
    full = waiting("b", {GPU: 2, MEMORY: 16000})
    there = place(state, placer, full, "n1")
    asked = args(big, "n1")
    for _ in range(2):
        assert placer.filter(asked, 0.0).failed_and_unresolvable_nodes == {"n1": "not enough GPU memory"}
    state.pod_changed(there, None, "1")
    state.node_changed(node(machine("n1")), node(machine("n1"), orphans=("1", [])))
    assert placer.filter(asked, 0.0).node_names == ("n1",)


def test_of_equal_nodes_one_is_checked() -> None:
    state = state_of(*(node(machine(name)) for name in ("n1", "n2")), node(machine("n3", cards=1)))
    demand = request_of(waiting("a", {GPU: 1, MEMORY: 99_000})).demand
    one, other, third = Refusals().of(build_policy("binpack"), demand, state.cluster)
    assert one is other is not None
    assert third is not one


def test_a_node_whose_agent_is_away_accepts_no_pod_and_says_so() -> None:
    placer = placer_of(state_of(node(machine("n1"), annotations={AWAY: "the agent was told to end"})))
    refused = placer.filter(args(waiting("a"), "n1"), 0.0)
    assert refused.failed_and_unresolvable_nodes == {"n1": "GPU agent away"}
    assert str(placer.reasons.why(waiting("a")).reasons["n1"]) == "the agent was told to end"


def test_a_closed_node_accepts_no_pod_and_says_so(state: ClusterState) -> None:
    there = place(state, placer_of(state), waiting("a"), "n1")
    unread = annotated(there, {RECORD: there.metadata.annotations[RECORD].replace('"version":1', '"version":9')})
    state.pod_changed(there, unread)
    placer = placer_of(state)
    assert placer.filter(args(waiting("b"), "n1"), 0.0).failed_and_unresolvable_nodes == {"n1": "GPU state unclear"}
    assert "n1" not in (placer.filter(args(waiting("b"), *NAMES), 0.0).node_names or ())
    refused = placer.choose(waiting("b"), "n1", 0.0, 1)
    assert isinstance(refused, Reason)
    assert str(refused) == "the assignment of 1 pod on it cannot be read"


def test_a_pod_may_name_its_policy(state: ClusterState) -> None:
    place(state, placer_of(state), waiting("a"), "n2")
    for annotations, first in (
        ({}, "n2"),
        ({"cotenant.io/policy": "spread"}, "n1"),
        ({"cotenant.io/policy": "spread/binpack"}, "n1"),
        ({"hami.io/node-scheduler-policy": "spread"}, "n1"),
        ({"hami.io/gpu-scheduler-policy": "spread"}, "n2"),
    ):
        found = placer_of(state).filter(args(waiting("b", annotations=annotations), *NAMES), 0.0)
        assert (found.node_names or ())[0] == first, annotations


@pytest.mark.parametrize(
    ("used", "binpack", "spread"),
    [
        ({"node1": (4, 3), "node2": (4, 2)}, "node1", "node2"),  # the example in HAMi's documentation
        ({"large": (8, 4), "small": (2, 0)}, "large", "small"),
        ({"large": (8, 4), "small": (4, 3)}, "small", "large"),
        ({"large": (8, 1), "small": (1, 0)}, "large", "small"),
    ],
)
def test_hami_policies_compare_the_used_shares_of_nodes(
    used: dict[str, tuple[int, int]], binpack: str, spread: str
) -> None:
    state = state_of(*(node(machine(name, gpus)) for name, (gpus, _) in used.items()))
    for name, (_, pods) in used.items():
        for number in range(pods):
            place(state, placer_of(state), waiting(f"{name}-{number}", {GPU: 1, PERCENT: 100}), name)
    for policy, expected in (("binpack", binpack), ("spread", spread)):
        pod = waiting("new", annotations={"hami.io/node-scheduler-policy": policy})
        assert (placer_of(state).filter(args(pod, *used), 0.0).node_names or ())[0] == expected


def test_nodes_and_gpus_are_chosen_apart(state: ClusterState) -> None:
    place(state, placer_of(state), waiting("a"), "n2")
    pod = waiting("b", annotations={"hami.io/gpu-scheduler-policy": "spread"})
    choice = chosen(placer_of(state), pod, "n2")
    assert choice.allocation is not None
    assert [share.gpu for share in choice.allocation.record.held_by(0)] == ["GPU-n2-1"]


def test_mutex_means_gpus_without_tenants(state: ClusterState) -> None:
    alone = waiting("b", annotations={"hami.io/gpu-scheduler-policy": "mutex"})
    place(state, placer_of(state), waiting("a"), "n2")
    choice = chosen(placer_of(state), alone, "n2")
    assert choice.allocation is not None
    assert [share.gpu for share in choice.allocation.record.held_by(0)] == ["GPU-n2-1"]
    state.release("uid-b")
    place(state, placer_of(state), waiting("c", annotations={"hami.io/gpu-scheduler-policy": "spread"}), "n2")
    why = placer_of(state).choose(alone, "n2", 0.0, 0)
    assert isinstance(why, Reason)
    assert why.check == "alone"


def test_hami_words_fill_up_the_usual_policy() -> None:
    assert policy_of({"hami.io/gpu-scheduler-policy": "topology-aware"}, "spread/binpack") == "spread/topology"
    assert policy_of({"hami.io/node-scheduler-policy": "binpack"}, "spread") == "hami-binpack/spread"
    assert policy_of({"hami.io/gpu-scheduler-policy": "binpack, numa"}, "spread") == "spread/binpack+numa"
    assert policy_of({"hami.io/gpu-scheduler-policy": "mutex"}, "binpack") == "binpack/alone"
    assert policy_of({"cotenant.io/policy": " fgd "}, "spread") == "fgd"


@pytest.mark.parametrize("name", ["best", "", "binpack/", "x" * 1000])
def test_a_policy_that_there_is_not_is_refused_with_a_sentence(state: ClusterState, name: str) -> None:
    pod = waiting("a", annotations={"cotenant.io/policy": name})
    refused = placer_of(state).filter(args(pod, *NAMES), 0.0).failed_and_unresolvable_nodes
    assert set(refused) == set(NAMES)
    (sentence,) = set(refused.values())
    assert sentence.startswith("policy: ")
    assert len(sentence) < 500
    assert isinstance(placer_of(state).choose(pod, "n1", 0.0, 1), Reason)
    assert not placer_of(state).would_fit(pod)


def test_the_names_of_policies_are_listed(state: ClusterState) -> None:
    pod = waiting("a", annotations={"cotenant.io/policy": "best"})
    refused = placer_of(state).filter(args(pod, "n1"), 0.0).failed_and_unresolvable_nodes
    assert "there are: alone, auto, bestfit, binpack" in refused["n1"]
    with pytest.raises(InputError, match="there are"):
        placer_of(state, policy="best")


def test_few_policies_are_remembered(state: ClusterState) -> None:
    rankers = Rankers()
    first = rankers.of("binpack", state.cluster)
    assert rankers.of("binpack", state.cluster) is first
    for i in range(MOST_POLICIES):
        rankers.of("+".join(["spread"] * (i + 1)), state.cluster)
    assert rankers.of("binpack", state.cluster) is not first


def test_a_policy_that_learns_follows_the_demand(state: ClusterState) -> None:
    placer = placer_of(state, policy="fragmentation")
    for i in range(6):
        place(state, placer, waiting(f"p{i}"), "n1")
    state.node_changed(None, node(machine("n4", cards=4)))
    assert set(placer.filter(args(waiting("z"), *NAMES, "n4"), 0.0).node_names or ()) == {*NAMES, "n4"}


def test_the_sharing_gate_sees_how_many_pods_wait() -> None:
    state = state_of(node(machine("n1", cards=1, type="gpu")))
    placer = placer_of(state, policy="cotenant", belief=one_bad_pair())
    working = {"cotenant.io/workload": "bert"}
    place(state, placer, waiting("a", annotations=working), "n1")
    pod = waiting("b", annotations=working)
    state.pod_changed(None, pod)
    alone = placer.reasons.why(pod)
    assert alone.waits is not None
    assert alone.waits.check == "gain"
    assert placer.filter(args(pod, "n1"), 0.0).failed_and_unresolvable_nodes == {"n1": "GPU sharing not worth it"}
    for i in range(50):
        state.pod_changed(None, waiting(f"w{i}"))
    crowded = placer.reasons.why(pod)
    assert crowded.waits is None or crowded.waits.needed < alone.waits.needed


def test_nonsense_is_refused_with_its_sentence(state: ClusterState) -> None:
    pod = waiting("a", {GPU: 1, PERCENT: 120})
    refused = placer_of(state).filter(args(pod, "n1"), 0.0).failed_and_unresolvable_nodes
    assert "120 % of a GPU" in refused["n1"]
    assert [one.score for one in placer_of(state).prioritize(args(pod, "n1"), 0.0)] == [0]
    why = placer_of(state).reasons.why(pod)
    assert "120 % of a GPU" in str(why.waits)
    assert placer_of(state).preempt(PreemptionArgs(pod=pod)).node_name_to_meta_victims == {}


# Whole nodes: what would be.


def raw(*nodes: object) -> NodeList:
    return NodeList(items=tuple(msgspec.Raw(msgspec.json.encode(one)) for one in nodes))


@pytest.mark.defect("HAMi: an autoscaler's question changes what is reserved")
def test_a_what_if_query_holds_and_forgets_nothing(state: ClusterState) -> None:
    placer, pod = placer_of(state), waiting("a")
    placer.prioritize(args(pod, "n3"), 0.0)
    before = untouched(state)
    stranger = node(machine("template", memory=50000))
    empty = node("bare")
    other = node(machine("mlu"), vendor=Vendor.CAMBRICON)
    whole = ExtenderArgs(pod=pod, nodes=raw(node(machine("n1")), stranger, empty, other))
    found = placer.filter(whole, 0.0)
    assert found.node_names is None
    assert found.nodes is not None
    assert found.nodes.items == raw(node(machine("n1")), stranger).items
    assert placer.prioritize(ExtenderArgs(pod=pod, nodes=raw(node(machine("n1")))), 0.0)[0].score == 10
    big = waiting("b", {GPU: 1, MEMORY: 40000})
    found = placer.filter(ExtenderArgs(pod=big, nodes=raw(node(machine("n1")), empty)), 0.0)
    assert found.failed_and_unresolvable_nodes == {"n1": "not enough GPU memory", "bare": "no GPUs known"}
    assert untouched(state) == before
    assert state.held("uid-a") is not None


def test_a_filter_in_vain_gives_up_an_old_hold(state: ClusterState) -> None:
    placer = placer_of(state)
    placer.filter(args(waiting("a"), "n1"), 0.0)
    placer.filter(args(waiting("a", {GPU: 9}), *NAMES), 1.0)
    assert state.held("uid-a") is None


# Bind.


def test_bind_chooses_the_gpus_and_says_so_in_annotations(state: ClusterState) -> None:
    placer, pod = placer_of(state), waiting("a")
    placer.prioritize(args(pod, *NAMES), 0.0)
    choice = chosen(placer, pod, "n1", 99.0)
    record = decode_record(choice.annotations[RECORD])
    assert (record.pod, record.node, record.held_by(0)[0].memory) == ("uid-a", "n1", 4000)
    assert choice.annotations["cotenant.io/0.NVIDIA_VISIBLE_DEVICES"] == "GPU-n1-0"
    assert state.expire(1e9) == [], "who binds it will say what became of it"


def test_bind_to_another_node_than_was_held_moves_the_hold(state: ClusterState) -> None:
    placer, pod = placer_of(state), waiting("a")
    placer.prioritize(args(pod, *NAMES), 0.0)
    chosen(placer, pod, "n3")
    assert untouched(state) == [(16000, 16000), (16000, 16000), (12000, 16000)]


def test_two_binds_at_once_cannot_have_the_same_memory() -> None:
    state = state_of(node(machine("n1", cards=1)))
    placer, amounts = placer_of(state), {GPU: 1, MEMORY: 9000}
    chosen(placer, waiting("a", amounts), "n1")
    refused = placer.choose(waiting("b", amounts), "n1", 0.0, 1)
    assert refused == ("memory", "needs {needed} MiB on one GPU; the freest has {available} MiB free", 9000, 7000)
    state.release("uid-a")
    chosen(placer, waiting("b", amounts), "n1")


@pytest.mark.parametrize("name", ["stranger", "mlu"])
def test_bind_to_a_node_that_is_not_for_us_is_refused(state: ClusterState, name: str) -> None:
    state.node_changed(None, node(machine("mlu"), vendor=Vendor.CAMBRICON))
    assert isinstance(placer_of(state).choose(waiting("a"), name, 0.0, 1), Reason)


def test_a_bound_pod_is_not_placed_again(state: ClusterState) -> None:
    there = place(state, placer_of(state), waiting("a"), "n1")
    refused = placer_of(state).choose(there, "n2", 0.0, 1)
    assert str(refused) == "is bound to node n1"
    assert untouched(state)[1] == (16000, 16000)


def test_a_pod_that_is_tried_again_while_it_is_bound_keeps_what_is_being_written() -> None:
    state = state_of(node(machine("n1", cards=1)), node(machine("n2", cards=1)))
    placer, pod = placer_of(state), waiting("a", {GPU: 1, MEMORY: 9000})
    choice = chosen(placer, pod, "n1")
    place(state, placer, waiting("b", {GPU: 1, MEMORY: 16000}), "n2")
    placer.prioritize(args(pod, "n1", "n2"), 50.0)
    placer.filter(args(pod, "n1"), 50.0)
    placer.filter(args(pod, "n2"), 50.0)
    assert isinstance(placer.choose(pod, "n1", 50.0, 1), Reason)
    assert state.expire(1e9) == []
    assert state.held("uid-a") == choice.allocation
    state.assume("uid-a")
    assert state.bound("uid-a") == choice.allocation


def test_annotations_that_kubernetes_would_not_take_hold_nothing(state: ClusterState) -> None:
    pod = waiting("a", annotations={"note": "x" * (256 * 1024 - 100)})
    refused = placer_of(state).choose(pod, "n1", 0.0, 1)
    assert isinstance(refused, Reason)
    assert "Kubernetes takes 262144" in str(refused)
    assert state.held("uid-a") is None


def test_vendors_are_kept_apart(state: ClusterState) -> None:
    mlus = changed(machine("mlu"), gpus=tuple(changed(one, type="MLU370") for one in machine("mlu").gpus))
    state.node_changed(None, node(mlus, vendor=Vendor.CAMBRICON))
    pod = waiting("a", {"cambricon.com/mlunum": 1, "cambricon.com/mlumem": 1000})
    assert placer_of(state).filter(args(pod, *NAMES, "mlu"), 0.0).node_names == ("mlu",)
    gpu = waiting("b")
    assert "mlu" not in (placer_of(state).filter(args(gpu, *NAMES, "mlu"), 0.0).node_names or ())


def test_a_group_goes_where_its_members_are(state: ClusterState) -> None:
    together = {"cotenant.io/affinity": "g"}
    place(state, placer_of(state), waiting("a", annotations=together), "n2")
    pod = waiting("b", annotations=together)
    assert placer_of(state).filter(args(pod, *NAMES), 0.0).node_names == ("n2",)
    refused = placer_of(state).filter(args(pod, "n1", "n3"), 0.0).failed_and_unresolvable_nodes
    assert refused == {"n1": "GPU group is elsewhere", "n3": "GPU group is elsewhere"}


# Preemption.


@pytest.mark.defect("gpushare, HAMi: preemption knows nothing of GPUs")
def test_preempt_keeps_only_nodes_where_it_would_help(state: ClusterState) -> None:
    placer, big = placer_of(state), {GPU: 2, MEMORY: 12000}
    for name in NAMES:
        place(state, placer, waiting(f"low-{name}", big), name)
        place(state, placer, waiting(f"small-{name}", {GPU: 1, MEMORY: 1000}), name)
    victims = {
        "n1": MetaVictims(pods=(MetaPod(uid="uid-low-n1"),), violations=1),
        "n2": MetaVictims(pods=(MetaPod(uid="uid-small-n2"),)),
        "stranger": MetaVictims(pods=()),
        "n3": None,
    }
    asked = PreemptionArgs(pod=waiting("high", big), node_name_to_meta_victims=victims)
    assert placer.preempt(asked).node_name_to_meta_victims == {"n1": victims["n1"]}
    whole = PreemptionArgs(
        pod=waiting("high", big), node_name_to_victims={"n1": Victims(pods=(waiting("low-n1"),)), "n2": Victims()}
    )
    assert set(placer.preempt(whole).node_name_to_meta_victims) == {"n1"}
    plain = PreemptionArgs(pod=waiting("cpu", {"cpu": 1}), node_name_to_meta_victims=victims)
    assert set(placer.preempt(plain).node_name_to_meta_victims) == set(victims)
    assert untouched(state)[0] == (3000, 4000)


# Why.


def test_why_says_in_numbers_what_is_missing_on_each_node_nearest_first(state: ClusterState) -> None:
    placer = placer_of(state)
    place(state, placer, waiting("a", {GPU: 2, MEMORY: 9000}), "n1")
    place(state, placer, waiting("b", {GPU: 2, MEMORY: 4000}), "n2")
    state.node_changed(node(machine("n3")), node(machine("n3", healthy=False)))
    pod = waiting("c", {GPU: 1, MEMORY: 15000})
    why = placer.reasons.why(pod)
    assert why.fits == ()
    assert {name: str(reason) for name, reason in why.reasons.items()} == {
        "n2": "needs 15000 MiB on one GPU; the freest has 12000 MiB free",
        "n1": "needs 15000 MiB on one GPU; the freest has 7000 MiB free",
        "n3": "needs 1 GPU in good health and not cordoned; the node has 0",
    }
    assert list(why.reasons) == ["n2", "n1", "n3"]
    assert not placer.would_fit(pod)


def test_why_tells_of_fits_and_of_where_it_is(state: ClusterState) -> None:
    placer, pod = placer_of(state), waiting("a")
    assert [fit.slot.node for fit in placer.reasons.why(pod).fits] == list(NAMES)
    assert placer.would_fit(pod)
    choice = placer.choose(pod, "n2", 0.0, 1)
    assert isinstance(choice, Choice)
    assert placer.reasons.why(pod).allocation == choice.allocation
    state.assume("uid-a")
    there = bound(pod, choice)
    state.pod_changed(pod, there)
    assert placer.reasons.why(there).allocation == choice.allocation
    assert placer.reasons.why(replace(waiting("z", {"cpu": 1}))).reasons == {}
