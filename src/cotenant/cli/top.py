# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant top`: a table of GPUs and running jobs, redrawn every second within the size of the terminal."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from cotenant.cli.cluster_jobs import KUBERNETES, check_on, on_options
from cotenant.cli.cluster_use import cluster_screen, show_cluster
from cotenant.cli.gpus import reserved, state, unmanaged
from cotenant.cli.options import output_option
from cotenant.cli.output import cut, or_dash, render, table
from cotenant.cli.top_screen import MOST_QUEUED, QUEUE, Snapshot, fit, host_line
from cotenant.client.client import Client
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView
from cotenant.wire.text import ago, counted

LONGEST_NAME = 18
QUEUE_LINES = 10
"""jobs of the queue that a table shows"""
GPUS = (
    ("GPU", lambda gpu: str(gpu.index), False),
    ("TYPE", lambda gpu: cut(gpu.type, 12), False),
    ("ALLOCATED", lambda gpu: f"{gpu.memory_mib - gpu.free_memory_mib}/{gpu.memory_mib} MiB", False),
    ("USED", lambda gpu: or_dash(gpu.used_mib, "{} MiB"), False),
    ("COMPUTE", lambda gpu: f"{(gpu.compute - gpu.free_compute) * 100 / gpu.compute:.0f}%", False),
    ("BUSY", lambda gpu: or_dash(gpu.utilisation, "{:.0f}%"), False),
    ("STATE", lambda gpu: state(gpu), False),
    ("JOBS", lambda gpu: str(len(gpu.tenants)), False),
    ("ISOLATION", lambda gpu: f"{gpu.only} only" if gpu.only else ",".join(gpu.isolation) or "-", True),
    ("UUID", lambda gpu: gpu.uuid, True),
)
JOBS = (
    ("GPU", lambda job: ",".join(map(str, job.gpus)) or "-", False),
    ("JOB", lambda job: job.id, False),
    ("NAME", lambda job: cut(job.name, LONGEST_NAME), False),
    ("MEMORY", lambda job: or_dash(job.memory_used_mib, "{} MiB"), False),
    ("BUSY", lambda job: or_dash(job.utilisation, "{:.0f}%"), False),
    ("SPEED", lambda job: or_dash(job.speed, "{:.0%}"), False),
    ("BATCH", lambda job: str(job.batch or "-"), False),
    ("RAN", lambda job: ago(job.started), False),
    ("ATTEMPT", lambda job: str(job.attempts), True),
    ("ISOLATION", lambda job: job.isolation or "-", True),
)
EPILOG = """\b
Examples:
  cotenant top --every 2
  cotenant top --once -o json
  cotenant top node --on kubernetes
ALLOCATED and COMPUTE are allocated to jobs; USED and BUSY are measured; SPEED is relative to running alone.
"""


MACHINE_S, CLUSTER_S = 1.0, 5.0
"""Seconds between updates by default. In a cluster each one lists all nodes and pods."""


@click.command(epilog=EPILOG)
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    show_default="1; in a cluster 5",
    help="Seconds between updates.",
)
@click.option("--once", is_flag=True, help="Print the table once and exit, as json and yaml always do.")
@on_options
@output_option
@click.argument("what", required=False, type=click.Choice(["node", "job", "serving"]))
def top(every: float | None, once: bool, output: str, on: str, what: str | None, **where: Any) -> None:
    """Shows GPUs, running jobs and the queue on the whole screen, or in a cluster the GPU memory of each node, job or
    model server. q or Ctrl-C ends it; on one machine, keys sort, filter, cancel and explain jobs."""
    check_on(on, ("what",), ())
    once, wide = once or output in ("json", "yaml"), output == "wide"
    if on == KUBERNETES and once:
        show_cluster(what or "node", output, **where)
        return
    client = None if on == KUBERNETES else Client()
    if client is not None and once:
        shown = snapshot(client)
        render(shown, output, lambda wide: click.echo(screen(shown, wide)))
        return
    try:
        if client is None:
            watch(lambda: cluster_screen(what or "node", wide, **where), every or CLUSTER_S)
        elif sys.stdin.isatty() and sys.stdout.isatty() and not wide:
            from cotenant.cli.top_keys import full_screen

            full_screen(client, lambda: snapshot(client), every or MACHINE_S)
        else:
            watch(lambda: screen(snapshot(client), wide), every or MACHINE_S)
    except KeyboardInterrupt:
        click.echo()


def snapshot(client: Client) -> Snapshot:
    # Reasons of many waiting jobs take time, so only the oldest are read.
    waiting = f"/v1/jobs?state=queued&limit={MOST_QUEUED}&after=j-000000"
    jobs = client.get("/v1/jobs?state=starting,running&limit=20000", list[JobView])
    return Snapshot(
        status=client.get("/v1/status", dict[str, Any]),
        gpus=client.get("/v1/gpus", list[GpuView]),
        jobs=sorted(jobs, key=lambda job: (job.gpus, job.id)),
        queue=client.get(waiting, list[JobView]),
    )


def watch(draw: Callable[[], str], every: float) -> None:
    """Prints what is drawn at every update: in place on a terminal, one below the other elsewhere."""
    terminal = sys.stdout.isatty()
    if terminal:
        click.clear()
    while True:
        text = draw()
        click.echo(in_place(text) if terminal else f"{text}\n", nl=not terminal)
        time.sleep(every)


def in_place(text: str) -> str:
    """The escape sequence that overwrites the last table, cut to the terminal; the screen is not cleared, so it does
    not flicker."""
    columns, height = shutil.get_terminal_size()
    title, *lines = (cut(line, columns) for line in text.splitlines())
    lines.insert(0, click.style(title, bold=True))
    if len(lines) > height:
        lines = [*lines[: height - 1], f"… and {counted(len(lines) - height + 1, 'more line')}"]
    return "\033[H" + "\n".join(f"\033[K{line}" for line in lines) + "\033[J"


def screen(shown: Snapshot, wide: bool) -> str:
    status = shown.status
    counts = f"{status['running']} running, {status['queued']} queued"
    gpus = counted(status["gpus"], f"{status['devices']} GPU")
    title = f"{gpus}, policy {status['policy']}: {counts}, {time.strftime('%H:%M:%S')}"
    jobs = table(shown.jobs, JOBS, wide) if shown.jobs else "no job is running"
    others = "".join(f"\nwithout a job on GPU {gpu.index}: {unmanaged(gpu)}" for gpu in shown.gpus if gpu.unmanaged)
    host = "".join(f"\n{line}" for line in host_line(status.get("host") or {}))
    others += "".join(f"\nGPU {gpu.index} is reserved for {reserved(gpu)}" for gpu in shown.gpus if gpu.reservations)
    return f"{title}{host}\n\n{table(shown.gpus, GPUS, wide)}{others}\n\n{jobs}{_queue(shown)}"


def _queue(shown: Snapshot) -> str:
    """The first jobs that wait, and how many more do."""
    first = shown.queue[:QUEUE_LINES]
    if not first:
        return ""
    lines = fit(first, QUEUE, shutil.get_terminal_size().columns)
    more = shown.status["queued"] - len(first)
    return "\n".join(["\n", *lines, *([f"… and {counted(more, 'more job')}"] if more > 0 else [])])
