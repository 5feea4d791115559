# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The options with which `submit` and `profile` describe a job, and the `JobRequest` that they make."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cotenant.cli.options import finite
from cotenant.client.requests import UNITS, environment, make_request, parse_seconds
from cotenant.core.isolation import Rung
from cotenant.errors import InputError
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.reservations import RESERVATION_ID

F = TypeVar("F", bound=Callable[..., object])
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LONGEST_S = 365 * UNITS["d"]


def job_name(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    """Checks that a job name fits into a URL and a table."""
    if name is not None and not NAME.fullmatch(name):
        raise InputError(f"--name {name[:40]}: expected up to 100 letters, digits, dots, dashes and underscores")
    return name


def duration(_context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Converts `50ms`, `60s` or `2m` into seconds."""
    if text is None:
        return None
    seconds = parse_seconds(text)
    if not 0 < seconds <= 86_400:
        raise InputError(
            f"--{option.name} {text[:40]}: expected a duration of at most 24h, for example 50ms, 60s or 2m"
        )
    return seconds


def length(_context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Converts `90s`, `45m`, `2h` or `3d` into seconds."""
    if text is None:
        return None
    seconds = parse_seconds(text)
    if not 1 <= seconds <= LONGEST_S:
        raise InputError(f"{option.opts[0]} {text[:40]}: expected a run time of 1s to 365d, for example 45m, 2h or 3d")
    return seconds


def reservation_id(_context: click.Context, option: click.Parameter, name: str | None) -> str | None:
    """Checks the form of the ID of a reservation."""
    if name is not None and not RESERVATION_ID.fullmatch(name):
        raise InputError(f"{option.opts[0]} {name[:40]}: expected the ID of a reservation, such as r-000001")
    return name


OPTIONS = (
    click.option("--gpus", type=click.IntRange(0, 1024), default=1, show_default=True, help="Number of GPUs."),
    click.option(
        "--memory",
        metavar="4GiB|50%|2GiB:6GiB|auto",
        help="Memory on each GPU, or a request and a limit that may be used while other jobs leave it free; auto: the "
        "peak of its profile and a margin. "
        "Default: all of it; no other job shares the GPUs.",
    ),
    click.option("--compute", metavar="30%|20%:60%", help="Compute share of each GPU, or a request and a limit."),
    click.option(
        "--mig",
        metavar="1g.10gb",
        help="Profile of the MIG instances to use, as nvidia-smi -L shows it. --memory and --compute are then of each.",
    ),
    click.option(
        "--cpus",
        type=click.FloatRange(0.01, 100_000),
        callback=finite,
        metavar="4",
        help="CPUs of the machine, which the job is limited to. Default: not counted and not limited.",
    ),
    click.option("--host-memory", metavar="16GiB", help="Memory of the machine, which the job is limited to."),
    click.option("--type", "types", multiple=True, metavar="NAME", help="Acceptable GPU type; repeatable."),
    click.option(
        "--isolation",
        type=click.Choice([rung.value for rung in Rung]),
        help="What holds the job to its limits on NVIDIA GPUs. Default: as the daemon was started.",
    ),
    click.option("--exclusive", is_flag=True, help="Share the GPUs with no other job."),
    click.option(
        "--priority",
        type=click.IntRange(-1000, 1000),
        default=0,
        show_default=True,
        help="Queue priority; a higher number starts first.",
    ),
    click.option(
        "--estimate",
        metavar="2h",
        callback=length,
        help="Expected run time. A short job may start before a large one that waits.",
    ),
    click.option(
        "--time",
        metavar="2h",
        callback=length,
        help="Longest time of one run. Then the job gets SIGTERM, and SIGKILL after --grace.",
    ),
    click.option(
        "--warn",
        metavar="5m",
        callback=length,
        help="Send SIGUSR1 to the first process of the job this long before the end of --time.",
    ),
    click.option("--name", callback=job_name, help="Job name, usable instead of the ID."),
    click.option(
        "--batch", type=click.IntRange(1, 1 << 24), help="Initial batch size, for scripts that use the job library."
    ),
    click.option("--batch-range", metavar="16-512", help="Smallest and largest batch size that tuning may choose."),
    click.option(
        "--floor",
        type=click.FloatRange(0, 1),
        callback=finite,
        help="Lowest speed that tuning may cause, as a fraction of the speed alone.",
    ),
    click.option(
        "--env", multiple=True, metavar="NAME=VALUE", help="Environment variable in addition to yours. Repeatable."
    ),
    click.option("--env-none", is_flag=True, help="Do not pass your environment; only --env counts."),
    click.option(
        "--cwd",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Working directory. Default: the current one.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(0, 100),
        default=0,
        show_default=True,
        help="Number of retries if the job fails.",
    ),
    click.option(
        "--grace",
        type=click.FloatRange(0, 86_400),
        callback=finite,
        default=10.0,
        show_default=True,
        help="Seconds between SIGTERM and SIGKILL on cancellation, and at the time limit.",
    ),
    click.option(
        "--container",
        metavar="IMAGE",
        help="Run the command in a container of this image, by podman or docker. It has the slice and the working "
        "directory, and only the variables of --env.",
    ),
    click.option(
        "--volume",
        "volumes",
        multiple=True,
        metavar="/DATA[:/INSIDE][:ro]",
        help="Folder that the container has, too. Repeatable.",
    ),
    click.option("--workload", metavar="NAME", help="Workload name under which speeds are profiled and predicted."),
    click.option(
        "--latency", metavar="50ms", callback=duration, help="Target for the time of one step; needs a profile."
    ),
    click.option(
        "--reservation",
        metavar="ID",
        callback=reservation_id,
        help="Run in this reservation: start when it starts, on its GPUs only. Default: on any GPU, also on those that "
        "are reserved for you.",
    ),
    click.option("--no-revert", is_flag=True, help="Keep the job in place even if it slows its neighbours too much."),
)


def request_options(command: F) -> F:
    """Adds all options that describe a job."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def request_of(
    command: tuple[str, ...],
    *,
    env: tuple[str, ...],
    env_none: bool,
    batch_range: str | None,
    no_revert: bool,
    **options: Any,
) -> JobRequest:
    """Builds the request from the options."""
    own = {
        "env": environment(env, env_none or options.get("container") is not None),
        "inherit_env": False,
        "batch_range": None if batch_range is None else parse_range(batch_range),
        "revert": not no_revert,
    }
    return make_request(command, {**options, **own})


def parse_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal()):
        raise InputError(f"--batch-range {text}: expected LOW-HIGH, for example 16-512")
    return int(low), int(high)
