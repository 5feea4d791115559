# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon on GPUs of other vendors, over stand-ins of their libraries: what jobs see, and what is not enforced."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.node.devices.vendors import Vendor
from cotenant.wire.machine import GpuView
from tests.local.daemon import Daemon, until
from tests.native import kit

GPUS = {
    Vendor.CAMBRICON: ("MLU370-X8", "MLU-00000000-0000-0000-0000-00000000000{}", "1"),
    Vendor.AMD: ("AMD Instinct MI250X", "GPU-a3d000000000000{}", "GPU-a3d0000000000002"),
}
"""the type, the form of UUIDs, and what a job on the second GPU finds in the vendor's variable"""


@pytest.fixture(params=GPUS)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return Vendor(request.param)


@pytest.fixture
def daemon(vendor: Vendor) -> Iterator[Daemon]:
    state = Path(tempfile.mkdtemp(prefix="ct"))
    one = Daemon(state)
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("LD_LIBRARY_PATH", str(kit.standin()))
        changed.setenv("STANDIN_STATE", str(state / "gpus"))
        changed.setenv("STANDIN_DEVICES", "2")
        changed.setenv("STANDIN_NAMES", GPUS[vendor][0])
        try:
            one.up("--policy", "binpack", "--vendor", vendor)
            yield one
        finally:
            one.clear()
            one.stop()
            shutil.rmtree(state, ignore_errors=True)


def output(daemon: Daemon, job: str) -> str:
    return b"".join(daemon.client.lines(f"/v1/jobs/{job}/log?follow=0")).decode().strip()


def test_jobs_run_on_them_and_their_owners_know_what_is_not_enforced(daemon: Daemon, vendor: Vendor) -> None:
    type_, uuid, visible = GPUS[vendor]
    gpus = daemon.client.get("/v1/gpus", list[GpuView])
    assert [(gpu.uuid, gpu.type, gpu.memory_mib) for gpu in gpus] == [
        (uuid.format(number), type_, 24576) for number in (1, 2)
    ]
    daemon.client.post("/v1/gpus/0/cordon", GpuView)
    job = daemon.submit("sh", "-c", f"echo ${vendor.row.visible[0]}; sleep 60", memory="256MiB", compute="50%")
    until(lambda: output(daemon, job.id))
    sentence = vendor.row.unenforced()
    assert sentence is not None
    memory, compute, _, why = daemon.job(job.id).enforcement
    assert "256 MiB on each GPU is reserved for the job, but not enforced" in memory
    assert "50 % is reserved for the job, but not enforced" in compute
    assert why == sentence
    assert daemon.client.get(f"/v1/jobs/{job.id}/why", dict[str, Any])["notes"] == [sentence]
    assert output(daemon, job.id) == visible
