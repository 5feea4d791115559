# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a demo shows while it runs: a live table on a terminal, a line for each event elsewhere."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cotenant.cli.client import Client, at
from cotenant.cli.jobs import described_state
from cotenant.cli.show import known
from cotenant.wire.local import JobView
from cotenant.wire.text import printable
from cotenant.workloads.driving import Change

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

PROGRESS = re.compile(r" *(\d+)%  (.*)")
"""as tasks print it"""


class Words:
    """What each running job printed last about its progress."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._read: dict[str, int] = {}
        self._heard: dict[str, tuple[float, str]] = {}

    def of(self, job: str) -> tuple[float, str]:
        """How much of its work is done, and the rest of the line."""
        return self._heard.get(job, (0.0, ""))

    def hear(self, job: str) -> None:
        offset = self._read.get(job, 0)
        content = b"".join(self._client.lines(f"/v1/jobs/{at(job)}/log?offset={offset}"))
        self._read[job] = offset + content.rfind(b"\n") + 1
        for line in content[: content.rfind(b"\n") + 1].decode(errors="replace").splitlines():
            if found := PROGRESS.fullmatch(line):
                self._heard[job] = int(found[1]) / 100, printable(found[2])


class Lines:
    """For a file or a pipe: what happened, when it happened."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def show(self, changes: Sequence[Change], views: Mapping[str, JobView]) -> None:
        for change in changes:
            if change.event != "submitted":
                click.echo(f"{time.monotonic() - self._began:6.1f} s  {self._said(change, views)}")

    def _said(self, change: Change, views: Mapping[str, JobView]) -> str:
        view, life = views[change.life.job], change.life
        if change.event == "finished":
            return f"{view.name} ended ({life.state}), JCT {known(life.jct, '{:.1f} s')}"
        beside = [
            other.name
            for other in views.values()
            if other.id != view.id and other.ended is None and set(other.gpus) & set(view.gpus)
        ]
        company = f" beside {', '.join(beside)}" if beside else ""
        return f"{view.name} started on GPU {','.join(map(str, view.gpus))}{company}"


class Screen:
    """For a terminal: one table that is drawn anew."""

    def __init__(self, live: "Live", client: Client, title: str, total: int) -> None:
        self._live, self._client, self._title, self._total = live, client, title, total
        self._began = time.monotonic()
        self._words = Words(client)

    def show(self, changes: Sequence[Change], views: Mapping[str, JobView]) -> None:
        for view in views.values():
            if view.state == "running":
                self._words.hear(view.id)
        self._live.update(self._drawn(list(views.values())), refresh=True)

    def _drawn(self, views: list[JobView]) -> "Table":
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
        drawn.add_column("It says", no_wrap=True, overflow="ellipsis", ratio=1)
        for view in views:
            running = view.state == "running"
            share, words = self._words.of(view.id)
            drawn.add_row(
                view.name,
                described_state(view),
                ",".join(map(str, view.gpus)) or "-",
                str(view.batch or "-"),
                known(view.speed if running else None, "{:.0%}"),
                ProgressBar(total=1.0, completed=1.0 if view.outcome == "exited" else share, width=16),
                Text(words if running else ""),
                style=None if running else "dim",
            )
        return drawn


@contextmanager
def stage(client: Client, title: str, total: int) -> Iterator[Lines | Screen]:
    """Shows one part of the demo, from its first job to its last."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:
        click.echo(f"\n{title}")
        yield Lines()
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield Screen(live, client, title, total)
