# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The accounts of slices joined with what the driver says of the same processes, also across pid namespaces."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cotenant.core.units import MIB_BYTES, MiB, MilliGpu
from cotenant.node.devices.backend import GpuUsage, ProcessUsage
from cotenant.node.limits import GpuLimit, Limits, write_read_only
from cotenant.node.monitor import UsageHistory, driver_usage, notable_drift, slice_view
from cotenant.node.region import LARGEST_COUNT, GpuUse, ProcessIdentity
from cotenant.node.slices import REGION, SliceState, make_slice, read_slice
from tests.node.regions import claim, write_slot

LIMITS = Limits(gpus=(GpuLimit("GPU-a", 2 << 30, MilliGpu(300)),), others=GpuLimit("", 0))
IN_CONTAINER = ProcessIdentity(7, 4026, 500)


def seen(folder: Path) -> SliceState:
    found = read_slice(folder)
    assert found is not None
    return found


@contextmanager
def process(
    folder: Path, slot: int, who: ProcessIdentity, *uses: GpuUse, faults: tuple[int, ...] = ()
) -> Iterator[None]:
    """A living one of the slice."""
    write_slot(folder / REGION, slot, who, uses, faults)
    held = claim(folder / REGION, slot)
    try:
        yield
    finally:
        os.close(held)


def proc_entry(proc: Path, pid: int, inner: int, started: int, space: int | None = None) -> None:
    """What /proc says of a process; the number of a namespace is that of a file here."""
    (proc / str(pid)).mkdir(parents=True)
    fields = ["S", "1", *["0"] * 17, str(started), *["0"] * 10]
    (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}")
    (proc / str(pid) / "status").write_text(f"Name:\ta\nNSpid:\t{pid}\t{inner}\n")
    if space is not None:
        (proc / str(pid) / "ns").mkdir()
        (proc / str(pid) / "ns" / "pid").touch()


def usage(*processes: ProcessUsage) -> list[GpuUsage]:
    return [GpuUsage(uuid="GPU-a", used_mib=None, utilisation=None, processes=processes)]


def test_a_slice_is_the_sum_of_its_living_processes(tmp_path: Path) -> None:
    folder = make_slice(tmp_path, "a", LIMITS)
    write_slot(
        folder / REGION, 0, ProcessIdentity(1, 1, 1), [GpuUse(999, 0, 1000, 2, 10, 3_000_000_000, 0)], faults=[0, 0, 2]
    )
    with (
        process(folder, 1, ProcessIdentity(2, 1, 1), GpuUse(100, 1, 150, 0, 5, 1_000_000_000, 500_000_000)),
        process(folder, 2, ProcessIdentity(3, 1, 1), GpuUse(200, 2, 202, 1, 5, 0, 0), faults=(0, 0, 1)),
    ):
        view = slice_view(seen(folder))
    (gpu,) = view.gpus
    assert (view.processes, view.faults) == (2, {"limits_version": 3})
    assert (gpu.memory_limit_bytes, gpu.compute_limit) == (2 << 30, 300)
    assert (gpu.memory_bytes, gpu.host_bytes) == (300, 3)  # what the one that ended held is free again
    assert (gpu.peak_bytes, gpu.refused, gpu.launches, gpu.busy_s, gpu.waited_s) == (1000, 3, 20, 4.0, 0.5)
    assert (gpu.nvml_bytes, gpu.drift_bytes) == (None, None)


def test_a_tally_remembers_those_whose_slot_is_used_again(tmp_path: Path) -> None:
    folder, history = make_slice(tmp_path, "a", LIMITS), UsageHistory()
    for pid in (1, 2, 3):
        with process(folder, 0, ProcessIdentity(pid, 1, pid), GpuUse(10 * pid, 0, 0, 0, 5, 0, 0)):
            now = seen(folder).region
            assert now is not None
            history.add(now)
    (gpu,) = slice_view(seen(folder), history=history).gpus
    assert (gpu.launches, gpu.memory_bytes, gpu.peak_bytes) == (15, 0, 30)


def test_drift_is_what_the_driver_says_beyond_the_accounts(tmp_path: Path) -> None:
    folder, proc = make_slice(tmp_path / "slices", "a", LIMITS), tmp_path / "proc"
    proc_entry(proc, 4711, inner=7, started=500)
    proc_entry(proc, 4712, inner=7, started=501)
    said = driver_usage(usage(ProcessUsage(4711, MiB(1300), None), ProcessUsage(4712, MiB(50), None)), proc)
    with process(folder, 0, IN_CONTAINER, GpuUse(1000 * MIB_BYTES)):
        view = slice_view(seen(folder), said)
    (gpu,) = view.gpus
    assert (gpu.nvml_bytes, gpu.drift_bytes, gpu.drift_percent) == (1300 * MIB_BYTES, 300 * MIB_BYTES, 30.0)
    assert notable_drift(view) == ()  # a context explains it


def test_drift_that_nothing_explains_is_told(tmp_path: Path) -> None:
    folder, proc = make_slice(tmp_path / "slices", "a", LIMITS), tmp_path / "proc"
    proc_entry(proc, 4711, inner=7, started=500)
    for nvml, books in ((3000, 1000), (100, 1000)):
        said = driver_usage(usage(ProcessUsage(4711, MiB(nvml), None)), proc)
        with process(folder, 0, IN_CONTAINER, GpuUse(books * MIB_BYTES)):
            view = slice_view(seen(folder), said)
        assert notable_drift(view) == (f"GPU-a: {nvml} MiB by the driver, {books} by the accounts",)


def test_the_same_pid_at_the_same_moment_in_two_containers_is_told_apart_by_namespace(tmp_path: Path) -> None:
    folder, proc = make_slice(tmp_path / "slices", "a", LIMITS), tmp_path / "proc"
    for pid in (4711, 4712):
        proc_entry(proc, pid, inner=7, started=500, space=pid)
    said = driver_usage(usage(ProcessUsage(4711, MiB(1), None), ProcessUsage(4712, MiB(2), None)), proc)
    own = (proc / "4712" / "ns" / "pid").stat().st_ino
    with process(folder, 0, IN_CONTAINER._replace(pid_space=own), GpuUse(5)):
        assert slice_view(seen(folder), said).gpus[0].nvml_bytes == 2 * MIB_BYTES
    with process(folder, 0, IN_CONTAINER, GpuUse(5)):
        assert slice_view(seen(folder), said).gpus[0].nvml_bytes == 0


def test_a_process_that_the_driver_does_not_list_has_nothing_there(tmp_path: Path) -> None:
    folder = make_slice(tmp_path / "slices", "a", LIMITS)
    with process(folder, 0, IN_CONTAINER, GpuUse(5)):
        assert slice_view(seen(folder), driver_usage(usage())).gpus[0].nvml_bytes == 0


def test_what_cannot_be_compared_is_not_guessed(tmp_path: Path) -> None:
    folder, proc = make_slice(tmp_path / "slices", "a", LIMITS), tmp_path / "proc"
    proc_entry(proc, 4711, inner=7, started=500)
    hidden = driver_usage(usage(ProcessUsage(9, MiB(1), None)), proc)  # no such entry in /proc
    silent = driver_usage(usage(ProcessUsage(4711, None, None)), proc)
    refused = driver_usage([GpuUsage(uuid="GPU-a", used_mib=None, utilisation=None, processes=None)], proc)
    with process(folder, 0, IN_CONTAINER, GpuUse(5)):
        assert [slice_view(seen(folder), said).gpus[0].nvml_bytes for said in (hidden, silent, refused)] == [None] * 3


def test_gpus_that_no_limit_names_are_shown_as_the_tenant_named_them(tmp_path: Path) -> None:
    folder = make_slice(tmp_path, "a", Limits(others=GpuLimit("", 5)))
    content = bytearray((folder / REGION).read_bytes())
    content[24:28] = (2).to_bytes(4, "little")
    content[168 : 168 + 5], content[216 : 216 + 5] = b"GPU-z", b"\x1b[31m"
    (folder / REGION).write_bytes(content)
    assert [(gpu.uuid, gpu.memory_limit_bytes) for gpu in slice_view(seen(folder)).gpus] == [("GPU-z", 5), (None, 5)]


def test_absurd_accounts_are_bounded(tmp_path: Path) -> None:
    folder = make_slice(tmp_path, "a", LIMITS)
    most = (1 << 64) - 1
    with (
        process(folder, 0, ProcessIdentity(1, 1, 1), GpuUse(*[most] * 7)),
        process(folder, 1, ProcessIdentity(2, 1, 1), GpuUse(*[most] * 7)),
    ):
        (gpu,) = slice_view(seen(folder)).gpus
    assert (gpu.memory_bytes, gpu.peak_bytes, gpu.launches) == (LARGEST_COUNT, LARGEST_COUNT, LARGEST_COUNT)


def test_spoilt_limits_leave_the_faults_to_be_shown(tmp_path: Path) -> None:
    folder = make_slice(tmp_path, "a", LIMITS)
    write_read_only(folder / "limits", "spoilt")
    with process(folder, 0, ProcessIdentity(1, 1, 1), GpuUse(5), faults=(0, 1)):
        view = slice_view(seen(folder))
    assert (view.faults, view.gpus[0].uuid, view.gpus[0].memory_bytes) == ({"limits_bad": 1}, "GPU-a", 5)


def test_a_spoilt_region_leaves_the_limits_to_be_shown(tmp_path: Path) -> None:
    folder = make_slice(tmp_path, "a", LIMITS)
    (folder / REGION).write_bytes(b"spoilt")
    view = slice_view(seen(folder))
    assert (view.processes, view.created, view.gpus[0].memory_limit_bytes) == (0, None, 2 << 30)
