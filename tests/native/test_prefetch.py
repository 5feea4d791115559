# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Managed memory is charged where it is prefetched to, or is not prefetched."""

import time

import pytest

from tests.native import kit
from tests.native.kit import MIB
from tests.native.probe import DEVICE, HOST, NO_STREAM, OUT_OF_MEMORY, probe

BOTH = (kit.gpu(1), kit.gpu(2))
REFUSED_BY_DRIVER = 1
"""CUDA_ERROR_INVALID_VALUE"""


@pytest.mark.parametrize("name", ["prefetch", "prefetch_2"])
def test_managed_memory_is_not_prefetched_to_a_gpu_without_quota(name: str, place: kit.Slice) -> None:
    place.write(memory=1024 * MIB)
    text = place.limits.read_text().replace("\ngpu ", "\ndefault memory=0\ngpu ", 1)
    place.limits.unlink()
    place.limits.write_text(text)
    with probe(place, devices=2) as caller:
        caller.ok("managed", 0, 600 * MIB)
        words = (0, 4096, 1) if name == "prefetch" else (0, DEVICE, 1)
        assert caller.call(name, *words).result == OUT_OF_MEMORY
        assert caller.taken(1) == 0
        assert caller.booked() == 600 * MIB
        caller.ok(name, *words[:2], 0)
        caller.ok("free", 0)
        assert (caller.booked(), caller.taken(0)) == (0, 0)


def test_managed_memory_counts_on_the_gpu_that_it_was_prefetched_to(place: kit.Slice) -> None:
    place.write(memory=1024 * MIB, gpus=(kit.gpu(1), kit.gpu(2)))
    with probe(place, devices=2) as caller:
        caller.ok("managed", 0, 600 * MIB)
        caller.ok("prefetch", 0, 0, 1)
        assert (caller.booked(0), caller.booked(1)) == (0, 600 * MIB)
        caller.ok("alloc", 1, 1000 * MIB)
        assert caller.call("prefetch", 0, 0, 0).result == OUT_OF_MEMORY
        assert (caller.booked(0), caller.booked(1)) == (1000 * MIB, 600 * MIB)


def test_memory_of_a_pool_is_charged_on_the_gpu_that_it_is_prefetched_to_until_it_is_freed(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB, gpus=BOTH), devices=2) as caller:
        caller.ok("pool_managed", 5, DEVICE, 0)
        caller.ok("from_pool", 0, 600 * MIB, 5, NO_STREAM)
        caller.ok("prefetch", 0, 0, 1)
        assert (caller.booked(0), caller.booked(1)) == (600 * MIB, 600 * MIB)
        caller.ok("prefetch", 0, 0, 0)
        assert (caller.booked(0), caller.booked(1)) == (600 * MIB, 0)
        caller.ok("prefetch", 0, 0, 1)
        caller.ok("free", 0)
        caller.ok("wait_all")
        assert (caller.booked(0), caller.booked(1)) == (0, 0)


def test_memory_of_a_destroyed_pool_stays_charged_where_it_was_prefetched_to(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB, gpus=BOTH), devices=2) as caller:
        caller.ok("pool_managed", 5, DEVICE, 0)
        caller.ok("from_pool", 0, 600 * MIB, 5, NO_STREAM)
        caller.ok("prefetch", 0, 0, 1)
        caller.ok("pool_destroy", 5)
        assert (caller.booked(0), caller.booked(1)) == (0, 600 * MIB)
        caller.ok("free", 0)
        assert (caller.booked(0), caller.booked(1)) == (0, 0)


@pytest.mark.parametrize("kind", ["managed", "async"])
def test_a_prefetch_that_the_driver_refuses_changes_no_charge(kind: str, place: kit.Slice) -> None:
    place.write(memory=1024 * MIB, gpus=BOTH)
    with probe(place, devices=2, faults=f"cuMemPrefetchAsync={REFUSED_BY_DRIVER}") as caller:
        caller.ok(kind, 0, 600 * MIB, NO_STREAM)
        place.write(memory=700 * MIB, gpus=BOTH)  # smaller than both charges together
        time.sleep(0.1)
        assert caller.call("prefetch", 0, 0, 1).result == REFUSED_BY_DRIVER
        assert (caller.booked(0), caller.booked(1)) == (600 * MIB, 0)
        caller.ok("free", 0)
        caller.ok("wait_all")
        assert (caller.booked(0), caller.booked(1)) == (0, 0)


def test_a_refused_prefetch_leaves_the_charge_on_a_gpu_whose_limit_has_shrunk(place: kit.Slice) -> None:
    place.write(memory=1024 * MIB, gpus=BOTH)
    with probe(place, devices=2, faults=f"cuMemPrefetchAsync={REFUSED_BY_DRIVER}") as caller:
        caller.ok("managed", 0, 600 * MIB)
        first = f"gpu {kit.gpu(1)} memory="
        text = place.limits.read_text().replace(f"{first}{1024 * MIB}", f"{first}4096")
        place.limits.unlink()
        place.limits.write_text(text)
        time.sleep(0.1)
        assert caller.call("prefetch", 0, 0, 1).result == REFUSED_BY_DRIVER
        assert (caller.booked(0), caller.booked(1)) == (600 * MIB, 0)


def test_memory_beyond_the_quota_comes_to_its_gpu_only_if_it_fits(place: kit.Slice) -> None:
    with probe(place.write(memory=512 * MIB, host=1024 * MIB)) as caller:
        caller.ok("alloc", 0, 400 * MIB)
        caller.ok("managed", 1, 300 * MIB)
        assert (place.use().memory_bytes, place.use().host_bytes) == (400 * MIB, 300 * MIB)
        assert caller.refused("prefetch", 1, 0, 0)
        assert caller.taken() == 400 * MIB
        caller.ok("free", 0)
        caller.ok("prefetch", 1, 4096, 0)
        assert (place.use().memory_bytes, place.use().host_bytes) == (300 * MIB, 0)
        caller.ok("prefetch_2", 1, HOST, 0)
        assert (place.use().memory_bytes, place.use().host_bytes) == (0, 300 * MIB)
        caller.ok("free", 1)
        assert (place.use().memory_bytes, place.use().host_bytes, caller.taken()) == (0, 0, 0)


def test_memory_that_is_prefetched_to_a_host_without_a_budget_stays_charged(place: kit.Slice) -> None:
    with probe(place.write(memory=512 * MIB)) as caller:
        caller.ok("managed", 0, 300 * MIB)
        caller.ok("prefetch_2", 0, HOST, 0)
        assert caller.booked() == 300 * MIB


def test_plain_memory_cannot_be_prefetched_and_stays_charged(place: kit.Slice) -> None:
    with probe(place.write(memory=512 * MIB, host=512 * MIB, gpus=BOTH), devices=2) as caller:
        caller.ok("alloc", 0, 300 * MIB)
        assert caller.call("prefetch", 0, 0, 1).result == REFUSED_BY_DRIVER
        assert caller.call("prefetch_2", 0, HOST, 0).result == REFUSED_BY_DRIVER
        assert (caller.booked(0), caller.booked(1), place.use().host_bytes) == (300 * MIB, 0, 0)


@pytest.mark.parametrize("name", ["prefetch_batch", "discard_batch"])
def test_a_batch_of_prefetches_is_charged_or_refused_as_a_whole(name: str, place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB, gpus=BOTH), devices=2, cuda=13) as caller:
        caller.ok("managed", 0, 600 * MIB)
        caller.ok("managed", 1, 300 * MIB)
        caller.ok(name, 0, 1, 1, 0)  # two parts of the first to the second GPU, the other to the first
        assert (caller.booked(0), caller.booked(1)) == (300 * MIB, 600 * MIB)
        assert (caller.taken(0), caller.taken(1)) == (300 * MIB, 600 * MIB)
        caller.ok("alloc", 2, 600 * MIB)
        assert caller.call(name, 1, 0, 1, 0).result == OUT_OF_MEMORY  # the first fits, the second does not
        assert (caller.booked(0), caller.booked(1)) == (900 * MIB, 600 * MIB)
        assert (caller.taken(0), caller.taken(1)) == (900 * MIB, 600 * MIB)
