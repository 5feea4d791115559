# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How a job is asked for on the command line: the options that `submit` and `profile` share, made into a request."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from cotenant.cli.options import finite
from cotenant.errors import InputError
from cotenant.wire.local import JobRequest

F = TypeVar("F", bound=Callable[..., object])
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)")
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def job_name(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    """A name that can stand in an address and in a table."""
    if name is not None and not NAME.fullmatch(name):
        raise InputError(f"--name {name[:40]}: expected up to 100 letters, digits, dots, dashes and underscores")
    return name


def duration(_context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """`50ms`, `60s` or `2m` in seconds."""
    if text is None:
        return None
    match = DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= 86_400:
        raise InputError(f"--{option.name} {text[:40]}: expected a time of up to a day, for example 50ms, 60s or 2m")
    return seconds


OPTIONS = (
    click.option("--gpus", type=click.IntRange(0, 1024), default=1, show_default=True, help="How many GPUs."),
    click.option("--memory", metavar="4GiB|50%", help="GPU memory on each; none: whole GPUs."),
    click.option("--compute", metavar="30%", help="Share of each GPU's compute."),
    click.option("--type", "types", multiple=True, metavar="NAME", help="Card type that will do; may be given again."),
    click.option("--exclusive", is_flag=True, help="On GPUs that nobody else uses."),
    click.option(
        "--priority", type=click.IntRange(-1000, 1000), default=0, show_default=True, help="Larger goes first."
    ),
    click.option("--name", callback=job_name, help="A name to refer to it by."),
    click.option("--batch", type=click.IntRange(1, 1 << 24), help="Batch size to start with, with the job library."),
    click.option("--batch-range", metavar="16-512", help="Batch sizes it may be given."),
    click.option(
        "--floor",
        type=click.FloatRange(0, 1),
        callback=finite,
        help="Share of its speed alone below which tuning may not push it.",
    ),
    click.option(
        "--env", multiple=True, metavar="NAME=VALUE", help="Environment variable; NAME alone passes yours on."
    ),
    click.option(
        "--cwd",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Working folder; default: this one.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(0, 100),
        default=0,
        show_default=True,
        help="How often to run it again if it fails.",
    ),
    click.option(
        "--grace",
        type=click.FloatRange(0, 86_400),
        callback=finite,
        default=10.0,
        show_default=True,
        help="Seconds between SIGTERM and SIGKILL.",
    ),
    click.option("--workload", metavar="NAME", help="What kind of work it is, for predictions."),
    click.option("--latency", metavar="50ms", callback=duration, help="What a step may take; needs a profile."),
    click.option("--no-revert", is_flag=True, help="Never stop it again because it does harm to its neighbours."),
)


def request_options(command: F) -> F:
    """All that a job can be asked for with."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def request_of(
    command: tuple[str, ...],
    *,
    gpus: int,
    memory: str | None,
    compute: str | None,
    types: tuple[str, ...],
    exclusive: bool,
    priority: int,
    name: str | None,
    batch: int | None,
    batch_range: str | None,
    floor: float | None,
    env: tuple[str, ...],
    cwd: Path | None,
    retries: int,
    grace: float,
    workload: str | None,
    latency: float | None,
    no_revert: bool,
) -> JobRequest:
    """What these options mean together."""
    return JobRequest(
        command=command,
        cwd=str((cwd or Path.cwd()).resolve()),
        env=environment(env),
        name=name,
        gpus=gpus,
        memory=memory,
        compute=compute,
        types=types,
        exclusive=exclusive,
        priority=priority,
        batch=batch,
        batch_range=None if batch_range is None else parse_range(batch_range),
        floor=floor,
        retries=retries,
        grace_s=grace,
        workload=workload,
        latency_s=latency,
        revert=not no_revert,
    )


def encoded(request: JobRequest) -> bytes:
    """As it is sent; words of other encodings would not arrive as they are."""
    try:
        return msgspec.json.encode(request)
    except UnicodeEncodeError:
        raise InputError("the command, the folder or a variable is not UTF-8 text; expected such") from None


def environment(given: tuple[str, ...]) -> dict[str, str]:
    """What the job sees beyond the daemon's own environment: the caller's PATH and the like, and what was asked for."""
    kept = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            if name not in os.environ:
                raise InputError(f"--env {name}: not set here; write --env {name}=VALUE")
            value = os.environ[name]
        found[name] = value
    return found


def parse_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal()):
        raise InputError(f"--batch-range {text}: expected LOW-HIGH, for example 16-512")
    return int(low), int(high)
