# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How commands print: tables and progress bars for people, JSON and YAML for programs."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from cotenant.wire.text import printable

Columns = Sequence[tuple[str, Callable[[Any], str], bool]]
"""(heading, function from a row to its cell, whether the column appears only with --output wide)"""


def emit(value: object, output: str, columns: Columns, empty: str = "nothing to show") -> None:
    """Prints one value or a list of values, one table row for each."""
    rows = list(value) if isinstance(value, list | tuple) else [value]
    render(value, output, lambda wide: click.echo(table(rows, columns, wide) if rows else empty))


def render(value: object, output: str, draw: Callable[[bool], None]) -> None:
    """Prints a value in the chosen format; `draw(wide)` prints it as tables."""
    if output == "json":
        from msgspec import json

        click.echo(json.encode(value, order="deterministic"))
    elif output == "yaml":
        from msgspec import yaml

        click.echo(yaml.encode(value), nl=False)
    else:
        draw(output == "wide")


def print_error(text: str) -> None:
    """One line on standard error, in the form of all errors."""
    click.echo(f"cotenant: {printable(text)}", err=True)


def note(text: str) -> None:
    """One line on standard error that is no error."""
    click.echo(printable(text), err=True)


def write_output(piece: bytes) -> None:
    """Passes the output of a job on at once."""
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def table(rows: Sequence[Any], columns: Columns, wide: bool) -> str:
    """Formats rows as left-aligned columns, two spaces apart."""
    shown = [(heading, cell) for heading, cell, only_wide in columns if wide or not only_wide]
    cells = [[heading for heading, _ in shown], *[[printable(cell(row)) for _, cell in shown] for row in rows]]
    return "\n".join(aligned(cells))


def aligned(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    """Pads cells to the width of their column; every line has the same number of cells."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()


def cut(text: str, width: int) -> str:
    """Shortens text to `width` characters; an ellipsis marks the cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def or_dash(value: float | None, form: str) -> str:
    """Formats a value, or returns a dash if it is None: `or_dash(0.83, "{:.0%}")` is 83%."""
    return "-" if value is None else form.format(value)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Draws a progress bar if standard error is a terminal; call the yielded function after each step."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda what: bar.update(task, advance=1, description=what)
