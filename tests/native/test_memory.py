# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every plain way to allocate is held to the quota, and freeing gives back exactly what allocating took."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.native import kit
from tests.native.kit import GIB, MIB
from tests.native.probe import CONTEXT, DEVICE, NO_STREAM, OUT_OF_MEMORY, Probe, probe

QUOTA = 1024 * MIB
FLOAT, BYTE = 0x20, 0x01
"""formats of arrays"""
LAYERED, CUBEMAP, SPARSE, DEFERRED = 0x01, 0x04, 0x40, 0x80
LEAST = 512
"""bytes that the driver gives at least, and in multiples"""
"""and their flags"""
POOL = 10

ROUTES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "alloc": lambda n: (0, 256 * MIB * n),
    "alloc_old": lambda n: (0, 256 * MIB * n),
    "pitch": lambda n: (0, MIB, 256 * n),
    "pitch_old": lambda n: (0, MIB, 256 * n),
    "managed": lambda n: (0, 256 * MIB * n),
    "array": lambda n: (0, 4096, 4096 * n, FLOAT, 4),
    "array_3d": lambda n: (0, 4096, 4096, n, FLOAT, 4, 0),
    "mipmapped": lambda n: (0, 4096, 4096, n, FLOAT, 4, LAYERED, 1),
    "create": lambda n: (0, 256 * MIB * n, DEVICE, 0),
    "async": lambda n: (0, 256 * MIB * n, NO_STREAM),
    "async_ptsz": lambda n: (0, 256 * MIB * n),
    "from_pool": lambda n: (0, 256 * MIB * n, POOL, NO_STREAM),
    "from_pool_ptsz": lambda n: (0, 256 * MIB * n, POOL),
}
"""ways to allocate, and the numbers with which each takes n times 256 MiB"""
FREED_BY = {
    "alloc_old": "free_old",
    "pitch_old": "free_old",
    "array": "array_destroy",
    "array_3d": "array_destroy",
    "mipmapped": "mipmapped_destroy",
    "create": "drop",
    "async": "free_async",
    "from_pool": "free_async",
    "async_ptsz": "free_async_ptsz",
    "from_pool_ptsz": "free_async_ptsz",
}
ON_THE_HOST = ("managed",)
"""what the stand-in does not keep on its device"""
DRIVER = {
    "alloc": "cuMemAlloc_v2",
    "pitch": "cuMemAllocPitch_v2",
    "managed": "cuMemAllocManaged",
    "array": "cuArrayCreate_v2",
    "array_3d": "cuArray3DCreate_v2",
    "mipmapped": "cuMipmappedArrayCreate",
    "create": "cuMemCreate",
    "async": "cuMemAllocAsync",
    "from_pool": "cuMemAllocFromPoolAsync",
}


def ask(caller: Probe, route: str, times: int) -> tuple[int, ...]:
    """The numbers of a request; what it needs before is there."""
    if "pool" in route:
        caller.ok("pool", POOL, DEVICE, 0)
    return ROUTES[route](times)


def free(caller: Probe, route: str) -> None:
    caller.ok(FREED_BY.get(route, "free"), 0, NO_STREAM)
    caller.ok("wait_all")


@pytest.mark.parametrize("route", ROUTES)
def test_a_request_over_the_quota_is_out_of_memory_exactly_and_takes_nothing(place: kit.Slice, route: str) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        assert caller.refused(route, *ask(caller, route, 5))
        assert (caller.booked(), caller.taken()) == (0, 0)


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_taken_is_charged_and_given_back(place: kit.Slice, route: str) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok(route, *ask(caller, route, 2))
        assert 512 * MIB <= caller.booked() <= 513 * MIB
        assert route in ON_THE_HOST or caller.taken() == caller.booked()
        free(caller, route)
        assert (caller.booked(), caller.taken()) == (0, 0)
        assert place.use().peak_bytes >= 512 * MIB


@pytest.mark.parametrize("route", DRIVER)
def test_nothing_is_charged_when_the_driver_itself_fails(place: kit.Slice, route: str) -> None:
    with probe(place.write(memory=QUOTA), faults=f"{DRIVER[route]}=2") as caller:
        assert caller.call(route, *ask(caller, route, 1)).result == OUT_OF_MEMORY
        assert caller.booked() == 0
        assert place.use().refused == 0


@pytest.mark.parametrize(
    ("route", "failing"),
    [("alloc", "cuMemFree_v2"), ("array", "cuArrayDestroy"), ("create", "cuMemRelease"), ("async", "cuMemFreeAsync")],
)
def test_what_the_driver_does_not_free_stays_charged(place: kit.Slice, route: str, failing: str) -> None:
    with probe(place.write(memory=QUOTA), faults=f"{failing}=1") as caller:
        caller.ok(route, *ask(caller, route, 1))
        for _ in range(2):
            assert caller.call(FREED_BY.get(route, "free"), 0, NO_STREAM).result == 1
            caller.ok("wait_all")
            assert caller.booked() == 256 * MIB


def test_the_quota_is_exact_to_what_the_driver_gives_at_least(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        for at in range(4):
            caller.ok("alloc", at, 256 * MIB)
        assert caller.refused("alloc", 9, 1)
        caller.ok("free", 2)
        caller.ok("alloc", 2, 256 * MIB - LEAST)
        caller.ok("alloc", 9, 1)
        assert caller.refused("alloc", 8, 1)
        assert caller.booked() == QUOTA


@pytest.mark.parametrize("call", ["alloc_null", "alloc"])
def test_bad_requests_get_the_drivers_own_answer(place: kit.Slice, call: str) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        assert caller.call(call, 0, 0).result == 1  # CUDA_ERROR_INVALID_VALUE
        assert caller.call("free", NO_STREAM).result == 0  # a null pointer is nothing to free
        assert caller.booked() == 0


def test_without_a_context_the_driver_answers(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA), context=False) as caller:
        assert caller.call("alloc", 0, 5 * GIB).result == 3  # CUDA_ERROR_NOT_INITIALIZED
        caller.ok("init")
        assert caller.call("alloc", 0, 5 * GIB).result == 201  # CUDA_ERROR_INVALID_CONTEXT
        assert place.use().refused == 0


def test_a_number_that_overflows_is_refused(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        assert caller.refused("alloc", 0, (1 << 64) - 1)
        assert caller.refused("pitch", 0, 1 << 40, 1 << 40)
        assert caller.refused("array_3d", 0, 1 << 40, 1 << 40, 1 << 40, FLOAT, 4, 0)
        assert caller.booked() == 0


@pytest.mark.parametrize(
    ("call", "numbers", "expected"),
    [
        ("array", (1024, 0, BYTE, 1), 1024),
        ("array", (1024, 1024, BYTE, 4), 4 * MIB),
        ("array_3d", (1024, 1024, 4, FLOAT, 1, 0), 16 * MIB),
        ("array_3d", (1024, 1024, 6, BYTE, 1, CUBEMAP), 6 * MIB),
        ("array_3d", (1024, 1024, 4, FLOAT, 1, SPARSE), 0),
        ("array_3d", (1024, 1024, 4, FLOAT, 1, DEFERRED), 0),
        ("mipmapped", (4, 4, 0, BYTE, 1, 0, 3), 16 + 4 + 1),
        ("mipmapped", (4, 4, 0, BYTE, 1, 0, 30), 16 + 4 + 1),
        ("mipmapped", (4, 4, 4, BYTE, 1, 0, 3), 64 + 8 + 1),
        ("mipmapped", (4, 4, 4, BYTE, 1, LAYERED, 3), 64 + 16 + 4),
    ],
)
def test_an_array_counts_what_its_description_says(
    place: kit.Slice, call: str, numbers: tuple[int, ...], expected: int
) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok(call, 0, *numbers)
        assert caller.booked() == expected


@pytest.mark.parametrize(
    ("name", "format_", "channels", "bits"),
    [
        ("half", 0x10, 2, 32),
        ("BC1, 4x4 elements in 8 bytes", 0x91, 4, 4),
        ("BC7, 4x4 elements in 16 bytes", 0x9D, 4, 8),
        ("NV12, one chroma pair for 4 elements", 0xB0, 3, 12),
        ("P210, 4:2:2 in 16 bits", 0xA3, 3, 32),
        ("4 channels of 16 bits normalised", 0xC5, 4, 64),
        ("planar 4:4:4 of 16 bits", 0x5E, 3, 48),
        ("an unknown one", 0x7F, 2, 64),
    ],
)
def test_the_format_says_how_large_an_element_is(
    place: kit.Slice, name: str, format_: int, channels: int, bits: int
) -> None:
    size = 1024 * 1022 * bits // 8 if "4x4" not in name else 1024 * 1024 * bits // 8
    with probe(place.write(memory=size - 1)) as caller:
        assert caller.refused("array", 0, 1024, 1022, format_, channels)
        place.write(memory=size)
        time.sleep(0.03)
        # The stand-in knows few formats, but by then it was asked.
        assert caller.call("array", 0, 1024, 1022, format_, channels).result != OUT_OF_MEMORY


def test_a_destroyed_context_gives_its_memory_back(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("alloc", 0, MIB)
        caller.ok("context", 1, 0)
        caller.ok("alloc", 2, 64 * MIB)
        caller.ok("array", 3, 1024, 1024, BYTE, 1)
        assert caller.booked() == 66 * MIB
        caller.ok("destroy", 1)
        assert caller.booked() == MIB
        caller.ok("current", CONTEXT)
        caller.ok("reset", 0)
        assert (caller.booked(), caller.taken()) == (0, 0)


def test_the_last_release_of_the_primary_context_gives_its_memory_back(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("retain", 1, 0)
        caller.ok("alloc", 0, MIB)
        caller.ok("release", 0)
        assert caller.booked() == MIB
        caller.ok("release", 0)
        assert (caller.booked(), caller.taken()) == (0, 0)


def test_the_heap_of_kernels_is_charged_as_large_as_it_is_set(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("context", 1, 0)
        caller.ok("heap", 600 * MIB)
        caller.ok("heap", 700 * MIB)
        assert caller.booked() == 700 * MIB
        assert caller.refused("heap", 1025 * MIB)
        assert caller.booked() == 700 * MIB
        caller.ok("heap", 100 * MIB)
        assert caller.booked() == 100 * MIB
        caller.ok("destroy", 1)
        assert caller.booked() == 0


def test_a_heap_that_the_driver_will_not_make_is_not_charged(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA), faults="cuCtxSetLimit=215") as caller:
        assert caller.call("heap", 600 * MIB).result == 215  # CUDA_ERROR_UNSUPPORTED_LIMIT
        assert caller.booked() == 0


def test_five_thousand_allocations_are_all_known(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        for at in range(5000):
            caller.ok("alloc", at, 4096 + at)
        for at in range(0, 5000, 2):
            caller.ok("free", at)
        assert caller.booked() == caller.taken() == sum(-(-(4096 + at) // LEAST) * LEAST for at in range(1, 5000, 2))
        for at in range(1, 5000, 2):
            caller.ok("free", at)
        assert caller.booked() == 0


def test_processes_share_the_quota_and_a_killed_one_gives_back(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as first:
        with probe(place) as second:
            second.ok("alloc", 0, 800 * MIB)
            assert first.refused("alloc", 0, 300 * MIB)
            second.process.kill()
        first.ok("alloc", 0, 300 * MIB)
        assert first.booked() == 300 * MIB


def test_limits_grow_at_once_and_shrink_without_taking_away(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("alloc", 0, QUOTA)
        place.write(memory=2 * QUOTA)
        time.sleep(0.03)
        caller.ok("alloc", 1, QUOTA)
        place.write(memory=QUOTA)
        time.sleep(0.03)
        assert caller.refused("alloc", 2, 1)
        caller.ok("free", 1)
        assert caller.refused("alloc", 2, 1)
        caller.ok("free", 0)
        caller.ok("alloc", 2, QUOTA)


def test_beyond_the_quota_the_host_budget_is_used_as_managed_memory(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, host=512 * MIB), backing="real") as caller:
        caller.ok("alloc", 0, 800 * MIB)
        assert caller.ok("is_managed", 0) == 0
        caller.ok("alloc", 1, 400 * MIB)
        assert caller.ok("is_managed", 1) == 1
        caller.ok("touch", 1, MIB)
        assert (place.use().memory_bytes, place.use().host_bytes) == (800 * MIB, 400 * MIB)
        assert caller.refused("alloc", 2, 400 * MIB)
        caller.ok("alloc", 2, 300 * MIB)  # neither budget has room for it alone
        assert (place.use().memory_bytes, place.use().host_bytes) == (QUOTA, 476 * MIB)
        for at in (0, 1, 2):
            caller.ok("free", at)
        assert (place.use().memory_bytes, place.use().host_bytes) == (0, 0)


def test_the_host_budget_is_exact_to_the_byte(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, host=512 * MIB)) as caller:
        caller.ok("alloc", 0, QUOTA)
        assert caller.refused("alloc", 1, 512 * MIB + 1)
        caller.ok("alloc", 1, 512 * MIB)
        assert caller.refused("alloc", 2, 1)
        caller.ok("free", 0)
        caller.ok("free", 1)
        caller.ok("alloc", 0, 1000 * MIB)
        assert caller.refused("managed", 1, 24 * MIB + 512 * MIB + 1)  # what is left of both, and one byte
        caller.ok("managed", 1, 24 * MIB + 512 * MIB)
        assert (place.use().memory_bytes, place.use().host_bytes) == (QUOTA, 512 * MIB)
        caller.ok("free", 1)
        assert (place.use().memory_bytes, place.use().host_bytes) == (1000 * MIB, 0)


@pytest.mark.parametrize("route", ["pitch", "managed", "async", "async_ptsz", "from_pool", "from_pool_ptsz"])
def test_other_routes_fall_back_on_the_host_budget_too(place: kit.Slice, route: str) -> None:
    with probe(place.write(memory=QUOTA, host=QUOTA)) as caller:
        caller.ok("alloc", 1, QUOTA)
        caller.ok(route, *ask(caller, route, 1))
        assert caller.ok("is_managed", 0) == 1
        assert (place.use().memory_bytes, place.use().host_bytes) == (QUOTA, 256 * MIB)
        free(caller, route)
        assert (place.use().memory_bytes, place.use().host_bytes) == (QUOTA, 0)


@pytest.mark.parametrize("route", ["array", "array_3d", "mipmapped", "create", "alloc_old"])
def test_what_cannot_be_managed_is_refused_whatever_the_host_budget(place: kit.Slice, route: str) -> None:
    with probe(place.write(memory=QUOTA, host=8 * GIB)) as caller:
        caller.ok("alloc", 1, QUOTA)
        assert caller.refused(route, *ask(caller, route, 1))


def test_a_full_card_falls_back_on_the_host_budget(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, host=QUOTA), memory_mib=512) as caller:
        caller.ok("alloc", 0, 400 * MIB)
        caller.ok("alloc", 1, 400 * MIB)
        assert (place.use().memory_bytes, place.use().host_bytes) == (400 * MIB, 400 * MIB)


def test_gpus_have_quotas_of_their_own(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, gpus=[kit.gpu(1), kit.gpu(2)]), devices=2) as caller:
        caller.ok("alloc", 0, QUOTA)
        caller.ok("context", 1, 1)
        caller.ok("alloc", 2, 512 * MIB)
        assert (caller.booked(0), caller.booked(1)) == (QUOTA, 512 * MIB)
        assert caller.call("alloc", 3, 513 * MIB).result == OUT_OF_MEMORY
        caller.ok("free", 0)
        assert (caller.booked(0), caller.booked(1)) == (0, 512 * MIB)


def test_racing_processes_never_hold_more_than_the_quota(place: kit.Slice) -> None:
    done = kit.run(place.write(memory=QUOTA), [kit.program("memory_race"), "8", "300", "40"], backing="none")
    seen = kit.values(done.stdout)
    assert (seen.pop("wrong"), seen.pop("failed")) == (0, 0)
    assert seen.pop("peak") == 900 * MIB
    assert max(int(name.rsplit("_")[-1]) for name in seen) == 3


def test_threads_that_allocate_and_free_at_random_leave_nothing(place: kit.Slice) -> None:
    done = kit.run(place.write(memory=QUOTA), [kit.program("memory_threads"), "4", "5000"], backing="none")
    seen = kit.values(done.stdout)
    assert (seen["taken"], seen["booked"], seen["wrong"]) == (0, 0, 0)
    assert seen["refused"] > 0
    assert 900 * MIB < seen["peak"] <= QUOTA


KINDS = ["alloc", "pitch", "async", "from_pool", "array", "create"]
STEPS = st.lists(
    st.tuples(st.sampled_from([*KINDS, "free", "wait_all"]), st.integers(0, 7), st.integers(1, 400 * MIB)), max_size=40
)


class Books:
    """What a random program holds, by its own reckoning."""

    def __init__(self, caller: Probe) -> None:
        self.caller = caller
        self.held: dict[int, str] = {}

    def step(self, kind: str, at: int, size: int) -> None:
        if kind == "wait_all":
            self.caller.ok("wait_all")
        elif kind == "free" or at in self.held:
            self.free(at)
        elif self.caller.call(kind, at, *self.numbers(kind, size)).result == 0:
            self.held[at] = kind
        # A pool that freed what it holds may keep it until something is waited for: charged, since it is held.
        assert self.caller.booked() == self.caller.taken() <= QUOTA

    @staticmethod
    def numbers(kind: str, size: int) -> tuple[int, ...]:
        granular = (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        rows = {"pitch": (4096, 1 + size // 4096), "array": (4096, 1 + size // 4096, BYTE, 1)}
        more = {"create": (granular, DEVICE, 0), "async": (size, NO_STREAM), "from_pool": (size, POOL, NO_STREAM)}
        return (rows | more).get(kind, (size,))

    def free(self, at: int) -> None:
        if kind := self.held.pop(at, None):
            self.caller.ok(FREED_BY.get(kind, "free"), at, NO_STREAM)

    def end(self) -> None:
        for at in list(self.held):
            self.free(at)
        self.caller.ok("wait_all")
        assert (self.caller.booked(), self.caller.taken()) == (0, 0)


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_programs_never_hold_more_than_the_quota_and_the_books_agree_with_the_driver(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = kit.Slice(Path(tmp_path_factory.mktemp("slice"))).write(memory=QUOTA)
    with probe(place) as caller:
        caller.ok("pool", POOL, DEVICE, 0)
        books = Books(caller)
        for step in data.draw(STEPS):
            books.step(*step)
        books.end()
