# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant slices`: the slices in use on this machine, those of jobs and those of `cotenant run`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cotenant.cli.options import output_option
from cotenant.cli.output import render, table
from cotenant.core.units import MIB_BYTES
from cotenant.errors import DeviceError, InputError
from cotenant.wire.slice_status import SliceGpu, SliceView
from cotenant.wire.text import counted

if TYPE_CHECKING:
    from cotenant.node.devices.nvml import NvmlBackend

NO_GPU = SliceGpu(uuid=None, memory_limit_bytes=None)
"""shown for a slice whose processes have not used a GPU yet"""


@click.command(epilog="\b\nExample:\n  cotenant slices -o wide\n")
@output_option
def slices(output: str) -> None:
    """Lists the slices in use with their limits, their usage and their faults."""
    from cotenant.node.monitor import driver_usage, slice_view
    from cotenant.node.slices import read_slices, slices_folder

    backend = driver()
    try:
        said = driver_usage([] if backend is None else backend.usage())
    finally:
        if backend is not None:
            backend.close()
    show_slices([slice_view(seen, said) for seen in read_slices(slices_folder())], output)


def show_slices(found: SliceView | list[SliceView], output: str) -> None:
    """Prints one slice or several, one row for each GPU of each slice."""
    views = found if isinstance(found, list) else [found]
    rows = [(view, gpu) for view in views for gpu in view.gpus or (NO_GPU,)]
    render(found, output, lambda wide: click.echo(table(rows, COLUMNS, wide) if rows else "no slices"))


def _mib(number: int | None) -> str:
    return "-" if number is None else f"{number / MIB_BYTES:.0f}"


def _of(used: int, most: int | None) -> str:
    return f"{_mib(used)} MiB" if most is None else f"{_mib(used)} of {_mib(most)} MiB"


def _drift(gpu: SliceGpu) -> str:
    if gpu.drift_bytes is None:
        return "-"
    percent = "" if gpu.drift_percent is None else f" ({gpu.drift_percent:+.0f}%)"
    return f"{gpu.drift_bytes / MIB_BYTES:+.0f} MiB{percent}"


COLUMNS = (
    ("SLICE", lambda row: row[0].name, False),
    ("GPU", lambda row: row[1].uuid or "-", False),
    ("PROCESSES", lambda row: str(row[0].processes), False),
    ("MEMORY", lambda row: _of(row[1].memory_bytes, row[1].memory_limit_bytes), False),
    ("HOST", lambda row: _of(row[1].host_bytes, row[1].host_limit_bytes), True),
    ("PEAK", lambda row: f"{_mib(row[1].peak_bytes)} MiB", False),
    ("REFUSED", lambda row: str(row[1].refused), False),
    ("COMPUTE", lambda row: f"{row[1].compute_limit / 10:g}%", False),
    ("BUSY", lambda row: f"{row[1].busy_s:.1f}s", False),
    ("WAITED", lambda row: f"{row[1].waited_s:.1f}s", True),
    ("PRIORITY", lambda row: f"{row[0].priority}{', paused' if row[1].paused else ''}", False),
    ("DRIFT", lambda row: _drift(row[1]), True),
    ("FAULTS", lambda row: " ".join(f"{name}={count}" for name, count in row[0].faults.items()) or "-", False),
)


def driver() -> "NvmlBackend | None":
    """The NVML backend, or None if no NVIDIA driver answers."""
    from cotenant.node.devices.nvml import NvmlBackend, load_library

    try:
        return NvmlBackend(load_library())
    except DeviceError:
        return None


def chosen_gpu(gpu: str, uuids: Sequence[str]) -> str:
    """The UUID of the GPU that the option --gpu names; InputError if this machine has no such GPU."""
    if gpu in uuids:
        return gpu
    if gpu.isdecimal() and int(gpu) < len(uuids):
        return uuids[int(gpu)]
    raise InputError(f"--gpu {gpu[:60]}: no such GPU; this machine has {counted(len(uuids), 'GPU')}, see nvidia-smi -L")
