# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Commands about the GPUs of one machine: gpus, top, cordon, uncordon, drain."""

import time

import click

from cotenant.cli.client import Client, at
from cotenant.cli.jobs import COLUMNS as JOB_COLUMNS
from cotenant.cli.show import emit, output_option, table
from cotenant.wire.local import GpuView, JobView

COLUMNS = (
    ("GPU", lambda gpu: str(gpu.index), False),
    ("TYPE", lambda gpu: gpu.type, False),
    ("MEMORY", lambda gpu: f"{gpu.memory_mib - gpu.free_memory_mib}/{gpu.memory_mib} MiB", False),
    ("USED", lambda gpu: "-" if gpu.used_mib is None else f"{gpu.used_mib} MiB", False),
    ("COMPUTE", lambda gpu: f"{(1000 - gpu.free_compute) / 10:.0f}%", False),
    ("BUSY", lambda gpu: "-" if gpu.utilisation is None else f"{gpu.utilisation:.0f}%", False),
    ("STATE", lambda gpu: state(gpu), False),
    ("TENANTS", lambda gpu: " ".join(gpu.tenants) or "-", False),
    ("UUID", lambda gpu: gpu.uuid, True),
)


def state(gpu: GpuView) -> str:
    return "unhealthy" if not gpu.healthy else "cordoned" if gpu.cordoned else "ok"


@click.command(epilog="\b\nExample:\n  cotenant gpus -o wide\n")
@output_option
def gpus(output: str) -> None:
    """Lists the GPUs: memory and compute given away, what is really used, who is on them."""
    emit(Client().get("/v1/gpus", list[GpuView]), output, COLUMNS, "no GPUs")


@click.command(epilog="\b\nExample:\n  cotenant cordon 0\n")
@click.argument("gpu")
@output_option
def cordon(gpu: str, output: str) -> None:
    """Places no new jobs on a GPU (index or UUID); those on it go on."""
    emit(Client().post(f"/v1/gpus/{at(gpu)}/cordon", GpuView), output, COLUMNS)


@click.command(epilog="\b\nExample:\n  cotenant uncordon 0\n")
@click.argument("gpu")
@output_option
def uncordon(gpu: str, output: str) -> None:
    """Takes new jobs on a GPU again."""
    emit(Client().post(f"/v1/gpus/{at(gpu)}/uncordon", GpuView), output, COLUMNS)


@click.command(epilog="\b\nExample:\n  cotenant drain 0\n")
@click.argument("gpu")
@output_option
def drain(gpu: str, output: str) -> None:
    """Cordons a GPU and waits until the jobs on it have ended."""
    client = Client()
    view = client.post(f"/v1/gpus/{at(gpu)}/cordon", GpuView)
    while view.tenants:
        time.sleep(0.5)
        view = next(one for one in client.get("/v1/gpus", list[GpuView]) if one.uuid == view.uuid)
    emit(view, output, COLUMNS)


@click.command(epilog="\b\nExample:\n  cotenant top --every 2\n")
@click.option(
    "--every", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="One look, then stop.")
def top(every: float, once: bool) -> None:
    """A live table of GPUs and the jobs on them."""
    client = Client()
    while True:
        text = _screen(client)
        if not once:
            click.echo("\033[2J\033[H", nl=False)
        click.echo(text)
        if once:
            return
        time.sleep(every)


def _screen(client: Client) -> str:
    devices = client.get("/v1/gpus", list[GpuView])
    active = client.get("/v1/jobs?state=starting,running,queued&limit=1000", list[JobView])
    running = [job for job in active if job.state != "queued"]
    waiting = len(active) - len(running)
    jobs = table(running, JOB_COLUMNS, wide=True) if running else "no job is running"
    return f"{table(devices, COLUMNS, wide=False)}\n\n{jobs}\n\n{waiting} waiting"
