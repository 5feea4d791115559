# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant experiment`: the studies behind our published figures, by anyone who wants to see them again."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cotenant.cli.options import folder_option, output_option, processes_option
from cotenant.cli.progress import progress
from cotenant.cli.report_folder import check_writable
from cotenant.cli.simulate import data_folder, seeds
from cotenant.wire.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cotenant.sim.studies.study import Outcome, Sample, Study, Task

ALL = "all"
NAMES = ("gavel-fifo", "place", "predict", "tune-grid")

EPILOG = """\b
Examples:
  cotenant experiment place
  cotenant experiment tune-grid --seeds 0-19 --out report
  cotenant experiment all --out report
"""


def seeds_or_none(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    return None if text is None else seeds(context, option, text)


@click.command(epilog=EPILOG)
@click.argument("names", nargs=-1, metavar="[NAME]…", type=click.Choice([*NAMES, ALL]))
@click.option(
    "--seeds",
    "seed_numbers",
    metavar="100-109",
    callback=seeds_or_none,
    help="Seeds of everything that is drawn. Default: those of the published figures.",
)
@folder_option("Folder for report.html, report.md, results.json and runs.csv.")
@processes_option
@output_option
def experiment(
    names: tuple[str, ...], seed_numbers: tuple[int, ...] | None, out: Path | None, processes: int, output: str
) -> None:
    """Runs studies over seeds, with confidence intervals, tables and plots; without a name, lists them."""

    from cotenant.sim.studies.registry import STUDIES
    from cotenant.sim.traces.registry import data_folder as checked

    if not names:
        _list(STUDIES, output)
        return
    data = checked("an experiment", data_folder())
    if out is not None:
        check_writable(out)
    chosen = list(STUDIES) if ALL in names else list(dict.fromkeys(names))
    outcomes = [_conduct(name, STUDIES[name], seed_numbers, data, processes) for name in chosen]
    command = printable(shlex.join(["cotenant", *sys.argv[1:]]))
    if out is not None:
        from cotenant.sim.studies.report import write

        write(outcomes, command, out)
    _show(outcomes, command, output)


def _conduct(name: str, study: "Study", seed_numbers: tuple[int, ...] | None, data: Path, processes: int) -> "Outcome":
    from cotenant.sim.studies.study import conduct

    chosen = study.seeds if seed_numbers is None else seed_numbers
    with progress(name, len(study.tasks(chosen))) as advance:

        def finished(one: "tuple[Task, Sample]") -> None:
            task = one[0]
            advance(f"{task.part}: {task.who}, seed {task.seed}")

        return conduct(name, study, chosen, data, processes, finished)


def _list(studies: "Mapping[str, Study]", output: str) -> None:
    from cotenant.cli.show import emit
    from cotenant.sim.report.page import spans

    rows = [{"name": name, "title": study.title, "seeds": list(study.seeds)} for name, study in studies.items()]
    columns = (
        ("NAME", lambda row: row["name"], False),
        ("SEEDS", lambda row: spans(row["seeds"]), False),
        ("WHAT", lambda row: row["title"], False),
    )
    emit(rows, output, columns)


def _show(outcomes: "Sequence[Outcome]", command: str, output: str) -> None:
    from cotenant.cli.show import render
    from cotenant.sim.studies.report import document

    render(document(outcomes, command), output, lambda wide: _draw(outcomes, wide))


def _draw(outcomes: "Sequence[Outcome]", wide: bool) -> None:
    """A table for each part of each study; the notes only where there is room."""
    from cotenant.cli.show import aligned
    from cotenant.sim.studies.report import tables

    for outcome in outcomes:
        click.echo(f"{outcome.title}\n")
        for part, (headings, rows) in tables(outcome, notes=wide).items():
            click.echo("\n".join(aligned([(part, *headings[1:]), *rows])) + "\n")
    held = [finding for outcome in outcomes for finding in outcome.findings if finding.met is not None]
    click.echo(f"{sum(finding.met is True for finding in held)} of {len(held)} targets met")
