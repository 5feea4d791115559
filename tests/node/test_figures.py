# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What metrics say of tenants: the driver's and the regions' truth about each, not that of the GPU."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MIB_BYTES, MiB
from cotenant.metrics.figures import TenantFigures
from cotenant.node.devices.backend import GpuUsage, ProcessUsage
from cotenant.node.figures import Assigned, Collector, Look, Occupant
from cotenant.node.limits import GpuLimit, Limits
from cotenant.node.region import GpuUse, ProcessIdentity
from cotenant.node.slices import REGION, SliceState, make_slice, read_slice
from tests.node.regions import claim, write_slot

MIB = MIB_BYTES
GPU = "GPU-a"
STARTED = 12345


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class World:
    """One GPU, and two tenants with a slice and a process each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack, self.clock = folder, stack, Clock()
        self.collector = Collector(folder / "proc", self.clock)
        self.driver = dict[int, int | None]()
        """MiB of each process, by its ID"""
        self.tenants = dict[str, Assigned]()

    def add(self, job: str, pid: int, memory_mib: int | None, limit_mib: int = 4096, compute: float = 0.5) -> None:
        limits = Limits(gpus=(GpuLimit(GPU, limit_mib * MIB),))
        make_slice(self.folder / "slices", job, limits)
        self.tenants[job] = Assigned(limit_mib * MIB, compute)
        self.driver[pid] = memory_mib
        process = self.folder / "proc" / str(pid)
        process.mkdir(parents=True)
        numbers = [1, pid, pid, 0, -1, 4194304, 0, 0, 0, 0, 5, 5, 0, 0, 20, 0, 1, 0, STARTED, 0, 0]
        (process / "stat").write_text(f"{pid} (python) S {' '.join(map(str, numbers))}\n")
        (process / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\n")
        self.stack.callback(os.close, claim(self.folder / "slices" / job / REGION, 0))

    def write(self, job: str, pid: int, use: GpuUse) -> None:
        write_slot(self.folder / "slices" / job / REGION, 0, ProcessIdentity(pid, 0, STARTED), [use])

    def look(self) -> Look:
        processes = tuple(
            ProcessUsage(pid, None if mib is None else MiB(mib), None, job)
            for (pid, mib), job in zip(self.driver.items(), self.tenants, strict=True)
        )
        usage = GpuUsage(uuid=GPU, used_mib=MiB(9000), utilisation=87, processes=processes, power_watts=250.0)
        return Look(
            machine=Machine(name="n1", gpus=(Gpu(uuid=GPU, type="A100", memory=MiB(40960), slots=4),)),
            vendor="nvidia",
            usage=[usage],
            occupants=[
                Occupant(
                    key=job,
                    known=TenantFigures(name=job),
                    assigned={GPU: assigned},
                    read_slices=lambda job=job: self.read(job),  # type: ignore[misc]
                )
                for job, assigned in self.tenants.items()
            ],
            allocated={GPU: Assigned(8192 * MIB, 1.0)},
            owner_of=lambda process: process.job,
        )

    def read(self, job: str) -> list[SliceState]:
        seen = read_slice(self.folder / "slices" / job)
        return [] if seen is None else [seen]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def test_each_tenant_of_a_shared_gpu_has_its_own_numbers(world: World) -> None:
    world.add("one", 11, memory_mib=3000)
    world.add("two", 12, memory_mib=700, limit_mib=2048, compute=0.25)
    world.write("one", 11, GpuUse(2600 * MIB, 0, 2800 * MIB, 0, 40, 3_000_000_000, 0))
    world.write("two", 12, GpuUse(0, 0, 2000 * MIB, 5, 7, 500_000_000, 1_250_000_000))
    (gpu,), (one, two) = world.collector.collect(world.look())
    assert (gpu.tenants, gpu.allocated_bytes, gpu.utilization, gpu.power_watts) == (2, 8192 * MIB, 0.87, 250.0)
    first, second = one.gpus[0], two.gpus[0]
    assert (first.used_bytes, first.recorded_bytes, first.memory_limit_bytes) == (3000 * MIB, 2600 * MIB, 4096 * MIB)
    assert (first.device_s, first.throttled_s, first.refused, first.launches) == (3.0, 0.0, 0, 40)
    assert (second.device_s, second.throttled_s, second.refused, second.compute_asked) == (0.5, 1.25, 5, 0.25)
    assert (first.context_bytes, first.drift_bytes) == (400 * MIB, 0), "a context explains the difference"
    assert (second.context_bytes, second.drift_bytes) == (700 * MIB, 0)


def test_memory_that_no_context_explains_is_drift(world: World) -> None:
    world.add("one", 11, memory_mib=3000)
    world.write("one", 11, GpuUse(1000 * MIB))
    _, (one,) = world.collector.collect(world.look())
    assert (one.gpus[0].context_bytes, one.gpus[0].drift_bytes) == (768 * MIB, 1232 * MIB)
    world.driver[11] = 300
    _, (one,) = world.collector.collect(world.look())
    assert (one.gpus[0].context_bytes, one.gpus[0].drift_bytes) == (0, -700 * MIB)
    world.driver[11] = None
    _, (one,) = world.collector.collect(world.look())
    assert (one.gpus[0].used_bytes, one.gpus[0].drift_bytes) == (None, None)


def test_the_share_that_a_tenant_got_is_its_device_time_since_the_last_look(world: World) -> None:
    world.add("one", 11, memory_mib=100)
    for busy_s, after_s, got in ((1.0, 0, None), (2.5, 5, 0.3), (2.6, 0.1, 0.3), (2.5, 5, 0.0)):
        world.clock.now += after_s
        world.write("one", 11, GpuUse(busy_ns=int(busy_s * 1e9)))
        _, (one,) = world.collector.collect(world.look())
        assert one.gpus[0].compute_got == (None if got is None else pytest.approx(got))


def test_counters_keep_what_ended_processes_used_until_the_tenant_is_gone(world: World) -> None:
    world.add("one", 11, memory_mib=100)
    world.write("one", 11, GpuUse(refused=3, busy_ns=1_000_000_000))
    world.collector.collect(world.look())
    write_slot(world.folder / "slices" / "one" / REGION, 0, ProcessIdentity(99, 0, 777), [GpuUse(refused=1)])
    _, (one,) = world.collector.collect(world.look())
    assert (one.gpus[0].refused, one.gpus[0].device_s) == (4, 1.0)
    world.tenants.clear()
    world.driver.clear()
    assert world.collector.collect(world.look())[1] == ()


def test_without_a_region_the_driver_says_what_a_tenant_got(world: World) -> None:
    world.add("one", 11, memory_mib=100)
    (world.folder / "slices" / "one" / REGION).unlink()
    look = world.look()
    usage = look.usage[0]
    assert usage.processes is not None
    for percent, got in ((35, 0.35), (None, None)):
        processes = tuple(process._replace(utilisation=percent) for process in usage.processes)
        seen = replace(look, usage=[replace(usage, processes=processes)])
        _, (one,) = world.collector.collect(seen)
        assert one.gpus[0].compute_got == got


def test_a_tenant_without_a_slice_has_what_its_program_reported(world: World) -> None:
    look = world.look()
    known = TenantFigures(name="j-000001")
    occupant = Occupant(key="j-000001", known=known, assigned={GPU: Assigned()}, reported_busy_s=7.5)
    look = Look(
        machine=look.machine,
        vendor="simulated",
        usage=[],
        occupants=[occupant],
        allocated={},
        owner_of=lambda process: None,
    )
    (gpu,), (one,) = world.collector.collect(look)
    assert (gpu.used_bytes, gpu.utilization) == (None, None)
    assert (one.gpus[0].device_s, one.gpus[0].recorded_bytes, one.gpus[0].drift_bytes) == (7.5, None, None)


def test_a_region_that_its_tenant_damaged_is_unknown_and_no_error(world: World) -> None:
    world.add("one", 11, memory_mib=100)
    (world.folder / "slices" / "one" / REGION).write_bytes(b"nonsense")
    _, (one,) = world.collector.collect(world.look())
    assert (one.gpus[0].recorded_bytes, one.gpus[0].used_bytes) == (None, 100 * MIB)
