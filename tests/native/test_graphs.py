# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Graphs that allocate are held to the quota when they are launched, and charged for what the driver keeps for them."""

import pytest

from tests.native import kit
from tests.native.kit import MIB
from tests.native.probe import NO_STREAM, OUT_OF_MEMORY, Probe, probe

QUOTA = 1024 * MIB
GRAPH, EXEC, NODE, STREAM = 10, 20, 30, 40


def make(caller: Probe, size: int, number: int = 0, freed: bool = True) -> None:
    """An executable graph with one allocation, which it frees again."""
    caller.ok("graph", GRAPH + number)
    caller.ok("node", NODE + 2 * number, GRAPH + number, size)
    if freed:
        caller.ok("node_free", GRAPH + number, NODE + 2 * number)
    caller.ok("instantiate", EXEC + number, GRAPH + number, 0)


@pytest.mark.parametrize("call", ["node", "node_generic"])
def test_a_node_larger_than_the_quota_is_refused_at_once(place: kit.Slice, call: str) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("graph", GRAPH)
        assert caller.refused(call, NODE, GRAPH, QUOTA + 1)
        caller.ok(call, NODE, GRAPH, QUOTA)


@pytest.mark.parametrize("start", ["launch", "upload"])
def test_a_graph_is_charged_from_its_launch_until_its_memory_is_trimmed(place: kit.Slice, start: str) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller, 600 * MIB)
        assert caller.booked() == caller.taken() == 0
        caller.ok(start, EXEC, NO_STREAM)
        caller.ok("launch", EXEC, NO_STREAM)
        caller.ok("wait_all")
        assert caller.booked() == caller.taken() == 600 * MIB
        caller.ok("exec_destroy", EXEC)
        caller.ok("graph_trim", 0)
        assert caller.booked() == caller.taken() == 0


@pytest.mark.parametrize("start", ["launch", "upload"])
def test_a_launch_that_does_not_fit_is_out_of_memory(place: kit.Slice, start: str) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller, 600 * MIB)
        caller.ok("alloc", 0, 600 * MIB)
        assert caller.refused(start, EXEC, NO_STREAM)
        assert caller.booked() == caller.taken() == 600 * MIB
        caller.ok("free", 0)
        caller.ok(start, EXEC, NO_STREAM)


def test_memory_of_graphs_that_have_run_makes_room(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller, 600 * MIB)
        caller.ok("launch", EXEC, NO_STREAM)
        caller.ok("wait_all")
        caller.ok("exec_destroy", EXEC)
        caller.ok("alloc", 0, 600 * MIB)
        assert caller.booked() == caller.taken() == 600 * MIB


def test_what_a_graph_does_not_free_stays_charged(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller, 600 * MIB, freed=False)
        caller.ok("launch", EXEC, NO_STREAM)
        caller.ok("wait_all")
        caller.ok("graph_trim", 0)
        assert caller.booked() == caller.taken() == 600 * MIB
        caller.ok("free_async", NODE, NO_STREAM)
        caller.ok("wait_all")
        caller.ok("graph_trim", 0)
        assert caller.booked() == caller.taken() == 0


def test_graphs_within_graphs_count(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("graph", GRAPH)
        caller.ok("node", NODE, GRAPH, 600 * MIB)
        caller.ok("node_free", GRAPH, NODE)
        caller.ok("graph", GRAPH + 1)
        if caller.call("node_child", GRAPH + 1, GRAPH).result:
            pytest.skip("the stand-in takes no allocating graph as a child")
        caller.ok("instantiate", EXEC, GRAPH + 1, 0)
        caller.ok("alloc", 0, 600 * MIB)
        assert caller.refused("launch", EXEC, NO_STREAM)


def test_a_recorded_allocation_is_charged_when_it_runs(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("stream", STREAM)
        caller.ok("capture", STREAM, 0)
        caller.ok("async", 0, 600 * MIB, STREAM)
        caller.ok("free_async", 0, STREAM)
        caller.ok("capture_end", STREAM, GRAPH)
        caller.ok("instantiate", EXEC, GRAPH, 0)
        caller.ok("alloc", 1, 600 * MIB)
        assert caller.refused("launch", EXEC, STREAM)
        caller.ok("free", 1)
        caller.ok("launch", EXEC, STREAM)
        caller.ok("wait", STREAM)
        assert caller.booked() == caller.taken() == 600 * MIB


def test_a_failed_launch_is_not_charged(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA), faults="cuGraphLaunch=719") as caller:
        make(caller, 600 * MIB)
        assert caller.call("launch", EXEC, NO_STREAM).result == 719
        assert caller.booked() == caller.taken()


def test_many_graphs_share_what_is_kept(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        for number in range(3):
            make(caller, 400 * MIB, number)
        for number in range(3):
            result = caller.call("launch", EXEC + number, NO_STREAM).result
            caller.ok("wait_all")
            assert result in (0, OUT_OF_MEMORY)
            assert caller.booked() == caller.taken() <= QUOTA


def test_what_graphs_keep_is_not_counted_on_and_trimmed_at_once(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("alloc", 0, 300 * MIB)
        make(caller, 400 * MIB)
        caller.ok("launch", EXEC, NO_STREAM)
        caller.ok("wait_all")
        make(caller, 800 * MIB, 1)
        assert caller.refused("launch", EXEC + 1, NO_STREAM)
        assert caller.booked() == caller.taken() <= QUOTA
