# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that no program has allocated, or that a program has taken out of its account, counts against the limit."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from cotenant.node.company import UNKNOWN_SPACE, SliceProcess, identify, write_list
from tests.native import kit
from tests.native.kit import MIB
from tests.native.namespaces import OWN_NAMESPACE, can_unshare, descendant
from tests.native.probe import OUT_OF_MEMORY, Probe, probe

STACK, FIFO, HEAP, SYNC_DEPTH, LAUNCHES = range(5)
"""CU_LIMIT_*"""
needs_namespaces = pytest.mark.skipif(not can_unshare(), reason="needs the right to make PID namespaces")


ASKS = "nvmlDeviceGetComputeRunningProcesses_v3"
"""by which the library asks what the processes hold"""


def hold(place: kit.Slice, *words: str, before: Sequence[str] = (), **settings: int) -> dict[str, int]:
    """What native/programs/memory_hold.c says; it ends by killing its whole process group."""
    with subprocess.Popen(
        [*before, str(kit.program("memory_hold")), *words],
        env=place.env(backing="none", **settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        output, complaints = process.communicate(timeout=300)
    assert (process.returncode, complaints) == (-9, "")
    return kit.values(output)


def test_the_memory_of_contexts_counts(place: kit.Slice) -> None:
    found = hold(place.write(memory=1024 * MIB), "2", "64", context_mib=300)
    assert found["got_0"] == 704
    assert found["got_1"] == 0  # its own context is 276 MiB too much already, which cannot be refused


def test_the_memory_of_contexts_does_not_count_if_the_limits_say_so(place: kit.Slice) -> None:
    found = hold(place.write(memory=1024 * MIB, overhead=False), "1", "64", context_mib=300)
    assert found["got_0"] == 1024


def test_a_program_sees_what_its_context_takes(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB), context_mib=300) as caller:
        assert caller.call("info")[1:3] == (724 * MIB, 1024 * MIB)
        assert caller.call("nvml")[1:] == (1024 * MIB, 724 * MIB, 300 * MIB)


def test_processes_that_wipe_their_account_get_no_more_than_the_limit(place: kit.Slice) -> None:
    found = hold(place.write(memory=256 * MIB), "5", "64", "wipe", str(place.usage))
    assert found["peak"] <= 256


def test_processes_that_wipe_their_account_and_take_little_by_little(place: kit.Slice) -> None:
    found = hold(place.write(memory=256 * MIB), "5", "4", "wipe", str(place.usage))
    assert found["peak"] <= 256 + 5 * 16


def test_what_nvml_said_last_counts_while_it_does_not_answer(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB), context_mib=300, faults=f"{ASKS}=999@2") as caller:
        caller.ok("alloc", 0, 64 * MIB)
        caller.ok("alloc", 1, 640 * MIB)
        assert caller.refused("alloc", 2, 64 * MIB)


def test_a_process_whose_memory_nvml_cannot_tell_does_not_make_the_rest_disappear(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB), context_mib=300, untold=2) as caller:
        caller.ok("alloc", 0, 64 * MIB)
        caller.ok("alloc", 1, 640 * MIB)
        assert caller.refused("alloc", 2, 64 * MIB)


def test_an_account_that_is_wiped_after_nvml_was_asked_hides_nothing(place: kit.Slice) -> None:
    """NVML answers once, while the account is right; all that follows goes by that answer."""
    with probe(place.write(memory=1000 * MIB)) as first, probe(place, faults=f"{ASKS}=999@2") as second:
        first.ok("alloc", 0, 600 * MIB)
        second.ok("alloc", 0, 50 * MIB)
        with open(place.usage, "r+b") as region:
            for slot in range(2):
                region.seek(4096 + slot * 1152 + 160)
                region.write(bytes(128))
        assert second.refused("alloc", 1, 400 * MIB)
        second.ok("alloc", 1, 350 * MIB)


def test_what_others_have_freed_is_noticed_before_a_refusal(place: kit.Slice) -> None:
    with probe(place.write(memory=1000 * MIB)) as first, probe(place) as second:
        first.ok("alloc", 0, 600 * MIB)
        second.ok("alloc", 0, 50 * MIB)
        first.ok("free", 0)
        for number in range(1, 48):  # too small for NVML to be asked each time
            second.ok("alloc", number, 20 * MIB)


@contextlib.contextmanager
def listing(place: kit.Slice, of: int, seconds: float) -> Iterator[None]:
    """An agent that lists all descendants of a process of the host after every so many seconds."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(seconds):
            found = (identify(pid) for pid in descendants(of))
            write_list(place.processes, [one for one in found if isinstance(one, SliceProcess)])

    agent = threading.Thread(target=write)
    agent.start()
    try:
        yield
    finally:
        ended.set()
        agent.join()


def descendants(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return children + [below for child in children for below in descendants(child)]
    return []


@needs_namespaces
@pytest.mark.parametrize("signals", [[], ["5000"]], ids=["", "interrupted 5000 times a second"])
def test_in_a_container_a_new_process_that_wipes_the_account_gets_no_more(signals: list[str], place: kit.Slice) -> None:
    """Each process takes what it gets before the agent has listed it, unless it waits for the list."""
    place.write(memory=256 * MIB)
    with (
        subprocess.Popen(
            [*OWN_NAMESPACE, str(kit.program("memory_hold")), "4", "64", "wipe", str(place.usage), *signals],
            env=place.env(backing="none", host_pids=1),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
        listing(place, process.pid, 0.5),
    ):
        output, _ = process.communicate(timeout=300)
    found = kit.values(output)
    assert found["got_0"] == 256
    assert found["peak"] <= 256 + 4 * 16


@needs_namespaces
@pytest.mark.parametrize(
    ("listed", "host_pids", "room"),
    [(True, 1, 800), (False, 1, 1000), (False, 0, 1000)],
    ids=["listed", "not listed", "the same process ID twice"],
)
def test_in_a_container_only_what_can_be_told_apart_counts(
    listed: bool, host_pids: int, room: int, tmp_path: Path
) -> None:
    """Two slices whose processes have the same process ID, each in a namespace of its own."""
    places = [kit.Slice(tmp_path / name) for name in "ab"]
    for one in places:
        one.folder.mkdir()
        one.write(memory=1000 * MIB)
    inside = partial(probe, before=OWN_NAMESPACE, state=str(tmp_path / "state"), context_mib=200, host_pids=host_pids)
    with inside(places[0]) as first, inside(places[1]) as last:
        for one, caller in zip(places, (first, last), strict=True):
            if listed:
                found = identify(descendant(caller.process))
                assert isinstance(found, SliceProcess)
                assert found.pid == 1
                write_list(one.processes, [found._replace(pid_space=UNKNOWN_SPACE)])
            caller.ok("alloc", 0, 700 * MIB)
        assert [700 + steps_of_20_mib(caller) for caller in (first, last)] == [room, room]


def steps_of_20_mib(caller: Probe) -> int:
    """MiB that a process still gets."""
    got = 0
    while caller.call("alloc", 1, 20 * MIB).result == 0:
        got += 20
    return got


@pytest.mark.parametrize(
    ("limit", "value", "charged"),
    [(FIFO, 600 * MIB, 600 * MIB), (HEAP, 600 * MIB, 600 * MIB), (STACK, 2048, 2048 * 108 * 2048)],
    ids=["printf", "heap", "stack"],
)
def test_what_a_context_takes_for_its_limits_is_charged_or_refused(
    limit: int, value: int, charged: int, place: kit.Slice
) -> None:
    with probe(place.write(memory=1024 * MIB)) as caller:
        caller.ok("limit", limit, value)
        assert caller.booked() == charged
        assert caller.taken() <= charged
        assert caller.refused("limit", limit, 4 * value)
        caller.ok("limit", limit, 0)
        assert caller.booked() == 0


def test_a_smaller_heap_is_granted_in_a_slice_that_holds_more_than_its_limit(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB)) as caller:
        caller.ok("limit", HEAP, 600 * MIB)
        place.write(memory=100 * MIB)
        time.sleep(0.1)
        assert caller.refused("alloc", 0, 50 * MIB)  # and reads the limits
        caller.ok("limit", HEAP, 600 * MIB)
        caller.ok("limit", HEAP, 300 * MIB)
        assert caller.booked() == 300 * MIB
        assert caller.refused("limit", HEAP, 301 * MIB)


def test_memory_for_launches_that_kernels_make_is_measured_and_refused(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB)) as caller:
        caller.ok("alloc", 0, 900 * MIB)
        caller.ok("limit", LAUNCHES, 2048 + 100 * 2048)  # 100 MiB
        assert caller.refused("limit", LAUNCHES, 2048 + 200 * 2048)
        assert caller.taken() == 1000 * MIB
        caller.ok("alloc", 1, 24 * MIB)
        assert caller.refused("alloc", 2, 2 * MIB)


def test_the_globals_of_modules_count(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB)) as caller:
        caller.ok("module", 0, 600 * MIB)
        assert caller.refused("module", 1, 600 * MIB)
        assert caller.taken() == 600 * MIB
        assert caller.refused("alloc", 2, 500 * MIB)
        caller.ok("unload", 0)
        caller.ok("alloc", 2, 1000 * MIB)
        caller.ok("module", 1, MIB)  # the driver takes a little for any module
        caller.ok("module", 3, 0)


def test_small_modules_beyond_the_limit_are_little_all_together(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB)) as caller:
        caller.ok("alloc", 0, 1000 * MIB)
        answers = [caller.call("module", number, 12 * MIB).result for number in range(1, 11)]
        assert answers == [0] * 3 + [OUT_OF_MEMORY] * 7
        assert caller.taken() <= (1024 + 16) * MIB
        caller.ok("module", 11, 0)
        caller.ok("free", 0)
        caller.ok("module", 12, 12 * MIB)


def test_the_globals_of_a_library_that_is_loaded_at_once_count(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB), before=["env", "CUDA_MODULE_LOADING=EAGER"]) as caller:
        caller.ok("library", 0, 600 * MIB)
        assert caller.refused("library", 1, 600 * MIB)
        assert caller.taken() == 600 * MIB
        assert caller.refused("alloc", 2, 500 * MIB)
        caller.ok("library_unload", 0)
        caller.ok("alloc", 2, 1000 * MIB)


@pytest.mark.parametrize("use", ["library_kernel", "library_module", "library_global"])
def test_the_globals_of_a_library_that_is_loaded_when_it_is_used_count(use: str, place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB)) as caller:
        for number in range(4):
            caller.ok("library", number, 600 * MIB)
        assert caller.taken() == 0
        caller.ok(use, 10, 0)
        assert caller.refused("alloc", 20, 500 * MIB)
        assert caller.refused(use, 11, 1)  # it has taken its memory, which cannot be undone
        assert caller.refused(use, 12, 2)
        assert caller.refused(use, 13, 3)
        assert caller.taken() == 1200 * MIB
        caller.ok("library_unload", 1)
        caller.ok("alloc", 20, 400 * MIB)
        caller.ok(use, 10, 0)


def test_a_library_that_could_not_be_loaded_is_loaded_when_it_is_used_again(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB), faults="cuLibraryGetModule=1@1-1") as caller:
        caller.ok("alloc", 0, 500 * MIB)
        caller.ok("library", 1, 600 * MIB)
        caller.ok("library_kernel", 2, 1)  # the driver finds the kernel and has not loaded anything yet
        assert caller.taken() == 500 * MIB
        assert caller.refused("library_kernel", 2, 1)


def test_one_byte_counts_as_much_as_the_driver_takes(place: kit.Slice) -> None:
    with probe(place.write(memory=4096)) as caller:
        for number in range(8):
            caller.ok("alloc", number, 1)
        assert caller.booked() == 4096
        assert caller.refused("alloc", 8, 1)
        caller.ok("free", 0)
        caller.ok("alloc", 0, 512)


def test_a_graph_that_is_updated_to_a_larger_one_counts_as_that(place: kit.Slice) -> None:
    with probe(place.write(memory=1024 * MIB)) as caller:
        for graph, size in ((0, 100 * MIB), (10, 800 * MIB)):
            caller.ok("graph", graph)
            caller.ok("node", graph + 1, graph, size)
            caller.ok("node_free", graph, graph + 1)
        caller.ok("instantiate", 20, 0, 0)
        caller.ok("alloc", 21, 500 * MIB)
        caller.ok("stream", 22)
        caller.ok("launch", 20, 22)
        caller.ok("update", 20, 10)
        assert caller.call("launch", 20, 22).result == OUT_OF_MEMORY
        assert caller.taken() <= 1024 * MIB
