# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that name a PodGroup of Kubernetes start together, as many as that object says."""

from typing import Any

import pytest

from cotenant.core.model import Reason
from cotenant.kube.api.objects import Pod, SchedulingGroup
from cotenant.kube.codec.queueing import GATE, MOST_MEMBERS
from cotenant.kube.settings import QueuePart
from tests.kube.control_plane import ControlPlane, play, until
from tests.kube.queues import World, queued, replace
from tests.kube.worlds import machine, node

MISSING = Reason("gang", "its PodGroup train does not exist")


def member(name: str, **about: Any) -> Pod:
    """A pod of the group `train`."""
    made = queued(name, **about)
    return replace(made, spec=replace(made.spec, scheduling_group=SchedulingGroup(pod_group_name="train")))


class Groups:
    """What the scheduler knows about the group, told by hand."""

    def __init__(self, size: int | Reason) -> None:
        self.size = size
        self.world = World.of(node(machine("n1", 2)), queue=QueuePart(), groups=lambda namespace, name: self.size)

    def tell(self, size: int | Reason) -> None:
        self.size = size
        self.world.gangs.group_changed("team", "train")


def test_pods_of_a_group_start_when_as_many_are_there_as_it_wants() -> None:
    world = Groups(2).world
    world.tell(member("a"))
    assert world.go() == []
    assert world.why("a") == "only 1 of the 2 pods of its gang exist"
    world.tell(member("b"))
    assert world.go() == [["a", "b"]]


def test_pods_wait_for_their_group_and_start_when_it_is_created() -> None:
    groups = Groups(MISSING)
    groups.world.tell(member("a"), member("b"))
    assert groups.world.go() == []
    assert groups.world.why("a") == str(MISSING)
    groups.tell(2)
    assert groups.world.go() == [["a", "b"]]


def test_pods_of_a_group_without_a_policy_for_gangs_start_one_by_one() -> None:
    world = Groups(1).world
    world.tell(member("a"))
    assert world.go() == [["a"]]
    assert world.bind("a")
    world.tell(member("b"))
    world.go()
    assert world.bind("b")


def test_a_group_larger_than_any_gang_says_so() -> None:
    world = Groups(MOST_MEMBERS + 44).world
    world.tell(member("a"))
    assert world.go() == []
    assert world.why("a") == "its PodGroup train wants 300 pods at once; a gang has at most 256"


def test_a_pod_that_the_watch_has_not_shown_is_not_placed_alone() -> None:
    world = Groups(2).world
    assert str(world.gangs.must_wait(member("early"))) == "only 0 of the 2 pods of its gang exist"
    assert str(Groups(MISSING).world.gangs.must_wait(member("early"))) == str(MISSING)


def add_group(plane: ControlPlane, policy: dict[str, Any]) -> None:
    about = {"name": "train", "namespace": "team"}
    plane.server.groups.merge("train", {"metadata": about, "spec": {"schedulingPolicy": policy}}, "team")


@pytest.mark.parametrize(
    ("policy", "size"),
    [({"gang": {"minCount": 4}}, 4), ({"basic": {}}, 1), ({}, 1), ({"gang": {"minCount": -3}}, 1)],
)
@pytest.mark.parametrize(
    ("served", "version"), [(["v1", "v1alpha2"], "v1alpha2"), (["v1", "v1alpha3", "v1beta1"], "v1beta1")]
)
def test_groups_are_read_as_soon_as_a_pod_names_one_and_not_before(
    served: list[str], version: str, policy: dict[str, Any], size: int
) -> None:
    async def story(plane: ControlPlane) -> None:
        plane.server.group_versions = served
        groups, asked = plane.scheduler.groups, plane.server.groups.asked
        add_group(plane, policy)
        plane.add_pod("single")
        await plane.knows("single")
        assert not asked, "a cluster without groups is not asked for them"
        assert "is not known yet: scheduling.k8s.io could not be read" in str(groups.size_of("team", "train"))
        plane.add_pod("member", schedulingGroup={"podGroupName": "train"})
        await until(lambda: groups.size_of("team", "train") == size)
        assert {one.path.split("/")[3] for one in asked} == {version}
        assert str(groups.size_of("team", "other")) == "its PodGroup other does not exist"
        plane.server.groups.remove("train", "team")
        await until(lambda: isinstance(groups.size_of("team", "train"), Reason))

    play(story)


def test_two_pods_leave_the_queue_when_their_group_is_created() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        for name in ("a", "b"):
            plane.add_pod(name, schedulingGroup={"podGroupName": "train"}, schedulingGates=[{"name": GATE}])
        await plane.knows("a", "b")
        assert all(plane.pod(name)["spec"]["schedulingGates"] for name in ("a", "b"))
        add_group(plane, {"gang": {"minCount": 2}})
        await until(lambda: not any(plane.pod(name)["spec"].get("schedulingGates") for name in ("a", "b")))

    play(story)


def test_a_cluster_that_serves_no_groups_yet_is_asked_again() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.server.group_versions = ["v1"]
        add_group(plane, {"gang": {"minCount": 2}})
        plane.add_pod("member", schedulingGroup={"podGroupName": "train"})
        await until(lambda: any(one.path == "/apis/scheduling.k8s.io" for one in plane.server.asked))
        assert "is not known yet" in str(plane.scheduler.groups.size_of("team", "train"))
        plane.server.group_versions = ["v1", "v1beta1"]
        await until(lambda: plane.scheduler.groups.size_of("team", "train") == 2)

    play(story)
