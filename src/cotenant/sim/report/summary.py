# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The summary of all runs: one row per policy, and the table that `cotenant simulate` prints at the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cotenant.sim.report.paired import parts_from_all, value_of
from cotenant.sim.report.stats import Estimate, by_policy, estimate
from cotenant.sim.results import Results, RunResult
from cotenant.wire.text import counted

if TYPE_CHECKING:
    from rich.table import Table


Kind = Literal["percent", "seconds", "count"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the summary: its key, its headings, its unit, and which direction is better."""

    key: str
    title: str
    short: tuple[str, ...]
    """heading in the terminal, one string per line; empty: not shown there"""
    kind: Kind
    better: Literal["high", "low"] | None


@dataclass(frozen=True, slots=True)
class Cell:
    """A mean and its interval as text; `spread` is empty with one seed."""

    mean: str
    spread: str
    best: bool


@dataclass(frozen=True, slots=True)
class Heading:
    """A column's title, in full and in short, and its unit."""

    title: str
    short: tuple[str, ...]
    unit: str


@dataclass(frozen=True, slots=True)
class Row:
    """One policy."""

    policy: str
    seeds: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """The whole table."""

    headings: tuple[Heading, ...]
    rows: tuple[Row, ...]


COLUMNS = {
    "fill": (
        Column("allocated_at_100", "Allocated at 100 % arrived", ("Allocated", "at 100 %"), "percent", "high"),
        Column("unallocated_at_100", "Unallocated at 100 % arrived", ("Unallocated", "at 100 %"), "percent", "low"),
        Column("fragmented_at_100", "Fragmented at 100 % arrived", ("Fragmented", "at 100 %"), "percent", "low"),
        Column("allocated", "Allocated at the end", ("Allocated", "at the end"), "percent", "high"),
        Column("rejected", "Rejected", ("Rejected",), "count", "low"),
    ),
    "timed": (
        Column("jobs", "Jobs", ("Jobs",), "count", None),
        Column("mean_wait", "Mean wait", ("Mean", "wait"), "seconds", "low"),
        Column("p95_wait", "95th percentile wait", ("p95", "wait"), "seconds", "low"),
        Column("mean_jct", "Mean JCT", ("Mean", "JCT"), "seconds", "low"),
        Column("median_jct", "Median JCT", (), "seconds", "low"),
        Column("p95_jct", "95th percentile JCT", ("p95", "JCT"), "seconds", "low"),
        Column("makespan", "Makespan", ("Make-", "span"), "seconds", "low"),
        Column("utilisation", "Utilisation", ("Used",), "percent", "high"),
        Column("fragmented", "Fragmented", ("Frag-", "mented"), "percent", "low"),
        Column("preemptions", "Preemptions", ("Pre-", "empted"), "count", "low"),
    ),
}

BOLD = "Bold: better than every other policy; the interval of each paired difference excludes 0."
VARY = "--vary arrivals makes them differ"
_TIME_UNITS = ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (720_000.0, 3600.0, "h"), (float("inf"), 86400.0, "d"))


def summarise(results: Results) -> Summary:
    """Mean and 95 % interval over seeds of every metric; the best of each column is marked, if it is certain."""
    policies = by_policy(results)
    headings: list[Heading] = []
    columns: list[list[Cell]] = []
    for column in COLUMNS[results.mode]:
        estimates = [estimate(_values(runs, column.key)) for runs in policies.values()]
        heading, cells = _column(column, estimates, list(policies.values()))
        headings.append(heading)
        columns.append(cells)
    rows = (
        Row(policy, len(runs), tuple(cells[index] for cells in columns))
        for index, (policy, runs) in enumerate(policies.items())
    )
    return Summary(tuple(headings), tuple(rows))


def time_unit(largest: float) -> tuple[float, str]:
    """The unit in which `largest` seconds are readable: seconds per unit, and its name."""
    return next((seconds, name) for below, seconds, name in _TIME_UNITS if largest < below)


def _values(runs: Sequence[RunResult], key: str) -> list[float]:
    return [value for run in runs if (value := value_of(run, key)) is not None]


def _column(
    column: Column, estimates: Sequence[Estimate | None], runs: Sequence[Sequence[RunResult]]
) -> tuple[Heading, list[Cell]]:
    known = [value for value in estimates if value is not None]
    largest = max((abs(value.mean) for value in known), default=0.0)
    scale, unit = unit_of(column.kind, largest)
    digits = _digits(column.kind, known, largest / scale)
    means = [None if value is None else f"{value.mean / scale:,.{digits}f}" for value in estimates]
    best = _best(column, means, estimates, runs)
    cells = []
    for place, (value, mean) in enumerate(zip(estimates, means, strict=True)):
        constant = value is None or value.half is None or (column.kind == "count" and value.half == 0)
        spread = "" if value is None or constant else f"±{(value.half or 0.0) / scale:,.{digits}f}"
        cells.append(Cell(mean or "–", spread, place == best))
    return Heading(column.title, column.short, unit), cells


def unit_of(kind: Kind, largest: float) -> tuple[float, str]:
    """By what values are divided to be readable, and the unit that they have then."""
    if kind == "seconds":
        return time_unit(largest)
    return 1.0, "%" if kind == "percent" else ""


def _digits(kind: Kind, known: Sequence[Estimate], largest: float) -> int:
    if kind == "percent":
        return 2
    if kind == "count":
        return 0 if all(value.mean.is_integer() for value in known) and not any(v.half for v in known) else 1
    return 2 if largest < 100 else 1


def _best(
    column: Column,
    means: Sequence[str | None],
    estimates: Sequence[Estimate | None],
    runs: Sequence[Sequence[RunResult]],
) -> int | None:
    """The place of the best policy, if it differs from every other one by more than chance explains."""
    known = [(value.mean, place) for place, value in enumerate(estimates) if value is not None]
    if column.better is None or len(known) < 2:
        return None
    _, winner = max(known) if column.better == "high" else min(known)
    others = [place for _, place in known if place != winner]
    if any(means[place] == means[winner] for place in others):
        return None  # what looks equal is not marked
    return winner if parts_from_all(runs[winner], [runs[place] for place in others], column.key) else None


def varies(results: Results) -> bool:
    """Whether the runs of some policy differ between seeds."""
    return any(len({tuple(sorted(run.summary.items())) for run in runs}) > 1 for runs in by_policy(results).values())


def table(results: Results) -> "Table":
    """One row per policy: mean ± 95 % confidence interval over seeds; bold as in `BOLD`."""
    # Imported here because rich takes longer to import than a small simulation takes to run.
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    summary = summarise(results)
    drawn = Table(
        title=Text(f"{results.trace} on {counted(results.nodes, 'node')} with {counted(results.gpus, 'GPU')}"),
        caption=Text(_caption(results, max((row.seeds for row in summary.rows), default=0))),
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title_justify="left",
        caption_justify="left",
    )
    drawn.add_column("Policy", no_wrap=True, overflow="ellipsis")
    # With many columns every interval goes below its mean, or the terminal would wrap only some of them.
    shown = [i for i, heading in enumerate(summary.headings) if not _is_hidden(heading.short, summary.rows, i)]
    between = "\n" if len(shown) > 4 else " "
    for heading in (summary.headings[i] for i in shown):
        unit = f"\n({heading.unit})" if heading.unit else ""
        drawn.add_column(Text("\n".join(heading.short) + unit), justify="right", overflow="fold")
    for row in summary.rows:
        cells = (
            Text.assemble(
                (cell.mean, "bold" if cell.best else ""), (between + cell.spread if cell.spread else "", "dim")
            )
            for cell in (row.cells[i] for i in shown)
        )
        drawn.add_row(Text(row.policy), *cells)
    return drawn


def _is_hidden(short: tuple[str, ...], rows: Sequence[Row], column: int) -> bool:
    """Whether a column is hidden to save width: it is for files only, or all its values are 0."""
    return not short or all(row.cells[column].mean in ("0", "0.0") for row in rows)


def _caption(results: Results, seeds: int) -> str:
    parts = ["One seed: differences may be chance (--seeds 42-46 runs more)."]
    if seeds > 1:
        parts = [f"Mean ± 95 % confidence interval over {seeds} seeds.", BOLD]
    if seeds > 1 and not varies(results):
        parts = [f"All {seeds} seeds gave the same results ({VARY})."]
    unplaceable = max((run.summary.get("unplaceable", 0.0) for run in results.runs), default=0.0)
    if unplaceable:
        parts.append(f"{counted(round(unplaceable), 'job')} did not fit even the empty cluster; not included.")
    if not results.complete:
        parts.append("Incomplete: the simulation was interrupted, so some runs are missing.")
    parts.append(f"cotenant {results.cotenant}.")
    return " ".join(parts)
