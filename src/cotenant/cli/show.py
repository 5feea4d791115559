# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How commands print: one table for people, JSON and YAML for programs."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., object])
Columns = Sequence[tuple[str, Callable[[Any], str], bool]]
"""heading, cell, and whether it is shown only with --output wide"""


def output_option(command: F) -> F:
    """`--output table|wide|json|yaml`."""
    return _output("table", "wide", "json", "yaml")(command)


def table_or_json_option(command: F) -> F:
    """`--output table|json`."""
    return _output("table", "json")(command)


def _output(*kinds: str) -> Callable[[F], F]:
    return click.option(
        "--output",
        "-o",
        type=click.Choice(kinds),
        default="table",
        show_default=True,
        help="What to print: tables for people, the rest for programs.",
    )


def emit(value: object, output: str, columns: Columns, empty: str = "nothing to show") -> None:
    """Prints one value or a list of them."""
    if output == "json":
        click.echo(msgspec.json.encode(value).decode())
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False), nl=False)
    else:
        rows = list(value) if isinstance(value, list | tuple) else [value]
        click.echo(table(rows, columns, output == "wide") if rows else empty)


def table(rows: Sequence[Any], columns: Columns, wide: bool) -> str:
    """Left-aligned columns, two spaces between."""
    shown = [(heading, cell) for heading, cell, only_wide in columns if wide or not only_wide]
    cells = [[heading for heading, _ in shown], *[[printable(cell(row)) for _, cell in shown] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def printable(text: str) -> str:
    """Text that cannot move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def ago(then: float | None, now: float | None = None) -> str:
    """How long ago, or how long: `45s`, `12m`, `3h05m`, `2d`."""
    if then is None:
        return "-"
    seconds = max(0, int((time.time() if now is None else now) - then))
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 7200:
        return f"{seconds // 60}m"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02}m" if seconds < 172_800 else f"{seconds // 86_400}d"
