# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the daemon makes of its looks at the devices: faults that are shown, traffic that is whose."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.cli.gpus import COLUMNS
from cotenant.cli.output import table
from cotenant.core.cluster import Node
from cotenant.local.devices import Devices
from cotenant.local.journal import Journal
from cotenant.local.views import gpu_views, usage_by_job
from cotenant.node.devices.backend import Backend, GpuUsage, ProcessUsage, Running
from cotenant.node.devices.nvml import NvmlBackend
from cotenant.node.measurement import JobUsage
from cotenant.wire.machine import GpuView
from tests.node.fake_nvml import FakeNvml, GpuModel

NOT_ALLOWED, LOST = 4, 15
ONE = Running(job="j-000001", gpus=(0,), supervisor=1)
BOTH_CARDS = Running(job="j-000002", gpus=(0, 1), supervisor=2)


@contextmanager
def devices_of(backend: Backend, state: Path) -> Iterator[Devices]:
    with Journal.open(state / "journal.db") as journal:
        yield Devices(backend, journal)


async def looks_once(devices: Devices, *jobs: Running) -> bool:
    """Whether anything that matters to scheduling has changed."""
    changes: list[None] = []
    before = devices.usage
    devices.inventory_changed.subscribe(lambda: changes.append(None))
    watching = asyncio.create_task(devices.watch(lambda: jobs))
    while devices.usage is before:
        await asyncio.sleep(0.001)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return bool(changes)


def views(devices: Devices) -> list[GpuView]:
    return gpu_views(devices.machine, Node.of(devices.machine), devices.usage, devices.faults, {}, {})


def test_why_a_gpu_is_unhealthy_is_shown(tmp_path: Path) -> None:
    nvml = FakeNvml(GpuModel("GPU-a", name="A100", bus=1), GpuModel("GPU-b", name="A100", bus=2, mig=1))
    with devices_of(NvmlBackend(nvml), tmp_path) as devices:
        first, second = views(devices)
        assert (first.fault, second.healthy) == (None, False)
        assert (second.fault or "").startswith("in MIG mode"), "known before the first look"
        nvml.cards[0].broken["*"] = LOST
        assert asyncio.run(looks_once(devices)), "no job must be put there"
        first, _ = views(devices)
        assert (first.healthy, first.fault) == (False, "GPU is lost")
        assert "GPU is lost" in table([first], COLUMNS, wide=True)


def test_traffic_over_pcie_reaches_the_job_that_is_alone_on_its_card(tmp_path: Path) -> None:
    nvml = FakeNvml(GpuModel("GPU-a", pcie=(2048, 1024), bus=1), GpuModel("GPU-b", bus=2))
    with devices_of(NvmlBackend(nvml), tmp_path) as devices:
        asyncio.run(looks_once(devices, ONE))
        assert devices.usage_of("j-000001").pcie_mib_s == 3.0
        nvml.cards[0].broken["pcie"] = NOT_ALLOWED
        assert not asyncio.run(looks_once(devices, ONE)), "it is no fault"
        assert devices.usage_of("j-000001").pcie_mib_s is None
        assert devices.faults == {}


@pytest.mark.parametrize(
    ("owners", "alone"),
    [(("j-000001", "j-000001"), True), (("j-000001", "j-000003"), False), (("j-000001", None), False), ((), True)],
)
def test_what_a_card_did_is_a_jobs_only_if_nobody_else_is_on_it(owners: tuple[str | None, ...], alone: bool) -> None:
    processes = tuple(ProcessUsage(pid, None, None, owner) for pid, owner in enumerate(owners))
    card = GpuUsage(uuid="a", used_mib=None, utilisation=None, processes=processes, bandwidth=40, pcie_mib_s=7.0)
    used = usage_by_job([ONE], [card])["j-000001"]
    assert (used.bandwidth, used.pcie_mib_s) == ((40, 7.0) if alone else (None, None))


def test_what_several_cards_did_is_not_added_up() -> None:
    card = GpuUsage(uuid="a", used_mib=None, utilisation=None, processes=(), bandwidth=40, pcie_mib_s=7.0)
    assert usage_by_job([BOTH_CARDS], [card, card])["j-000002"] == JobUsage(memory_mib=0)
