# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant top`: the GPUs and the jobs on them, again and again, within the terminal as it is."""

import shutil
import sys
import time
from typing import Any

import click
import msgspec

from cotenant.cli.client import Client
from cotenant.cli.gpus import state
from cotenant.cli.options import output_option
from cotenant.cli.show import ago, cut, known, render, table
from cotenant.wire.local import GpuView, JobView

LONGEST_NAME = 24
GPUS = (
    ("GPU", lambda gpu: str(gpu.index), False),
    ("TYPE", lambda gpu: cut(gpu.type, 12), False),
    ("MEMORY GIVEN", lambda gpu: f"{gpu.memory_mib - gpu.free_memory_mib}/{gpu.memory_mib} MiB", False),
    ("USED", lambda gpu: known(gpu.used_mib, "{} MiB"), False),
    ("COMPUTE", lambda gpu: f"{(1000 - gpu.free_compute) / 10:.0f}%", False),
    ("BUSY", lambda gpu: known(gpu.utilisation, "{:.0f}%"), False),
    ("STATE", lambda gpu: state(gpu), False),
    ("JOBS", lambda gpu: str(len(gpu.tenants)), False),
    ("UUID", lambda gpu: gpu.uuid, True),
)
JOBS = (
    ("GPU", lambda job: ",".join(map(str, job.gpus)) or "-", False),
    ("JOB", lambda job: job.id, False),
    ("NAME", lambda job: cut(job.name, LONGEST_NAME), False),
    ("MEMORY", lambda job: known(job.memory_used_mib, "{} MiB"), False),
    ("BUSY", lambda job: known(job.utilisation, "{:.0f}%"), False),
    ("SPEED", lambda job: known(job.speed, "{:.0%}"), False),
    ("BATCH", lambda job: str(job.batch or "-"), False),
    ("RAN", lambda job: ago(job.started), False),
    ("ATTEMPT", lambda job: str(job.attempts), True),
)
EPILOG = """\b
Examples:
  cotenant top --every 2
  cotenant top --once -o json
MEMORY GIVEN and COMPUTE are promised to jobs, USED and BUSY are measured; SPEED is against running alone.
"""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to see at one moment."""

    status: dict[str, Any]
    gpus: list[GpuView]
    jobs: list[JobView]


@click.command(epilog=EPILOG)
@click.option(
    "--every", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="One look, then stop; so do json and yaml.")
@output_option
def top(every: float, once: bool, output: str) -> None:
    """A live table of GPUs and the jobs on them; Ctrl-C ends it."""
    client = Client()
    if once or output in ("json", "yaml"):
        seen = look(client)
        render(seen, output, lambda wide: click.echo(screen(seen, wide)))
        return
    try:
        watch(client, every, output == "wide")
    except KeyboardInterrupt:
        click.echo()


def look(client: Client) -> Look:
    jobs = client.get("/v1/jobs?state=starting,running&limit=20000", list[JobView])
    return Look(
        status=client.get("/v1/status", dict[str, Any]),
        gpus=client.get("/v1/gpus", list[GpuView]),
        jobs=sorted(jobs, key=lambda job: (job.gpus, job.id)),
    )


def watch(client: Client, every: float, wide: bool) -> None:
    """Draws over the last picture where a terminal shows it, and below it elsewhere."""
    terminal = sys.stdout.isatty()
    if terminal:
        click.clear()
    while True:
        text = screen(look(client), wide)
        click.echo(in_place(text) if terminal else f"{text}\n", nl=not terminal)
        time.sleep(every)


def in_place(text: str) -> str:
    """The picture over the last one, cut to the terminal; the screen is not cleared, so nothing flickers."""
    columns, height = shutil.get_terminal_size()
    title, *lines = (cut(line, columns) for line in text.splitlines())
    lines.insert(0, click.style(title, bold=True))
    if len(lines) > height:
        lines = [*lines[: height - 1], f"… and {len(lines) - height + 1} more lines"]
    return "\033[H" + "\n".join(f"\033[K{line}" for line in lines) + "\033[J"


def screen(seen: Look, wide: bool) -> str:
    status = seen.status
    counts = f"{status['running']} running, {status['queued']} waiting"
    title = f"{status['gpus']} {status['devices']} GPUs, {status['policy']}: {counts}, {time.strftime('%H:%M:%S')}"
    jobs = table(seen.jobs, JOBS, wide) if seen.jobs else "no job is running"
    return f"{title}\n\n{table(seen.gpus, GPUS, wide)}\n\n{jobs}"
