# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Memory above requests, over the stand-in driver: it is lent while it is idle, and its owner always gets it back."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.core.units import MilliGpu
from cotenant.node.grants import Member, files_in, grant, margin_of
from cotenant.node.limits import GpuLimit, Limits, read_limits
from cotenant.node.slices import make_slice
from tests.native import kit
from tests.native.kit import MIB
from tests.native.probe import OUT_OF_MEMORY, Probe
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
