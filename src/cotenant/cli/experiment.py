# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant experiment`: reruns the studies behind the published results."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cotenant.cli.options import folder_option, output_option, processes_option
from cotenant.cli.output import progress
from cotenant.cli.simulate import check_writable, data_folder, seeds
from cotenant.errors import InputError
from cotenant.wire.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cotenant.sim.studies.study import Outcome, Sample, Study, Task

ALL = "all"

EPILOG = """\b
Examples:
  cotenant experiment place
  cotenant experiment tune-grid --seeds 0-19 --out report
  cotenant experiment all --out report
"""


def seeds_or_none(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    return None if text is None else seeds(context, option, text)


def study_names(_context: click.Context, _argument: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Checks the names of studies against the registry, which is imported only when the command runs."""
    from cotenant.sim.studies.registry import STUDIES

    unknown = [name for name in names if name not in (*STUDIES, ALL)]
    if unknown:
        raise InputError(f"unknown study {unknown[0][:40]!r}; expected some of {', '.join((*STUDIES, ALL))}")
    return tuple(STUDIES) if ALL in names else tuple(dict.fromkeys(names))


def complete_studies(_context: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    from cotenant.sim.studies.registry import STUDIES

    return [name for name in (*STUDIES, ALL) if name.startswith(incomplete)]


@click.command(epilog=EPILOG)
@click.argument("names", nargs=-1, metavar="[NAME|all]…", callback=study_names, shell_complete=complete_studies)
@click.option(
    "--seeds",
    "seed_numbers",
    metavar="100-109",
    callback=seeds_or_none,
    help="Random seeds. Default: those of the published results.",
)
@folder_option("Folder for report.html, report.md, results.json and runs.csv.")
@processes_option
@output_option
def experiment(
    names: tuple[str, ...], seed_numbers: tuple[int, ...] | None, out: Path | None, processes: int, output: str
) -> None:
    """Runs studies over several seeds, and prints means with 95 % confidence intervals beside their targets. Without a
    name, lists the studies. Needs the public data (COTENANT_DATA)."""
    from cotenant.sim.studies.registry import STUDIES
    from cotenant.sim.traces.registry import data_folder as checked

    if not names:
        _list(STUDIES, output)
        return
    data = checked("an experiment", data_folder())
    if out is not None:
        check_writable(out)
    outcomes = [_run_study(name, STUDIES[name], seed_numbers, data, processes) for name in names]
    command = printable(shlex.join(["cotenant", *sys.argv[1:]]))
    if out is not None:
        from cotenant.sim.studies.report import write

        write(outcomes, command, out)
    _show(outcomes, command, output)


def _run_study(
    name: str, study: "Study", seed_numbers: tuple[int, ...] | None, data: Path, processes: int
) -> "Outcome":
    from cotenant.sim.studies.study import run_study

    chosen = study.seeds if seed_numbers is None else seed_numbers
    with progress(name, len(study.tasks(chosen))) as advance:

        def finished(one: "tuple[Task, Sample]") -> None:
            task = one[0]
            advance(f"{task.part}: {task.who}, seed {task.seed}")

        return run_study(name, study, chosen, data, processes, finished)


def _list(studies: "Mapping[str, Study]", output: str) -> None:
    from cotenant.cli.output import emit
    from cotenant.sim.report.page import spans

    rows = [{"name": name, "title": study.title, "seeds": list(study.seeds)} for name, study in studies.items()]
    columns = (
        ("NAME", lambda row: row["name"], False),
        ("SEEDS", lambda row: spans(row["seeds"]), False),
        ("TITLE", lambda row: row["title"], False),
    )
    emit(rows, output, columns)


def _show(outcomes: "Sequence[Outcome]", command: str, output: str) -> None:
    from cotenant.cli.output import render
    from cotenant.sim.studies.report import document

    render(document(outcomes, command), output, lambda wide: _draw(outcomes, wide))


def _draw(outcomes: "Sequence[Outcome]", wide: bool) -> None:
    """Prints one table for each part of each study; the notes only with --output wide."""
    from cotenant.cli.output import aligned
    from cotenant.sim.studies.report import tables

    for outcome in outcomes:
        click.echo(f"{outcome.title}\n")
        for part, (headings, rows) in tables(outcome, notes=wide).items():
            click.echo("\n".join(aligned([(part, *headings[1:]), *rows])) + "\n")
    judged = [finding for outcome in outcomes for finding in outcome.findings if finding.met is not None]
    click.echo(f"{sum(finding.met is True for finding in judged)} of {counted(len(judged), 'target')} met")
