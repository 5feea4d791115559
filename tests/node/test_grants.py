# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Memory above requests, over the stand-in driver: it is lent while it is idle, and its owner always gets it back."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.core.units import MilliGpu
from cotenant.node.grants import Member, files_in, grant, margin_of
from cotenant.node.limits import GpuLimit, Limits, limits_text, read_limits, write_read_only
from cotenant.node.slices import make_slice
from tests.native import kit
from tests.native.kit import MIB
from tests.native.probe import DEVICE, OUT_OF_MEMORY, Probe, probe
from tests.node.granting import Allocation, Tenants, race

CARD_MIB = 8192


def until(done: Callable[[], object], gpu: Tenants) -> None:
    """Grants until something holds."""
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        gpu.round()
        time.sleep(0.01)


def allocate(gpu: Tenants, one: Probe, place: int, mib: int) -> int:
    """The driver's answer to an allocation that may wait for a grant."""
    allocation = Allocation(one, place, mib)
    until(lambda: allocation.answers, gpu)
    return allocation.answers[0]


def let_use(place: kit.Slice, mib: int) -> None:
    """Grants a slice so much, as a round would if all were free."""
    limits = read_limits(place.limits)
    lines = tuple(line._replace(memory_bytes=mib * MIB) for line in limits.gpus)
    write_read_only(place.limits, limits_text(replace(limits, gpus=lines)))


@pytest.fixture
def gpu(tmp_path: Path) -> Tenants:
    return Tenants(tmp_path, CARD_MIB)


def test_idle_memory_of_a_request_is_lent_and_its_owner_gets_it_back(gpu: Tenants) -> None:
    lender, borrower = gpu.add("lender", 4096, 8000), gpu.add("borrower", 4096, 8000)
    with gpu.probe(lender) as owner, gpu.probe(borrower) as other:
        assert allocate(gpu, other, 0, 4096) == 0
        assert allocate(gpu, other, 1, 2048) == 0  # above its request
        assert owner.call("alloc", 0, 100 * MIB).result == 0  # without waiting: within the margin
        # The owner wants all of its request: it waits, and the other one has to leave.
        allocation = Allocation(owner, 1, 3900)
        until(lambda: gpu.round() == ["borrower"], gpu)
        assert other.call("alloc", 2, 1 * MIB).result == OUT_OF_MEMORY  # it may not grow meanwhile
        assert not allocation.answers
        other.process.kill()
        until(lambda: allocation.answers, gpu)
        assert allocation.answers == [0]


def test_a_borrower_that_frees_by_itself_stays(gpu: Tenants) -> None:
    lender, borrower = gpu.add("lender", 4096, 8000), gpu.add("borrower", 4096, 8000)
    with gpu.probe(lender) as owner, gpu.probe(borrower) as other:
        assert allocate(gpu, other, 0, 4096) == 0
        assert allocate(gpu, other, 1, 3000) == 0
        allocation = Allocation(owner, 0, 4000)
        until(lambda: gpu.last is not None and gpu.last.waiting.get("lender"), gpu)
        assert other.call("free", 1).result == 0
        until(lambda: allocation.answers, gpu)
        assert allocation.answers == [0]


def test_no_limit_is_exceeded_and_what_cannot_come_is_refused_at_once(gpu: Tenants) -> None:
    one = gpu.add("one", 1024, 2048)
    with gpu.probe(one) as process:
        assert allocate(gpu, process, 0, 2048) == 0
        assert process.call("alloc", 1, 1 * MIB).result == OUT_OF_MEMORY


def test_with_a_budget_of_host_memory_growth_that_is_refused_goes_there(gpu: Tenants) -> None:
    one, _ = gpu.add("one", 4096, 8000, host_mib=1024), gpu.add("two", 4096, 4096)
    with gpu.probe(one) as process:
        assert allocate(gpu, process, 0, 4096) == 0
        assert allocate(gpu, process, 1, 512) == 0
        # The other one requests the rest, and lends nothing.
        assert (one.use().memory_bytes, one.use().host_bytes) == (4096 * MIB, 512 * MIB)
        assert allocate(gpu, process, 2, 1024) == OUT_OF_MEMORY


def test_the_program_sees_what_it_is_guaranteed_or_has(gpu: Tenants) -> None:
    one, _ = gpu.add("one", 4096, 8000), gpu.add("two", 4096, 4096)
    with gpu.probe(one) as process:
        assert process.call("info").second == 4096 * MIB


@pytest.mark.slow
def test_eight_racing_tenants_are_never_refused_within_their_requests(tmp_path: Path) -> None:
    seen = race(tmp_path, 8, 20)
    assert seen["above"] > 0  # else they would not have shown anything


def test_a_newcomer_starts_when_its_request_is_free(gpu: Tenants) -> None:
    borrower = gpu.add("borrower", 1024, 8000)
    with gpu.probe(borrower) as other:
        assert allocate(gpu, other, 0, 6000) == 0
        newcomer = Member("newcomer", files_in(gpu.root / "newcomer"), 4096 * MIB, 4096 * MIB, started=False)
        gpu.members.append(newcomer)
        gpu.round()
        assert gpu.last is not None
        assert (gpu.last.startable, gpu.last.evict) == ((), ("borrower",))
        assert other.call("free", 0).result == 0
        gpu.round()
        assert gpu.last.startable == ("newcomer",)


def test_compute_that_nobody_requested_is_divided(tmp_path: Path) -> None:
    members = []
    for name, share, limit in (("one", 200, 600), ("two", 300, 400), ("three", 200, 200)):
        limits = Limits(gpus=(GpuLimit(kit.gpu(), 1024 * MIB, MilliGpu(share)),))
        folder = make_slice(tmp_path, name, limits)
        members.append(Member(name, files_in(folder), 1024 * MIB, 1024 * MIB, MilliGpu(share), MilliGpu(limit)))
    grant(kit.gpu(), CARD_MIB * MIB, margin_of(CARD_MIB * MIB), members)
    assert [read_limits(one.files.grants).gpus[0].compute for one in members] == [400, 400, 200]


@pytest.mark.slow
def test_grants_in_a_file_of_their_own_count_for_a_slice_that_names_it(gpu: Tenants, tmp_path: Path) -> None:
    place, file = gpu.add("one", 2048, 8000), tmp_path / "one" / "grants"
    limits = read_limits(place.limits)
    (line,) = limits.gpus
    write_read_only(place.limits, limits_text(replace(limits, grants=file, gpus=(line._replace(memory_bytes=0),))))
    with gpu.probe(place) as one:
        waiting = Allocation(one, 0, 1024)
        time.sleep(0.3)
        assert not waiting.answers  # nothing is granted yet
        for granted in (512, 1100):
            grants = Limits(gpus=(line._replace(memory_bytes=granted * MIB, most_bytes=granted * MIB),))
            write_read_only(file, limits_text(grants))
        until(lambda: waiting.answers, Tenants(tmp_path, CARD_MIB))
        assert waiting.answers == [0]
        assert one.call("alloc", 1, 3000 * MIB).result == OUT_OF_MEMORY  # neither granted nor guaranteed
        write_read_only(file, limits_text(Limits(gpus=(line._replace(memory_bytes=4500 * MIB),))))
        assert one.call("alloc", 1, 3000 * MIB).result == 0
        file.chmod(0o666)  # a file that others may write to does not count: nothing is granted beyond what is in use
        assert one.call("alloc", 2, 100 * MIB).result == OUT_OF_MEMORY


CALLS = {
    "alloc": (5, 1500 * MIB),
    "pitch": (5, MIB, 1500),
    "async": (5, 1500 * MIB, 15),
    "array": (5, MIB, 1500, 1, 1),
    "create": (5, 1500 * MIB, DEVICE, 0),
}
"""ways to allocate 1,500 MiB"""


@pytest.mark.parametrize("call", CALLS)
def test_a_driver_that_is_out_of_memory_within_a_request_is_asked_again(gpu: Tenants, call: str) -> None:
    place, answers = gpu.add("one", 4096, 8000), list[int]()
    let_use(place, 8000)
    late = kit.Slice(gpu.root / "late")  # as a process that was killed and whose memory comes back late
    late.folder.mkdir()
    with gpu.probe(place) as one, gpu.probe(late.write(memory=7000 * MIB)) as killed:
        assert killed.call("alloc", 0, 7000 * MIB).result == 0
        waiting = threading.Thread(target=lambda: answers.append(one.call(call, *CALLS[call]).result), daemon=True)
        waiting.start()
        time.sleep(0.3)
        assert not answers
        killed.process.kill()
        waiting.join(20)
        assert answers == [0]


def test_a_driver_that_is_out_of_memory_beyond_a_request_is_not_asked_again(gpu: Tenants) -> None:
    place = gpu.add("one", 1024, 8000)
    let_use(place, 8000)
    other = kit.Slice(gpu.root / "other")
    other.folder.mkdir()
    with gpu.probe(place) as one, gpu.probe(other.write(memory=7000 * MIB)) as holding:
        assert holding.call("alloc", 0, 7000 * MIB).result == 0
        began = time.monotonic()
        assert one.call("alloc", 0, 2000 * MIB).result == OUT_OF_MEMORY
        assert time.monotonic() - began < 5  # it may be asked for 10 s within a request


@pytest.mark.parametrize(("mib", "least"), [("512", "8"), ("2600", "1")])
def test_threads_of_one_tenant_that_announce_together_get_what_fits_into_its_request(
    gpu: Tenants, mib: str, least: str
) -> None:
    place, other = gpu.add("threads", 4096, 4500), gpu.add("other", 4096, 8000)
    with gpu.probe(other) as one, gpu.process(place, kit.program("grant_threads"), "8", mib, "60", least) as process:
        until(lambda: process.poll() is not None, gpu)
        assert process.returncode == 0, process.stdout.read() if process.stdout else ""
        assert one.call("alloc", 0, 64 * MIB).result == 0


@pytest.mark.parametrize("request_mib", [4096, 512])
def test_a_context_that_finds_no_memory_within_the_request_is_asked_for_again(gpu: Tenants, request_mib: int) -> None:
    """Also if more than the request is granted, and a context may take more than the request has left."""
    place, answers = gpu.add("one", request_mib, 8000), list[int]()
    let_use(place, 8000)
    late = kit.Slice(gpu.root / "late")
    late.folder.mkdir()
    state = str(gpu.settings["state"])
    with (
        probe(place, context=False, memory_mib=CARD_MIB, state=state, context_mib=1500) as one,
        gpu.probe(late.write(memory=7000 * MIB)) as killed,
    ):
        assert killed.call("alloc", 0, 7000 * MIB).result == 0
        assert one.call("init").result == 0
        waiting = threading.Thread(target=lambda: answers.append(one.call("retain", 0, 0).result), daemon=True)
        waiting.start()
        time.sleep(0.3)
        assert not answers
        killed.process.kill()
        waiting.join(20)
        assert answers == [0]
