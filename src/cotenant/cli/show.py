# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How commands print: tables for people, JSON and YAML for programs."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
import msgspec

from cotenant.wire.text import printable

Columns = Sequence[tuple[str, Callable[[Any], str], bool]]
"""heading, cell, and whether it is shown only with --output wide"""


def emit(value: object, output: str, columns: Columns, empty: str = "nothing to show") -> None:
    """Prints one value or a list of them, a row each."""
    rows = list(value) if isinstance(value, list | tuple) else [value]
    render(value, output, lambda wide: click.echo(table(rows, columns, wide) if rows else empty))


def render(value: object, output: str, draw: Callable[[bool], None]) -> None:
    """Prints a value in the way asked for; `draw` prints it for people, told whether there is room for more."""
    if output == "json":
        click.echo(msgspec.json.encode(value, order="deterministic"))
    elif output == "yaml":
        from msgspec import yaml

        click.echo(yaml.encode(value), nl=False)
    else:
        draw(output == "wide")


def table(rows: Sequence[Any], columns: Columns, wide: bool) -> str:
    """Left-aligned columns, two spaces between."""
    shown = [(heading, cell) for heading, cell, only_wide in columns if wide or not only_wide]
    cells = [[heading for heading, _ in shown], *[[printable(cell(row)) for _, cell in shown] for row in rows]]
    return "\n".join(aligned(cells))


def aligned(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    """Cells of equal number in each line, padded to columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()


def cut(text: str, width: int) -> str:
    """At most so many letters, the last one a sign that there were more."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def known(value: float | None, form: str) -> str:
    """`known(0.83, "{:.0%}")`, or a dash where nothing is known."""
    return "-" if value is None else form.format(value)


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
