# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The commands for the GPUs of one machine: gpus, cordon, uncordon and drain."""

import time

import click
import msgspec

from cotenant.cli.options import gpu_argument, output_option
from cotenant.cli.output import emit, or_dash
from cotenant.client.client import Client
from cotenant.client.http import at
from cotenant.wire.machine import DrainRequest, GpuView
from cotenant.wire.text import clock

POLL_S = 0.5
COLUMNS = (
    ("GPU", lambda gpu: str(gpu.index), False),
    ("TYPE", lambda gpu: gpu.type, False),
    ("MEMORY", lambda gpu: f"{gpu.memory_mib - gpu.free_memory_mib}/{gpu.memory_mib} MiB", False),
    ("USED", lambda gpu: or_dash(gpu.used_mib, "{} MiB"), False),
    ("COMPUTE", lambda gpu: f"{(gpu.compute - gpu.free_compute) * 100 / gpu.compute:.0f}%", False),
    ("BUSY", lambda gpu: or_dash(gpu.utilisation, "{:.0f}%"), False),
    ("STATE", lambda gpu: state(gpu), False),
    ("TENANTS", lambda gpu: " ".join(gpu.tenants) or "-", False),
    ("RESERVED", lambda gpu: reserved(gpu), False),
    ("UNMANAGED", lambda gpu: unmanaged(gpu), False),
    ("FAULT", lambda gpu: gpu.fault or "-", True),
    ("UUID", lambda gpu: gpu.uuid, True),
    ("CARD", lambda gpu: gpu.card or "-", True),
)
DRAIN_EPILOG = """\b
Examples:
  cotenant drain 0
  cotenant drain --evict 0
"""


def unmanaged(gpu: GpuView) -> str:
    """The processes of a GPU that no job owns: user, program and memory."""
    found = (f"{one.user}:{one.program} {or_dash(one.memory_mib, '{} MiB')}" for one in gpu.unmanaged)
    return ", ".join(found) or "-"


def reserved(gpu: GpuView) -> str:
    """For whom a GPU is reserved, now or next."""
    if not gpu.reservations:
        return "-"
    first, *others = gpu.reservations
    now = time.time()
    span = f"until {clock(first.end, now)}" if first.start <= now else f"from {clock(first.start, now)}"
    return f"{first.whom} {span}" + f" (+{len(others)})" * bool(others)


def state(gpu: GpuView) -> str:
    return "unhealthy" if not gpu.healthy else "cordoned" if gpu.cordoned else "ok"


@click.command(epilog="\b\nExample:\n  cotenant gpus -o wide\n")
@output_option
def gpus(output: str) -> None:
    """Lists the GPUs with their tenants. MEMORY and COMPUTE are not free for jobs; USED and BUSY are measured.

    RESERVED says for whom a GPU is reserved, now or next. UNMANAGED lists processes that no job owns.
    """
    emit(Client().get("/v1/gpus", list[GpuView]), output, COLUMNS, "no GPUs")


@click.command(epilog="\b\nExample:\n  cotenant cordon 0\n")
@gpu_argument
@output_option
def cordon(gpu: str, output: str) -> None:
    """Stops placing new jobs on a GPU (index or UUID); jobs that run on it continue."""
    emit(Client().post(f"/v1/gpus/{at(gpu)}/cordon", GpuView), output, COLUMNS)


@click.command(epilog="\b\nExample:\n  cotenant uncordon 0\n")
@gpu_argument
@output_option
def uncordon(gpu: str, output: str) -> None:
    """Allows new jobs on a cordoned GPU (index or UUID) again."""
    emit(Client().post(f"/v1/gpus/{at(gpu)}/uncordon", GpuView), output, COLUMNS)


@click.command(epilog=DRAIN_EPILOG)
@gpu_argument
@click.option(
    "--evict", is_flag=True, help="Stop the jobs on the GPU and queue them again, instead of waiting for them to end."
)
@output_option
def drain(gpu: str, evict: bool, output: str) -> None:
    """Cordons a GPU (index or UUID) and waits until no job is left on it. After Ctrl-C the GPU stays cordoned."""
    client = Client()
    view = client.post(f"/v1/gpus/{at(gpu)}/drain", GpuView, msgspec.json.encode(DrainRequest(evict=evict)))
    while view.tenants:
        time.sleep(POLL_S)
        view = next(one for one in client.get("/v1/gpus", list[GpuView]) if one.uuid == view.uuid)
    emit(view, output, COLUMNS)
