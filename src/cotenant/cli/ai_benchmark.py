# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant ai-benchmark`: ten cases of deep learning, native, in a slice, and in a slice with virtual memory."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec

from cotenant.cli.options import output_option
from cotenant.cli.output import aligned, note, render
from cotenant.core.units import MiB, parse_memory
from cotenant.errors import CotenantError, InputError
from cotenant.wire.text import counted
from cotenant.workloads.registry import SIZES
from cotenant.workloads.suite import CASES, Case, Measurement, Setting, measure

MOST_BYTES = 1 << 20
CPU = "cpu"
NUMBERS = [case.number for case in CASES]
EPILOG = """\b
Examples:
  cotenant ai-benchmark --size full --memory 8GiB
  cotenant ai-benchmark --case 1.1 --case 5.2 --seconds 2
  cotenant ai-benchmark --merge native.json vgpu.json virtual.json
In a container with GPUs, the cases run once, under the limits of the container.
"""


@click.command("ai-benchmark", epilog=EPILOG)
@click.option("--size", type=click.Choice(SIZES), default="tiny", show_default=True, help="Size of the models.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time of each run.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1, 86_400),
    default=900.0,
    show_default=True,
    metavar="SECONDS",
    help="A run that takes longer, with the time to compile its model, has failed.",
)
@click.option("--case", "chosen", multiple=True, type=click.Choice(NUMBERS), help="Run only this case; repeatable.")
@click.option("--memory", default="8GiB", show_default=True, metavar="8GiB", help="GPU memory of a slice.")
@click.option("--merge", "is_merge", is_flag=True, help="Print one table of the JSON that other runs have printed.")
@output_option
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
def ai_benchmark(
    size: str,
    seconds: float,
    timeout: float,
    chosen: Sequence[str],
    memory: str,
    is_merge: bool,
    output: str,
    files: Sequence[Path],
) -> None:
    """Measures the ten cases of ai-benchmark: native, as a vGPU, and as a vGPU with virtual memory.

    The vGPU has --memory; with virtual memory, half of that is memory of the host. If a run fails, the others still
    run, and the exit code is 1.
    """
    if is_merge != bool(files):
        raise InputError("--merge and the files that it reads belong together: give both or neither")
    cases = [case for case in CASES if case.number in (chosen or NUMBERS)]
    found = _merged(files) if is_merge else _run(cases, size, seconds, timeout, memory)
    render(found, output, lambda wide: _print(found, wide))
    failed = sum(one.error is not None for one in found)
    if failed and not is_merge:
        raise CotenantError(f"{failed} of {counted(len(found), 'run')} failed; the line of each above says why")


def _run(cases: Sequence[Case], size: str, seconds: float, timeout: float, memory: str) -> list[Measurement]:
    try:
        amount = parse_memory(memory)
    except ValueError as error:
        raise InputError(f"--memory: {error}") from None
    if find_spec("jax") is None:  # every run would fail
        raise ModuleNotFoundError("jax", name="jax")
    here, found = _setting_here(), []
    for case in cases:
        for setting in Setting if here is None else (here,):
            before = [] if here is not None else _slice(setting, amount)
            found.append(measure(case, size, seconds, setting, before, os.environ, timeout))
            one = found[-1]
            note(f"{case.number} {one.model} {case.mode}, {setting}: {one.error or f'{one.samples_per_s:g} samples/s'}")
    return found


def _setting_here() -> Setting | None:
    """The setting of the slice that this process is in; None if it is in none, and makes its own."""
    from cotenant.node.limits import applying_file, read_limits

    file = applying_file(os.environ)
    if file is None:
        return None
    try:
        limits = read_limits(file)
    except (OSError, InputError):
        return None
    if any(gpu.host_bytes for gpu in limits.gpus):
        return Setting.VIRTUAL
    return Setting.VGPU if any(gpu.memory_bytes is not None for gpu in limits.gpus) else Setting.NATIVE


def _slice(setting: Setting, amount: MiB) -> list[str]:
    """The command that runs another one under a setting."""
    if setting is Setting.NATIVE:
        return []
    host = amount // 2 if setting is Setting.VIRTUAL else 0
    limits = ["--memory", f"{amount - host}MiB", *(["--host-memory", f"{host}MiB"] if host else [])]
    return [sys.executable, "-P", "-m", "cotenant", "run", *limits, "--"]


def _merged(files: Iterable[Path]) -> list[Measurement]:
    found = [one for file in files for one in _read(file)]
    for (case, setting), times in Counter((one.case, one.setting) for one in found).items():
        if times > 1:
            raise InputError(
                f"--merge: case {case} was measured {times} times with the setting {setting}; give one file for each "
                "setting, and run the vGPU on a node without virtual memory"
            )
    return found


def _read(file: Path) -> list[Measurement]:
    """The results in a file: its last line that is a list, since the log of a container has notes too."""
    from cotenant.wire.codec import read_bounded

    content = read_bounded(file, MOST_BYTES, "a result")
    results = next((line for line in reversed(content.splitlines()) if line.startswith(b"[{")), content)
    try:
        return msgspec.json.decode(results, type=list[Measurement])
    except msgspec.MsgspecError as error:
        raise InputError(f"{file}: not what `cotenant ai-benchmark --output json` prints: {error}") from None


def _print(found: Sequence[Measurement], wide: bool) -> None:
    heading = ["CASE", "MODEL", "MODE", "BATCH", "NATIVE", "VGPU", "VGPU + VIRTUAL MEMORY", "DEVICE"]
    rows = [[*heading, *["SIZE"] * wide]]
    for number in dict.fromkeys(one.case for one in found):
        of_case = [one for one in found if one.case == number]
        speeds = [_speed([one for one in of_case if one.setting is setting]) for setting in Setting]
        first = of_case[0]
        batch = next((str(one.batch) for one in of_case if one.batch is not None), "-")
        rows.append([number, first.model, first.mode, batch, *speeds, _devices(of_case), *[first.size] * wide])
    click.echo("\n".join(aligned(rows)))
    click.echo("Samples per second; more is better.")
    if any(one.device == CPU for one in found):
        note("no GPU: JAX ran on the CPU, where limits of GPU memory and compute have no effect")


def _speed(found: Sequence[Measurement]) -> str:
    if not found:
        return "-"
    one = found[-1]
    return "failed" if one.samples_per_s is None else f"{one.samples_per_s:.1f}"


def _devices(found: Iterable[Measurement]) -> str:
    names = dict.fromkeys(one.device for one in found if one.device is not None)
    return ", ".join("cpu (no GPU)" if name == CPU else name for name in names) or "-"
