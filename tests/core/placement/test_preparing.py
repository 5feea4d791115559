# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A ranking that is prepared in steps: each step is bounded, and the answer is the same."""

from dataclasses import replace

import pytest

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Gpus
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import FEW, STEP, Policy, Ranker
from cotenant.core.placement.scores import Order
from tests.core.builders import machine, node, share

NODES = 2 * STEP + 50
POLICIES = "binpack", "fgd", "cotenant"
NEW = share(3000, 100, workload="lstm")


def varied(first: int = 0) -> Cluster:
    """A cluster in which no two nodes are alike."""
    return Cluster.of(
        [
            node(machine(f"n{number:04}", 2), (share(4000 + first + number, 300, workload="bert"), (number % 2,)))
            for number in range(NODES)
        ]
    )


class Counting:
    """A policy that counts the nodes that its last order scores."""

    def __init__(self, name: str) -> None:
        built = build_policy(name)
        self.scored = set[str]()
        last = built.nodes[-1]
        counted = self._counted(last)
        gpus = tuple(counted if order is last else order for order in built.gpus)
        self.policy: Policy = replace(built, nodes=(*built.nodes[:-1], counted), gpus=gpus)

    def _counted(self, order: Order) -> Order:
        def counting(demand: Demand, there: Node, slots: list[Gpus]) -> list[float]:
            self.scored.add(there.name)
            return list(order(demand, there, slots))

        return counting

    def since_last(self) -> int:
        count = len(self.scored)
        self.scored.clear()
        return count


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_each_step_scores_a_bounded_number_of_nodes(name: str, every: bool) -> None:
    counting, cluster = Counting(name), varied()
    ranker = Ranker(counting.policy)
    ranker.columns(varied(1))  # examples of sets of tenants are scored once
    steps = [counting.since_last() for _ in ranker.prepare(NEW, cluster, every=every)]
    assert len(steps) > NODES // STEP
    assert max(steps) <= STEP
    ranker.top(NEW, cluster, None, 5) if every else ranker.best(NEW, cluster)
    assert counting.since_last() <= FEW


@pytest.mark.parametrize("name", POLICIES)
def test_without_a_preparation_all_nodes_are_scored_at_once(name: str) -> None:
    counting = Counting(name)
    Ranker(counting.policy).top(NEW, varied(), None, 5)
    assert counting.since_last() > STEP


@pytest.mark.parametrize("name", POLICIES)
def test_the_answer_is_that_of_a_new_ranker_even_if_others_are_ranked_in_between(name: str) -> None:
    policy, cluster, other = build_policy(name), varied(), varied(500)
    smaller = Cluster.of([other.at(number) for number in range(NODES - 7)])
    ranker, closed = Ranker(policy, remember=1), ["n0000", f"n{NODES - 1:04}"]
    for number, _ in enumerate(ranker.prepare(NEW, cluster, closed)):
        ranker.best(NEW if number % 2 else share(5000, 200), other if number % 3 else smaller)
    assert ranker.best(NEW, cluster, None, closed) == Ranker(policy).best(NEW, cluster, None, closed)
    for _ in ranker.prepare(NEW, cluster, every=True):
        ranker.best(share(5000, 200), smaller)
    assert ranker.top(NEW, cluster, None, 20) == Ranker(policy).top(NEW, cluster, None, 20)
