# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Stream-ordered allocation is charged by what the pools hold, which is more than what programs have of them."""

import pytest

from tests.native import kit
from tests.native.kit import MIB
from tests.native.probe import DEVICE, HOST, NO_STREAM, OUT_OF_MEMORY, Probe, probe

QUOTA = 1024 * MIB
POOL, STREAM = 10, 11
ALL = (1 << 64) - 1
"""a release threshold: nothing is given back"""


def keep(caller: Probe, size: int) -> None:
    """Leaves that much unused in the default pool."""
    caller.ok("pool_default", POOL, 0)
    caller.ok("pool_keep", POOL, ALL)
    caller.ok("async", 0, size, NO_STREAM)
    caller.ok("free_async", 0, NO_STREAM)
    caller.ok("wait", NO_STREAM)


def test_what_a_pool_keeps_stays_charged_until_it_is_trimmed(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        keep(caller, 600 * MIB)
        assert caller.booked() == caller.taken() == caller.ok("pool_held", POOL) == 600 * MIB
        caller.ok("pool_trim", POOL, 0)
        assert caller.booked() == caller.taken() == 0


def test_what_a_pool_keeps_is_used_again_without_being_charged_again(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        for _ in range(3):
            keep(caller, 900 * MIB)
        assert caller.booked() == 900 * MIB


@pytest.mark.parametrize(
    ("route", "numbers"),
    [("alloc", (1, 600 * MIB)), ("create", (1, 600 * MIB, DEVICE, 0)), ("managed", (1, 600 * MIB))],
)
def test_unused_pool_memory_makes_room_before_anything_is_refused(
    place: kit.Slice, route: str, numbers: tuple[int, ...]
) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        keep(caller, 600 * MIB)
        caller.ok(route, *numbers)
        assert caller.booked() == 600 * MIB
        assert place.use().refused == 0


def test_another_process_sees_room_as_soon_as_a_pool_shrank(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as first, probe(place) as second:
        first.ok("async", 0, 800 * MIB, NO_STREAM)
        first.ok("free_async", 0, NO_STREAM)
        first.ok("wait_all")
        second.ok("alloc", 0, 800 * MIB)


@pytest.mark.parametrize("free", ["free", "free_async"])
def test_a_pool_pointer_may_be_freed_either_way(place: kit.Slice, free: str) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("async", 0, 300 * MIB, NO_STREAM)
        caller.ok(free, 0, NO_STREAM)
        caller.ok("wait_all")
        assert (caller.booked(), caller.taken()) == (0, 0)


def test_plain_memory_may_be_freed_by_a_stream(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("alloc", 0, 300 * MIB)
        caller.call("free_async", 0, NO_STREAM)
        caller.ok("wait_all")
        assert caller.booked() == caller.taken()


def test_a_pool_that_grows_by_more_than_fits_is_given_back(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("alloc", 0, QUOTA - MIB)
        answer = caller.call("async", 1, MIB // 2, NO_STREAM)
        caller.ok("wait_all")
        # The stand-in's pools grow by 2 MiB at least.
        assert answer.result == OUT_OF_MEMORY
        assert caller.booked() == caller.taken() == QUOTA - MIB
        assert place.use().refused == 1


def test_memory_of_a_destroyed_pool_stays_charged_as_long_as_it_is_held(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("pool", POOL, DEVICE, 0)
        caller.ok("from_pool", 0, 300 * MIB, POOL, NO_STREAM)
        caller.ok("from_pool", 1, 200 * MIB, POOL, NO_STREAM)
        caller.ok("free_async", 1, NO_STREAM)
        caller.ok("pool_destroy", POOL)
        assert caller.booked() == 300 * MIB
        caller.ok("free_async", 0, NO_STREAM)
        caller.ok("wait_all")
        assert (caller.booked(), caller.taken()) == (0, 0)


def test_pools_of_the_host_are_not_charged(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        if caller.call("pool", POOL, HOST, 0).result:
            pytest.skip("the stand-in has no pools on the host")
        caller.ok("from_pool", 0, 2 * QUOTA, POOL, NO_STREAM)
        assert caller.booked() == 0


def test_a_pool_counts_on_the_gpu_it_is_on(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, gpus=[kit.gpu(1), kit.gpu(2)]), devices=2) as caller:
        caller.ok("pool", POOL, DEVICE, 1)
        caller.ok("from_pool", 0, 300 * MIB, POOL, NO_STREAM)
        caller.ok("pool_default", POOL + 1, 1)
        caller.ok("from_pool", 1, 200 * MIB, POOL + 1, NO_STREAM)
        assert (caller.booked(0), caller.booked(1)) == (0, 500 * MIB)


def test_the_pool_that_a_device_uses_may_be_changed(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("pool", POOL, DEVICE, 0)
        caller.ok("pool_use", POOL, 0)
        caller.ok("async", 0, 300 * MIB, NO_STREAM)
        assert caller.ok("pool_held", POOL) == caller.booked() == 300 * MIB


def test_a_driver_that_does_not_tell_what_pools_hold_is_charged_by_request(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA), faults="cuMemPoolGetAttribute=1") as caller:
        caller.ok("async", 0, 300 * MIB, NO_STREAM)
        assert caller.booked() == 300 * MIB
        assert caller.refused("async", 1, 800 * MIB, NO_STREAM)
        caller.ok("free_async", 0, NO_STREAM)
        assert caller.booked() == 0


def test_a_driver_without_pools_answers_for_itself(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA), faults="cuDeviceGetMemPool=801,cuMemAllocAsync=801") as caller:
        assert caller.call("async", 0, 300 * MIB, NO_STREAM).result == 801
        assert caller.booked() == 0


def test_what_a_stream_records_is_not_charged_before_it_runs(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("stream", STREAM)
        caller.ok("capture", STREAM, 0)
        caller.ok("async", 0, 300 * MIB, STREAM)
        assert caller.refused("async", 1, QUOTA + 1, STREAM)
        caller.ok("free_async", 0, STREAM)
        caller.ok("capture_end", STREAM, 12)
        assert caller.booked() == 0


def test_falling_back_does_not_spoil_what_another_stream_records(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, host=QUOTA)) as caller:
        caller.ok("alloc", 0, QUOTA)
        caller.ok("stream", STREAM)
        caller.ok("stream", STREAM + 1)
        caller.ok("capture", STREAM, 0)  # the mode that forbids most to the whole process
        caller.ok("async", 1, 300 * MIB, STREAM + 1)
        assert caller.ok("is_managed", 1) == 1
        caller.ok("free_async", 1, STREAM + 1)
        caller.ok("capture_end", STREAM, 12)
        assert place.use().host_bytes == 0
