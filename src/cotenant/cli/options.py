# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Options and arguments that several commands share, and their shell completion."""

import math
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from cotenant.errors import CotenantError, InputError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., object])
AGE = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
AGE_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
COMPLETION_TIMEOUT_S = 1.0
"""after this the shell gets no names: a prompt that hangs is worse than no completion"""


def output_option(command: F) -> F:
    """`--output table|wide|json|yaml`."""
    return _output(show_default=True)(command)


def kube_output_option(command: F) -> F:
    """The same for commands below `kube`. The default is text: on the page of commands, `--output` of `install` has
    another default."""
    return _output(show_default="table")(command)


def _output(show_default: bool | str) -> Callable[[F], F]:
    return click.option(
        "--output",
        "-o",
        type=click.Choice(["table", "wide", "json", "yaml"]),
        default="table",
        show_default=show_default,
        help="Output format; json and yaml have every field.",
    )


def folder_option(files: str) -> Callable[[F], F]:
    """`--out`: the folder for a report."""
    return click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help=files)


def processes_option(command: F) -> F:
    """`--processes`, for commands that run many simulations."""
    return click.option(
        "--processes",
        type=click.IntRange(1, 1024),
        default=lambda: os.cpu_count() or 1,
        show_default="one per core",
        help="Number of runs in parallel.",
    )(command)


def job_argument(*states: str, required: bool = True, several: bool = False) -> Callable[[F], F]:
    """A job by ID or name, or several; the shell completes the jobs that are in one of these states (all if none is
    given)."""
    return click.argument(
        "job", nargs=-1 if several else 1, required=required, shell_complete=partial(_complete_jobs, states)
    )


def state_option(text: str) -> Callable[[F], F]:
    """`--state`: a list of states such as `queued,failed`."""
    return click.option(
        "--state",
        default="",
        metavar="queued,failed,…",
        callback=_checked_states,
        shell_complete=complete_states,
        help=text,
    )


def _checked_states(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """Checks a list of states, and removes spaces and empty parts."""
    from cotenant.wire.job_views import decode_states

    return ",".join(decode_states(text))


def gpu_argument(command: F) -> F:
    """A GPU by index or UUID."""
    return click.argument("gpu", shell_complete=_complete_gpus)(command)


def age_option(name: str, text: str) -> Callable[[F], F]:
    """An option with an age such as `12h` or `30d`, in seconds."""
    return click.option(name, metavar="30d", callback=_age, help=text)


def size_option(name: str, text: str) -> Callable[[F], F]:
    """An option with a size such as `5GiB`, in bytes."""
    return click.option(name, metavar="5GiB", callback=_size, help=text)


def _age(_context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    match = AGE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{option.opts[0]} {text[:40]}: expected an age, for example 45m, 12h or 30d")
    return int(match[1]) * AGE_UNITS[match[2]]


def _size(_context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    from cotenant.core.units import MIB_BYTES, parse_memory

    try:
        return None if text is None else parse_memory(text) * MIB_BYTES
    except ValueError as error:
        raise InputError(f"{option.opts[0]}: {error}") from None


def finite(_context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Rejects NaN and infinity, which click's ranges let through."""
    if value is not None and not math.isfinite(value):
        raise InputError(f"{option.opts[0]} {value}: expected a finite number")
    return value


def weights(_context: click.Context, option: click.Parameter, text: str) -> tuple[tuple[tuple[str, ...], float], ...]:
    """Converts `vision=2,vision/alice=3` into the weights of accounts."""
    found: dict[tuple[str, ...], float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, number = part.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not (name and 0 < weight < math.inf):
            raise InputError(f"{option.opts[0]} {part[:60]}: expected a name and a positive number, such as vision=2")
        found[tuple(name.split("/"))] = weight
    return tuple(found.items())


def complete_files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> "list[object]":
    """Lets the shell complete file names."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


class CommandOfWords(click.Command):
    """A command whose last argument is a command with words of its own: its options are not ours to complete."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        if ctx.params.get("command"):
            from click.shell_completion import CompletionItem

            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)


def complete_policies(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from cotenant.core.placement.policies import ORDERS

    return _last_of_list(incomplete, list(ORDERS))


def complete_queues(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from cotenant.core.placement.policies import QUEUES

    return _last_of_list(incomplete, list(QUEUES))


def complete_states(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from cotenant.wire.job_views import ENDED, ENDINGS, WAITING_OR_ACTIVE

    return _last_of_list(incomplete, [*WAITING_OR_ACTIVE, *ENDED, *ENDINGS])


def _last_of_list(incomplete: str, words: list[str]) -> list[str]:
    """Completes the last word of a list such as `queued,run`, with the words that are not in it yet."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{word}" for word in words if word.startswith(last) and word not in given]


def _complete_jobs(
    states: tuple[str, ...], _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    found = _fetch(f"/v1/jobs?state={','.join(states)}&limit=20000", "id", "name")
    return _starting_with(incomplete, found)


def _complete_gpus(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return _starting_with(incomplete, _fetch("/v1/gpus", "index", "uuid"))


def _starting_with(incomplete: str, names: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _fetch(path: str, *fields: str) -> list[str]:
    """These fields of every object that the daemon lists at a path; empty if it does not answer."""
    from cotenant.client.client import Client

    try:
        found = Client(COMPLETION_TIMEOUT_S).get(path, list[dict[str, object]])
    except CotenantError:
        return []
    return [str(one[field]) for field in fields for one in found]
