# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Physical memory is charged until its last handle is released and its last mapping is gone."""

import pytest

from tests.native import kit
from tests.native.kit import MIB
from tests.native.probe import DEVICE, HOST, Probe, probe

QUOTA = 1024 * MIB
HALF = 512 * MIB
CHUNK, OTHER, RANGE = 0, 1, 2


def make(caller: Probe) -> None:
    """Two chunks of half the quota, and addresses for both."""
    caller.ok("create", CHUNK, HALF, DEVICE, 0)
    caller.ok("create", OTHER, HALF, DEVICE, 0)
    caller.ok("reserve", RANGE, 4 * HALF)


def test_a_mapping_keeps_its_chunk_charged_after_the_handle_is_released(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller)
        caller.ok("map", RANGE, 0, HALF, CHUNK)
        caller.ok("drop", CHUNK)
        assert caller.booked() == caller.taken() == QUOTA
        assert caller.refused("alloc", 9, 1)
        caller.ok("unmap", RANGE, 0, HALF)
        assert caller.booked() == caller.taken() == HALF


def test_a_handle_keeps_its_chunk_charged_after_it_is_unmapped(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller)
        caller.ok("map", RANGE, 0, HALF, CHUNK)
        caller.ok("unmap", RANGE, 0, HALF)
        assert caller.booked() == QUOTA
        caller.ok("drop", CHUNK)
        assert caller.booked() == caller.taken() == HALF


def test_one_unmapping_may_cover_several_mappings(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller)
        caller.ok("map", RANGE, 0, HALF, CHUNK)
        caller.ok("map", RANGE, HALF, HALF, OTHER)
        caller.ok("map", RANGE, 2 * HALF, HALF, CHUNK)  # a chunk may be mapped twice
        caller.ok("drop", CHUNK)
        caller.ok("drop", OTHER)
        caller.ok("unmap", RANGE, 0, 2 * HALF)
        assert caller.booked() == caller.taken() == HALF
        caller.ok("unmap", RANGE, 2 * HALF, HALF)
        assert (caller.booked(), caller.taken()) == (0, 0)


@pytest.mark.parametrize("released", [False, True])
def test_a_retained_handle_counts_too(place: kit.Slice, released: bool) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller)
        caller.ok("map", RANGE, 0, HALF, CHUNK)
        if released:
            caller.ok("drop", CHUNK)
        caller.ok("hold", 5, RANGE)
        caller.ok("unmap", RANGE, 0, HALF)
        if not released:
            caller.ok("drop", CHUNK)
        assert caller.booked() == caller.taken() == QUOTA
        caller.ok("drop", 5)
        assert caller.booked() == caller.taken() == HALF


def test_a_released_handle_may_come_again_while_its_chunk_is_mapped(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller)
        caller.ok("map", RANGE, 0, HALF, CHUNK)
        caller.ok("drop", CHUNK)
        caller.ok("drop", OTHER)
        caller.ok("create", OTHER, HALF, DEVICE, 0)
        assert caller.booked() == caller.taken() == QUOTA
        caller.ok("drop", OTHER)
        caller.ok("unmap", RANGE, 0, HALF)
        assert (caller.booked(), caller.taken()) == (0, 0)


def test_a_chunk_counts_on_the_gpu_that_it_names_whatever_is_current(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, gpus=[kit.gpu(1), kit.gpu(2)]), devices=2) as caller:
        caller.ok("create", CHUNK, HALF, DEVICE, 1)
        assert (caller.booked(0), caller.booked(1)) == (0, HALF)
        caller.ok("drop", CHUNK)
        caller.ok("none")  # and without a context
        caller.ok("create", CHUNK, HALF, DEVICE, 1)
        assert caller.booked(1) == HALF


def test_chunks_of_host_memory_are_not_charged(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        assert caller.call("create", CHUNK, 2 * QUOTA, HOST, 0).result in (0, 801)
        assert caller.booked() == 0


@pytest.mark.parametrize("failing", ["cuMemMap", "cuMemUnmap", "cuMemRelease", "cuMemRetainAllocationHandle"])
def test_a_failed_call_changes_nothing(place: kit.Slice, failing: str) -> None:
    with probe(place.write(memory=QUOTA), faults=f"{failing}=1") as caller:
        make(caller)
        caller.call("map", RANGE, 0, HALF, CHUNK)
        caller.call("hold", 5, RANGE)
        caller.call("drop", 5)
        caller.call("unmap", RANGE, 0, HALF)
        assert caller.booked() == caller.taken() == QUOTA
        if failing != "cuMemRelease":
            caller.ok("drop", OTHER)
            assert caller.booked() == caller.taken() == HALF
