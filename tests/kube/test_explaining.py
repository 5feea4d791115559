# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The event of a pending pod says what `why` says, though it does not check every node."""

import pytest

from cotenant.kube.codec.inventory import AWAY
from cotenant.kube.scheduler.explaining import describe, explain, why_not
from cotenant.kube.scheduler.refusing import class_of
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor
from tests.kube.queues import open_gate
from tests.kube.test_queue_backfill import busy, end, whole
from tests.kube.worlds import GPU, MEMORY, PERCENT, args, machine, node, place, placer_of, state_of, waiting

NAMES = [f"n{i:02}" for i in range(20)]


@pytest.fixture
def state() -> ClusterState:
    """Nodes that refuse for every reason that is their own."""
    nodes = []
    for i, name in enumerate(NAMES):
        of = machine(name, cards=i % 4, memory=4000 + 500 * i, type=f"type-{i % 3}", healthy=i % 7 != 0)
        away = {AWAY: "its agent was told to end"} if i % 9 == 0 else {}
        nodes.append(node(of, vendor=Vendor.CAMBRICON if i == 11 else Vendor.NVIDIA, annotations=away))
    made = state_of(*nodes)
    place(made, placer_of(made), waiting("alone", {GPU: 1, PERCENT: 100}), "n17")
    place(made, placer_of(made), waiting("small", {GPU: 3, MEMORY: 2000}), "n19")
    return made


@pytest.mark.parametrize(
    "limits", [{GPU: 1, MEMORY: 60000}, {GPU: 3, MEMORY: 13000}, {GPU: 5, MEMORY: 1}, {GPU: 4, PERCENT: 100}]
)
@pytest.mark.parametrize("types", ["", "type-1", "type-9"])
@pytest.mark.parametrize("offered", [None, frozenset((*NAMES[3:], "stranger"))])
def test_it_is_the_same_without_asking_every_node(
    state: ClusterState, limits: dict[str, int], types: str, offered: frozenset[str] | None
) -> None:
    wishes = {"nvidia.com/use-gputype": types} if types else {}
    pod, placer = waiting("a", limits, annotations=wishes), placer_of(state)
    why = placer.reasons.why(pod, offered)
    assert not why.fits
    assert placer.reasons.nearest(pod, offered) is not None, "or nothing is shown by this"
    assert why_not(pod, placer, offered) == describe(why)
    why = placer.reasons.why(pod)
    refused = placer.filter(args(pod, *NAMES, "stranger"), 0.0).failed_and_unresolvable_nodes
    assert refused == {name: class_of(reason) for name, reason in why.reasons.items()} | {"stranger": "no GPUs known"}


def test_a_pod_that_would_fit_by_now_is_explained_so(state: ClusterState) -> None:
    pod, placer = waiting("a", {GPU: 1, MEMORY: 1}), placer_of(state)
    assert placer.reasons.nearest(pod) is None
    assert why_not(pod, placer) == describe(placer.reasons.why(pod))


@pytest.mark.parametrize(
    ("amount", "has_note"), [(300, True), (13500, False), (13, False), (13_499, False), (14, False)], ids=str
)
def test_memory_that_fits_in_mib_but_not_in_gib_is_said_to_be_so(
    state: ClusterState, amount: int, has_note: bool
) -> None:
    pod, placer = waiting("a", {"aliyun.com/gpu-mem": amount}), placer_of(state)
    note = f"it requests {amount} GiB on a GPU; if it means {amount} MiB, annotate it with cotenant.io/memory-unit: MiB"
    assert (note in why_not(pod, placer)) is has_note
    assert any(note in one for one in explain(pod, state, placer).notes) is has_note


def test_a_node_that_kube_scheduler_excludes_is_not_said_to_fit() -> None:
    made = state_of(node(machine("full", 1, 4000)), node(machine("free1")), node(machine("free2")))
    pod, placer = waiting("pinned", {GPU: 1, MEMORY: 9000}), placer_of(made)
    assert why_not(pod, placer) == (
        "it fits on 2 nodes, best on free1, as far as GPUs matter; kube-scheduler has not asked about this pod yet"
    )
    assert why_not(pod, placer, frozenset(("full", "other"))) == (
        "2 nodes: kube-scheduler excludes it by a node selector, affinity, a taint or a resource that it counts "
        "(free1); 1 node: needs 9000 MiB on one GPU; the freest has 4000 MiB free (full)"
    )
    assert (
        why_not(pod, placer, frozenset(("full", "free2")))
        == "it fits on 1 node, best on free2, and is tried again soon"
    )


def test_reserved_gpus_are_said_to_count_as_used() -> None:
    world = busy(None, None)
    world.tell(whole("first", gpus=2))
    world.go()
    end(world, "r0")
    world.tell(open_gate(whole("late")))
    assert "GPUs that are reserved for a pod or gang before it in the queue count as used" in why_not(
        world.pods["late"], world.placer
    )
