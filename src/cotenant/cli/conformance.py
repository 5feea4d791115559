# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant conformance`: measures on a GPU whether the limits of slices hold."""

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from cotenant import __version__
from cotenant.cli.options import output_option
from cotenant.cli.output import note, or_dash, progress, render, table
from cotenant.cli.slices import chosen_gpu, driver
from cotenant.conformance.bench import FULL, QUICK, Bench, Effort
from cotenant.conformance.mps import control_daemon
from cotenant.conformance.report import FORMAT, Device, Report, Result, Row, Way
from cotenant.conformance.running import ClientError, Runner, Slice
from cotenant.conformance.suite import ALL, checks_for, pairs, rows
from cotenant.errors import CotenantError, InputError
from cotenant.node.devices.memory_limits import MemoryLimits
from cotenant.node.limits import applying_file
from cotenant.node.partitions import find_partitions
from cotenant.wire.text import counted

if TYPE_CHECKING:
    from cotenant.node.devices.nvml import NvmlBackend

LIMITED = [Way.PRELOAD, Way.STRICT, Way.MPS, Way.DRIVER]
EPILOG = """\b
Examples:
  cotenant conformance --report a100.json
  cotenant conformance --quick --check memory-limit --check compute-30
  cotenant conformance --list
Without other users of the GPU, the whole suite takes less than ten minutes.
"""


@click.command(epilog=EPILOG)
@click.option("--gpu", default="0", show_default=True, metavar="UUID|INDEX", help="The GPU to measure on.")
@click.option(
    "--rung",
    "rungs",
    multiple=True,
    type=click.Choice([str(one) for one in LIMITED]),
    help="Measure only this way to limit programs; repeatable.",
)
@click.option(
    "--check",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=lambda _context, _option, word: [one.name for one in ALL if one.name.startswith(word)],
    help="Carry out only this check; repeatable.",
)
@click.option("--quick", is_flag=True, help="Measure once, for a short time each.")
@click.option("--list", "is_list", is_flag=True, help="List the checks, and carry out none.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Also write the report, as JSON.")
@output_option
def conformance(
    gpu: str,
    rungs: Sequence[str],
    names: Sequence[str],
    quick: bool,
    is_list: bool,
    report: Path | None,
    output: str,
) -> None:
    """Measures whether limits on GPU memory and compute hold on this machine, and what they cost.

    Each row has a figure, what is promised, and the metric of GPU-Virt-Bench that it corresponds to. The exit code is 1
    if a promise is not kept.
    """
    for name in set(names) - {one.name for one in ALL}:
        raise InputError(f"--check {name[:60]}: no such check; `cotenant conformance --list` names them")
    effort = QUICK if quick else FULL
    checks = checks_for(effort, names)
    if is_list:
        listed = [{"check": one.name, "title": one.title, "metric": one.metric} for one in checks]
        render(listed, output, lambda wide: click.echo(table(checks, LIST_COLUMNS, wide)))
        return
    if applying_file(os.environ) is not None:
        raise CotenantError("this shell is in a slice already, and the baseline needs one without limits")
    if report is not None:
        _write(report, b"")  # before it measures for minutes
    chosen = [Way(one) for one in rungs] or LIMITED
    with closing(_backend()) as backend:
        uuid, found = chosen_gpu(gpu, [one.uuid for one in backend.machine().gpus]), list[Row]()
        device = _device(Runner(uuid))
        with _mps(uuid, chosen) as mps, progress("checks", len(pairs(chosen, checks))) as step:
            bench = _bench(uuid, device, effort, mps, backend.memory_limits if Way.DRIVER in chosen else None)
            for row in rows(bench, chosen, checks):
                found.append(row)
                step(row.check)
    whole = Report(
        format=FORMAT,
        cotenant=__version__,
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        device=bench.device,
        rows=found,
    )
    render(whole, output, lambda wide: _print(whole, wide))
    if report is not None:
        _write(report, msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n")
    failed = sum(row.result is Result.FAILED for row in found)
    if failed:
        raise CotenantError(
            f"{counted(failed, 'promise')} not kept, in {counted(len(found), 'row')}; the notes say more"
        )


def _write(report: Path, content: bytes) -> None:
    try:
        report.write_bytes(content)
    except OSError as error:
        raise InputError(f"--report {report}: cannot be written: {error.strerror}") from None


def _print(report: Report, wide: bool) -> None:
    click.echo(table(report.rows, COLUMNS, wide))
    device = report.device
    note(f"{device.title}, compute capability {device.capability}, CUDA {device.cuda}, {device.total_mib} MiB")
    if device.stand_in:
        note("this is the stand-in driver of the tests: no figure is that of a GPU")


def _backend() -> "NvmlBackend":
    backend = driver()
    if backend is None:
        raise CotenantError("no NVIDIA driver answers; the suite needs a GPU")
    return backend


def _bench(uuid: str, device: Device, effort: Effort, mps: Path | str, limits: MemoryLimits | None) -> Bench:
    """What the checks run with, and which ways cannot be measured here; `mps` is a folder, or why there is none."""
    missing = {} if isinstance(mps, Path) else {Way.MPS: mps, Way.DRIVER: mps}
    partitions = None
    if limits is not None and not missing:
        partitions = find_partitions(f"conformance-{os.getpid()}", limits)
        obstacle = partitions.obstacle(uuid)
        if obstacle is not None:
            missing, partitions = {Way.DRIVER: obstacle}, None
    runner = Runner(uuid, mps=mps if isinstance(mps, Path) else None, partitions=partitions)
    return Bench(runner=runner, device=device, effort=effort, missing=missing)


def _mps(gpu: str, ways: Sequence[Way]) -> AbstractContextManager[Path | str]:
    return control_daemon(gpu) if {Way.MPS, Way.DRIVER} & set(ways) else nullcontext("not chosen")


def _device(runner: Runner) -> Device:
    try:
        return msgspec.convert(runner.run(Slice(way=Way.NONE), "about"), Device)
    except ClientError as error:
        raise CotenantError(f"the GPU cannot be used: {error}") from None


def _value(row: Row) -> str:
    return f"{or_dash(row.value, '{:.4g}')} {row.unit}".strip()


COLUMNS = (
    ("CHECK", lambda row: row.check, False),
    ("RUNG", lambda row: row.rung, False),
    ("RESULT", lambda row: row.result, False),
    ("VALUE", _value, False),
    ("EXPECTED", lambda row: row.expected or "-", False),
    ("METRIC", lambda row: row.metric or "-", True),
    ("DEVICE", lambda row: row.device, False),
    ("NOTE", lambda row: row.note or "-", False),
)
LIST_COLUMNS = (
    ("CHECK", lambda one: one.name, False),
    ("WHAT IS MEASURED", lambda one: one.title, False),
    ("METRIC OF GPU-VIRT-BENCH", lambda one: one.metric or "-", False),
)
