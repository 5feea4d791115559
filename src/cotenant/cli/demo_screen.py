# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The progress of a demo: a live table on a terminal, one line for each event elsewhere."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cotenant.cli.output import or_dash
from cotenant.client.client import Client
from cotenant.client.http import at
from cotenant.wire.job_views import JobView, described_state
from cotenant.wire.text import printable
from cotenant.workloads.driving import Change

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

PROGRESS = re.compile(r" *(\d+)%  (.*)")
"""a progress line of a benchmark task: percentage, then its loss and speed"""


class TaskProgress:
    """The last progress line of each running job, read from its log."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._offsets: dict[str, int] = {}
        self._lines: dict[str, tuple[float, str]] = {}

    def of(self, job: str) -> tuple[float, str]:
        """The completed fraction of a job, and the rest of its progress line."""
        return self._lines.get(job, (0.0, ""))

    def update(self, job: str) -> None:
        """Reads the complete new lines of the job's log."""
        offset = self._offsets.get(job, 0)
        content = b"".join(self._client.lines(f"/v1/jobs/{at(job)}/log?offset={offset}"))
        self._offsets[job] = offset + content.rfind(b"\n") + 1
        for line in content[: content.rfind(b"\n") + 1].decode(errors="replace").splitlines():
            if found := PROGRESS.fullmatch(line):
                self._lines[job] = int(found[1]) / 100, printable(found[2])


class Lines:
    """Output for a file or a pipe: one line for each start and end of a job."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def show(self, changes: Sequence[Change], views: Mapping[str, JobView]) -> None:
        for change in changes:
            if change.event != "submitted":
                click.echo(f"{time.monotonic() - self._began:6.1f} s  {self._describe(change, views)}")

    def _describe(self, change: Change, views: Mapping[str, JobView]) -> str:
        view, life = views[change.life.job], change.life
        if change.event == "finished":
            return f"{view.name} ended ({life.state}), JCT {or_dash(life.jct, '{:.1f} s')}"
        beside = [
            other.name
            for other in views.values()
            if other.id != view.id and other.ended is None and set(other.gpus) & set(view.gpus)
        ]
        neighbours = f" next to {', '.join(beside)}" if beside else ""
        return f"{view.name} started on GPU {','.join(map(str, view.gpus))}{neighbours}"


class Screen:
    """Output for a terminal: a table that is redrawn in place."""

    def __init__(self, live: "Live", client: Client, title: str, total: int) -> None:
        self._live, self._client, self._title, self._total = live, client, title, total
        self._began = time.monotonic()
        self._progress = TaskProgress(client)

    def show(self, changes: Sequence[Change], views: Mapping[str, JobView]) -> None:
        for view in views.values():
            if view.state == "running":
                self._progress.update(view.id)
        self._live.update(self._table(list(views.values())), refresh=True)

    def _table(self, views: list[JobView]) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        ended = sum(view.ended is not None for view in views)
        head = f"{self._title}: {ended} of {self._total} ended, {time.monotonic() - self._began:.0f} s"
        drawn = Table(title=Text(head), title_justify="left", box=SIMPLE_HEAD, pad_edge=False, expand=True)
        for heading in ("Job", "State", "GPU", "Batch", "Speed"):
            drawn.add_column(heading, no_wrap=True)
        drawn.add_column("Work", width=16)
        drawn.add_column("Last output", no_wrap=True, overflow="ellipsis", ratio=1)
        for view in views:
            running = view.state == "running"
            fraction, line = self._progress.of(view.id)
            drawn.add_row(
                view.name,
                described_state(view),
                ",".join(map(str, view.gpus)) or "-",
                str(view.batch or "-"),
                or_dash(view.speed if running else None, "{:.0%}"),
                ProgressBar(total=1.0, completed=1.0 if view.outcome == "exited" else fraction, width=16),
                Text(line if running else ""),
                style=None if running else "dim",
            )
        return drawn


@contextmanager
def show_progress(client: Client, title: str, total: int) -> Iterator[Lines | Screen]:
    """Shows the progress of one part of the demo."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:
        click.echo(f"\n{title}")
        yield Lines()
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield Screen(live, client, title, total)
