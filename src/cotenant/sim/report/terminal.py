# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The table that `cotenant simulate` prints at the end."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cotenant.sim.report.summary import Row, summarise
from cotenant.sim.results import Results
from cotenant.wire.text import counted

if TYPE_CHECKING:
    from rich.table import Table


def table(results: Results) -> "Table":
    """One row per policy: mean ± 95 % confidence interval over seeds, the best of each column in bold."""
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
    parts = ["Bold: best in its column."]
    if seeds > 1:
        parts.insert(0, f"Mean ± 95 % confidence interval over {seeds} seeds.")
    unplaceable = max((run.summary.get("unplaceable", 0.0) for run in results.runs), default=0.0)
    if unplaceable:
        parts.append(f"{counted(round(unplaceable), 'job')} did not fit even the empty cluster; not included.")
    if not results.complete:
        parts.append("Incomplete: the simulation was interrupted, so some runs are missing.")
    return " ".join(parts)
