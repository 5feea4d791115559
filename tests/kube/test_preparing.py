# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""New requests are ranked before kube-scheduler asks about them."""

import asyncio
from unittest.mock import patch

import pytest

from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.preparing import MOST_DUE, MOST_NEW, Preparer
from cotenant.kube.scheduler.view import View
from cotenant.kube.state.cluster import ClusterState
from tests.kube.worlds import CORES, GPU, MEMORY, args, machine, node, placer_of, state_of, waiting


class World:
    """Two nodes, and the parts that place pods and prepare for them."""

    def __init__(self, policy: str = "binpack") -> None:
        self.state: ClusterState = state_of(*(node(machine(name)) for name in "ab"))
        self.placer: Placer = placer_of(self.state, policy=policy, shortlist=1)
        self.unready: str | None = None
        self.preparer = Preparer(self.state, self.placer.views, lambda: self.unready, self._wait)

    async def _wait(self) -> None:
        """No call is being answered."""

    def changed(self, old: Pod | None, new: Pod) -> None:
        self.state.pod_changed(old, new)
        self.preparer.pod_changed(old, new)

    def knows(self, pod: Pod) -> bool:
        view = self.placer.views.of(pod)
        assert view is not None
        return view.ranker.knows(view.request.demand)

    def run(self) -> None:
        async def some_turns() -> None:
            running = asyncio.create_task(self.preparer.run())
            for _ in range(4 * MOST_DUE):
                await asyncio.sleep(0)
            running.cancel()

        asyncio.run(some_turns())


def test_a_new_pod_is_ranked_in_the_background_and_placed_as_without() -> None:
    one, several = waiting("one", {GPU: 1, MEMORY: 1234}), waiting("several", {GPU: 2, MEMORY: 2345})
    world, plain = World(), World()
    for pod in (one, several):
        world.changed(None, pod)
        assert not world.knows(pod)
    world.run()
    for pod in (one, several):
        assert world.knows(pod)
        plain.state.pod_changed(None, pod)
        assert world.placer.filter(args(pod, "a", "b"), 0.0) == plain.placer.filter(args(pod, "a", "b"), 0.0)


def test_pods_are_not_ranked_before_the_cluster_is_known_nor_if_they_only_change() -> None:
    world, pod = World(), waiting("one", {GPU: 1, MEMORY: 1234})
    world.unready = "the nodes are not known yet"
    world.changed(None, pod)
    world.unready = None
    world.changed(pod, pod)
    world.run()
    assert not world.knows(pod)
    world.preparer.rank_waiting()
    assert world.knows(pod)


def test_a_policy_that_rates_nodes_one_by_one_is_not_asked_ahead() -> None:
    world, pod = World("fragmentation"), waiting("one", {GPU: 1, MEMORY: 1234})
    world.changed(None, pod)
    world.run()
    assert not world.knows(pod)


def test_requests_that_are_invalid_or_too_many_are_left_to_the_filter() -> None:
    world = World()
    pods = [waiting(f"p{number}", {GPU: 1, MEMORY: 1000 + number}) for number in range(MOST_NEW + 5)]
    invalid = waiting("invalid", {GPU: 1, CORES: 1000})
    for pod in [waiting("none", {}), invalid, *pods]:
        world.state.pod_changed(None, pod)
    with pytest.raises(InputError):
        world.knows(invalid)
    world.preparer.rank_waiting()
    assert [world.knows(pod) for pod in pods] == [True] * MOST_NEW + [False] * 5


@pytest.mark.parametrize("error", [InputError("not valid"), RecursionError(), KeyError("x")])
def test_a_pod_that_cannot_be_read_ends_neither_the_start_nor_the_loop(error: Exception) -> None:
    world, good = World(), waiting("good", {GPU: 1, MEMORY: 1234})
    bad, views = waiting("bad", {GPU: 1}), world.placer.views
    read = views.of

    def of(pod: Pod) -> View | None:
        if pod.metadata.name == "bad":
            raise error
        return read(pod)

    with patch.object(views, "of", of):
        world.changed(None, bad)
        world.changed(None, good)
        world.preparer.rank([bad])
        world.run()
    assert world.knows(good)
