# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Options and arguments that several commands share, and how a shell completes them."""

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from cotenant.errors import CotenantError, InputError

F = TypeVar("F", bound=Callable[..., object])
ACTIVE = ("queued", "starting", "running")
ENDED = ("finished", "cancelled", "interrupted", "lost")
COMPLETED_WITHIN_S = 1.0
"""a shell that waits for the names of jobs is worse than one that knows none"""


def output_option(command: F) -> F:
    """`--output table|wide|json|yaml`."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(["table", "wide", "json", "yaml"]),
        default="table",
        show_default=True,
        help="What to print: tables for people, the rest for programs.",
    )(command)


def folder_option(files: str) -> Callable[[F], F]:
    """`--out`: where to write a report."""
    return click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help=files)


def processes_option(command: F) -> F:
    """`--processes`, for commands that run many simulations."""
    return click.option(
        "--processes",
        type=click.IntRange(1, 1024),
        default=lambda: os.cpu_count() or 1,
        show_default="one per core",
        help="How many runs go side by side.",
    )(command)


def job_argument(*states: str, required: bool = True) -> Callable[[F], F]:
    """A job by id or name; completed from the daemon's, those in these states where given."""
    return click.argument("job", required=required, shell_complete=partial(_jobs, states))


def gpu_argument(command: F) -> F:
    """A GPU by index or UUID."""
    return click.argument("gpu", shell_complete=_gpus)(command)


def finite(_context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """The number, which lies within no limits if it is none."""
    if value is not None and not math.isfinite(value):
        raise InputError(f"--{option.name} {value}: expected a number")
    return value


def file_words(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> "list[object]":
    """Lets the shell complete names of files, as it does for any command."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def _jobs(states: tuple[str, ...], _context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    found = _asked(f"/v1/jobs?state={','.join(states)}&limit=20000", "id", "name")
    return _starting_with(incomplete, found)


def _gpus(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return _starting_with(incomplete, _asked("/v1/gpus", "index", "uuid"))


def _starting_with(incomplete: str, names: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _asked(path: str, *fields: str) -> list[str]:
    """These fields of everything the daemon lists there; nothing where it does not answer."""
    from cotenant.cli.client import Client

    try:
        found = Client(COMPLETED_WITHIN_S).get(path, list[dict[str, object]])
    except CotenantError:
        return []
    return [str(one[field]) for field in fields for one in found]
