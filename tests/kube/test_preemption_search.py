# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which slot a pod could have if victims left, if memory, compute or share slots are missing, or several of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.queueing.eviction import Stake
from cotenant.core.units import MiB, Seconds
from cotenant.kube.api.objects import Pod
from cotenant.kube.scheduler.preemption_search import Candidate, Evictable, best_candidate
from cotenant.kube.state.cluster import ClusterState
from tests.kube.test_quota import quota, quotas
from tests.kube.worlds import CORES, GPU, MEMORY, machine, node, place, placer_of, state_of, waiting

Amounts = Mapping[str, Any]


def ask(memory: int, cores: int = 0, gpus: int = 1) -> Amounts:
    return {GPU: gpus, MEMORY: memory, CORES: cores}


def two_slots(name: str) -> Machine:
    return Machine(name=name, gpus=(Gpu(uuid=f"GPU-{name}", memory=MiB(16000), slots=2),))


def settled(machines: Sequence[Machine], pods: Mapping[str, tuple[str, Pod]]) -> ClusterState:
    """These pods on their nodes."""
    state = state_of(*map(node, machines))
    for name, pod in pods.values():
        place(state, placer_of(state), pod, name)
    return state


def best(
    state: ClusterState,
    pod: Pod,
    stakes: Mapping[str, int],
    leaving: Sequence[str] = (),
    musts: Mapping[str, frozenset[str]] | None = None,
    since: Mapping[str, float] | None = None,
    **placing: Any,
) -> Candidate | None:
    """Stakes are priorities; all began together, unless `since` says more."""

    def stake(uid: str) -> Stake | None:
        name = uid.removeprefix("uid-")
        priority = stakes.get(name)
        return None if priority is None else Stake(priority, Seconds((since or {}).get(name, 0.0)))

    placer = placer_of(state, **placing)
    who = Evictable(lambda uid: uid.removeprefix("uid-") in leaving, stake, musts or {})
    return best_candidate(placer.preemption_candidates(pod, frozenset(state.vendors), who))


def victims(state: ClusterState, pod: Pod, stakes: Mapping[str, int], leaving: Sequence[str] = ()) -> list[str] | None:
    room = best(state, pod, stakes, leaving)
    return None if room is None else [uid.removeprefix("uid-") for uid in room.victims]


@pytest.mark.parametrize(
    ("on", "there", "asked", "leaves"),
    [
        (machine("n1", 1), [ask(10_000, 10), ask(2000, 60)], ask(8000, 30), "t0"),
        (machine("n1", 1), [ask(10_000, 10), ask(2000, 60)], ask(4000, 60), "t1"),
        (two_slots("n1"), [ask(2000), ask(2000)], ask(2000), "t0"),
        (machine("n1", 1), [ask(10_000, 80), ask(2000, 10)], ask(8000, 80), "t0"),
    ],
    ids=["memory", "compute", "slots", "memory and compute"],
)
def test_one_leaves_for_want_of(on: Machine, there: list[Amounts], asked: Amounts, leaves: str) -> None:
    pods = {f"t{i}": ("n1", waiting(f"t{i}", amounts)) for i, amounts in enumerate(there)}
    assert victims(settled([on], pods), waiting("high", asked), dict.fromkeys(pods, 0)) == [leaves]


def test_several_gpus_are_cleared_on_one_node() -> None:
    """On n1 two of its three cards are free enough once one leaves; on n2 two would have to."""
    spread = {"cotenant.io/policy": "spread"}
    there = {"a": "n1", "b": "n1", "c": "n2", "d": "n2"}
    pods = {name: (on, waiting(name, ask(12_000), annotations=spread)) for name, on in there.items()}
    state = settled([machine("n1", 3), machine("n2", 2)], pods)
    room = best(state, waiting("high", ask(8000, gpus=2)), dict.fromkeys(there, 0))
    assert room is not None
    assert (room.node, len(room.victims)) == ("n1", 1)


@pytest.mark.parametrize(
    ("stakes", "since", "leave"),
    [
        ({"a": 1, "b": 0, "c": 1, "d": 1}, {"c": 9, "d": 9}, ("uid-a", "uid-b")),
        ({"a": 1, "b": 1, "c": 1, "d": 0}, {"a": 9, "b": 9}, ("uid-c", "uid-d")),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 9, "c": 4, "d": 6}, ("uid-c", "uid-d")),
    ],
    ids=["sum of priorities on n1", "sum of priorities on n2", "start"],
)
def test_of_two_nodes_with_as_many_victims(
    stakes: Mapping[str, int], since: Mapping[str, float], leave: tuple[str, str]
) -> None:
    there = {"a": "n1", "b": "n1", "c": "n2", "d": "n2"}
    pods = {name: (on, waiting(name, ask(8000))) for name, on in there.items()}
    found = best(settled([machine("n1", 1), machine("n2", 1)], pods), waiting("high", ask(16_000)), stakes, since=since)
    assert found is not None
    assert found.victims == leave


def test_of_two_nodes_the_one_with_fewer_victims_even_if_they_began_earlier() -> None:
    there = {"a": "n1", "b": "n1", "c": "n2"}
    pods = {name: (on, waiting(name, ask(8000 if on == "n1" else 16_000))) for name, on in there.items()}
    state = settled([machine("n1", 1), machine("n2", 1)], pods)
    found = best(state, waiting("high", ask(16_000)), dict.fromkeys(there, 1), since={"a": 9, "b": 9})
    assert found is not None
    assert found.victims == ("uid-c",)


def test_all_containers_of_a_pod_get_a_slot() -> None:
    pods = {name: ("n1", waiting(name, ask(12_000))) for name in ("a", "b")}
    state = settled([machine("n1", 2)], pods)
    high = waiting("high", ask(10_000), ask(6000), init=[ask(14_000)])
    assert victims(state, high, {"a": 0, "b": 0}) == ["a"]
    assert victims(state, waiting("high", ask(10_000), ask(10_000)), {"a": 0, "b": 0}) == ["a", "b"]


def test_pods_that_leave_anyway_count_as_gone() -> None:
    pods = {name: ("n1", waiting(name, ask(12_000))) for name in ("a", "b")}
    state = settled([machine("n1", 2)], pods)
    assert victims(state, waiting("high", ask(12_000)), {"a": 0, "b": 0}, leaving=["b"]) == []
    assert victims(state, waiting("high", ask(12_000, gpus=2)), {"a": 0, "b": 0}, leaving=["b"]) == ["a"]


def test_no_pod_leaves_if_the_pod_fits_or_it_would_not_help() -> None:
    state = settled([machine("n1", 1)], {"a": ("n1", waiting("a", ask(12_000)))})
    assert victims(state, waiting("high", ask(4000)), {"a": 0}) is None
    assert victims(state, waiting("high", ask(17_000)), {"a": 0}) is None
    assert victims(state, waiting("high", {"cambricon.com/mlunum": 1}), {"a": 0}) is None
    assert victims(state, waiting("high", {GPU: "nonsense"}), {"a": 0}) is None


def test_no_pod_leaves_for_a_pod_that_is_over_its_quota() -> None:
    state = settled([machine("n1", 1)], {"a": ("n1", waiting("a", ask(12_000), namespace="other"))})
    high = waiting("high", ask(8000))
    assert best(state, high, {"a": 0}, quotas=quotas(quota({MEMORY: 8000}))) is not None
    assert best(state, high, {"a": 0}, quotas=quotas(quota({MEMORY: 7999}))) is None


def test_a_pod_does_not_evict_its_companions() -> None:
    group = {"cotenant.io/affinity": "twins"}
    pods = {"twin": ("n1", waiting("twin", ask(6000), annotations=group)), "a": ("n1", waiting("a", ask(8000)))}
    state = settled([machine("n1", 1), machine("n2", 1)], pods | {"b": ("n2", waiting("b", ask(12_000)))})
    assert victims(state, waiting("high", ask(8000), annotations=group), {"twin": 0, "a": 1, "b": 0}) == ["a"]


def test_victims_that_kube_scheduler_requires_leave_too() -> None:
    pods = {
        "a": ("n1", waiting("a", ask(8000))),
        "b": ("n1", waiting("b", ask(4000))),
        "c": ("n1", waiting("c", ask(4000))),
    }
    state = settled([machine("n1", 1)], pods)
    must, high = {"n1": frozenset({"uid-b"})}, waiting("high", ask(8000))
    room = best(state, high, {"a": 0, "b": 0, "c": 0}, musts=must)
    assert room is not None
    assert room.victims == ("uid-a", "uid-b")
    assert room.harm.victims == 2
    assert best(state, high, {"a": 0, "c": 0}, musts=must) is None  # b may not be evicted
    there = best(state, waiting("high", ask(1000)), {"a": 0, "b": 0}, musts=must)
    assert there is not None
    assert there.victims == ("uid-b",)
