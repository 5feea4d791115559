# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How far a command is, for whoever is looking."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(doing: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error where that is a terminal; tell it what was done."""
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
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda what: bar.update(task, advance=1, description=what)
