# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""When jobs are started beside others with limits above their requests; the test fills the slices in."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.core.model import Demand, Job, Placement, Slot
from cotenant.core.units import MIB_BYTES, MiB, MilliGpu
from cotenant.local.devices import Devices
from cotenant.local.grants import JobGrants
from cotenant.local.job_slices import JobSlices
from cotenant.local.journal import Journal
from cotenant.local.tenants import PlacedJob
from cotenant.node.devices.nvml import NvmlBackend
from cotenant.node.limits import GpuLimit, Limits
from cotenant.node.region import GpuUse, ProcessIdentity
from cotenant.node.slices import REGION
from cotenant.wire.job_requests import JobRequest
from tests.node.fake_nvml import FakeNvml, GpuModel
from tests.node.regions import claim, write_slot

CARD = 16384 * MIB_BYTES


@pytest.fixture
def slices(tmp_path: Path) -> JobSlices:
    return JobSlices(tmp_path / "slices", "o", tmp_path / "libcotenant.so")


@pytest.fixture
def grants(tmp_path: Path, slices: JobSlices) -> Iterator[JobGrants]:
    nvml = FakeNvml(GpuModel("GPU-a", memory=CARD, bus=1), GpuModel("GPU-b", memory=CARD, bus=2))
    with Journal.open(tmp_path / "journal.db") as journal:
        yield JobGrants(slices, Devices(NvmlBackend(nvml), journal))


def placed(job: str, gpus: tuple[int, ...], request_mib: int, limit_mib: int | None = None) -> PlacedJob:
    limit = None if limit_mib is None else MiB(limit_mib)
    demand = Demand(gpus=len(gpus), memory=MiB(request_mib), memory_limit=limit, compute=MilliGpu(0))
    placement = Placement(Job(id=job, demand=demand), Slot("local", gpus))
    return PlacedJob(placement=placement, request=JobRequest(command=("x",), cwd="/"))


def test_a_job_on_several_gpus_starts_when_all_of_them_have_room(grants: JobGrants, slices: JobSlices) -> None:
    started: list[str] = []
    grants.add(placed("j-1", (0,), 4096, 16000))
    grants.begin("j-1", lambda: started.append("j-1"))
    grants.add(placed("j-2", (0, 1), 4096))
    grants.begin("j-2", lambda: started.append("j-2"))
    assert started == ["j-1", "j-2"]
    # The first one uses what is left: a third job has to wait for it.
    limit = GpuLimit("GPU-a", 12000 * MIB_BYTES, request_bytes=4096 * MIB_BYTES, most_bytes=12000 * MIB_BYTES)
    slices.make("j-1", Limits(gpus=(limit,)))
    region = slices.folder("j-1") / REGION
    holder = claim(region, 0)
    write_slot(region, 0, ProcessIdentity(1, 1, 1), [GpuUse(memory_bytes=12000 * MIB_BYTES)])
    grants.add(placed("j-3", (0, 1), 4096))
    grants.begin("j-3", lambda: started.append("j-3"))
    assert started == ["j-1", "j-2"]
    assert grants.notes("j-3") == ["it starts when jobs above their requests have given back what it needs"]
    assert "j-3 needs" in grants.notes("j-1")[-1]
    grants.add(placed("j-4", (0,), 4096))
    grants.begin("j-4", lambda: started.append("j-4"))
    grants.stop_waiting("j-4")  # it is cancelled, and its supervisor ends it
    assert started == ["j-1", "j-2", "j-4"]
    assert grants.notes("j-4") == []
    os.close(holder)  # its process ends
    grants.begin("j-3", lambda: started.append("j-3"))
    assert started == ["j-1", "j-2", "j-4", "j-3"]


def test_a_removed_job_is_forgotten_and_a_job_without_gpus_is_started_at_once(grants: JobGrants) -> None:
    grants.add(placed("j-1", (0,), 4096, 16000))
    grants.remove("j-1")
    assert grants.views("j-1") == ()
    started: list[str] = []
    grants.begin("j-2", lambda: started.append("j-2"))
    assert started == ["j-2"]
