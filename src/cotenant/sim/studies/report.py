# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The report of studies: HTML and Markdown for people, JSON and CSV for programs; each has the command that made it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec

from cotenant.sim.report.files import csv_bytes, replace_files, report_write_errors
from cotenant.sim.report.page import spans, template
from cotenant.sim.studies.study import Finding, Outcome

SCHEMA_VERSION = 1
NOTE = "Note"
HEADINGS = ("", "Value", "Baseline", "Target", "Met", NOTE)
MET = {True: "yes", False: "no", None: ""}
DIGITS = {"of speed": 4}
"""unit -> decimals, if two are not enough"""
PREFACE = (
    "This page was written by the command below; `cotenant experiment` lists the studies. Values "
    "are means over seeds ± half of the 95 % confidence interval (Student's t)."
)


class Table(NamedTuple):
    """Headings and rows, as text."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def write(outcomes: Sequence[Outcome], command: str, folder: Path) -> None:
    """Writes report.html, report.md, results.json and runs.csv; all of them or none."""
    contents = {
        "report.html": page(outcomes, command).encode(),
        "report.md": text(outcomes, command).encode(),
        "results.json": msgspec.json.encode(document(outcomes, command), order="sorted") + b"\n",
        "runs.csv": csv_bytes(_runs(outcomes)),
    }
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace_files(folder, contents)


def document(outcomes: Sequence[Outcome], command: str) -> dict[str, object]:
    """All outcomes as plain values."""
    return {"schema": SCHEMA_VERSION, "command": command, "studies": [_plain(outcome) for outcome in outcomes]}


def page(outcomes: Sequence[Outcome], command: str) -> str:
    """The HTML report, one self-contained file."""
    return template("studies.html").render(outcomes=outcomes, command=command, tables=tables, spans=spans)


def text(outcomes: Sequence[Outcome], command: str) -> str:
    """The tables in Markdown."""
    parts = ["# Results", PREFACE, f"```\n{command}\n```"]
    for outcome in outcomes:
        parts += [f"## {outcome.title}", outcome.about, _alone(outcome)]
        for part, (headings, rows) in tables(outcome).items():
            lines = [f"| {' | '.join(cells)} |" for cells in (headings, ("---",) * len(headings), *rows)]
            parts += [f"### {part}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _alone(outcome: Outcome) -> str:
    """The seeds of a study, and the command that repeats this study alone."""
    seeds = spans(list(outcome.seeds))
    return f"Seeds {seeds}: `cotenant experiment {outcome.study} --seeds {seeds.replace('–', '-').replace(' ', '')}`."


def tables(outcome: Outcome, *, notes: bool = True) -> dict[str, Table]:
    """One table for each part of a study, without empty columns."""
    found = {}
    for part, findings in groupby(outcome.findings, key=lambda finding: finding.part):
        columns = list(zip(HEADINGS, *map(_cells, findings), strict=True))
        shown = [column for column in columns if any(column[1:]) and (notes or column[0] != NOTE)]
        headings, *rows = zip(*shown, strict=True)
        found[part] = Table(headings, rows)
    return found


def _cells(finding: Finding) -> tuple[str, ...]:
    """One row, in the order of `HEADINGS`."""
    digits = DIGITS.get(finding.unit, 2)
    spread = "" if finding.half is None else f" ± {finding.half:.{digits}f}"
    value = f"{finding.value:.{digits}f}{spread} {finding.unit}"
    return finding.name, value, finding.beside, finding.target or "", MET[finding.met], finding.note


def _plain(outcome: Outcome) -> dict[str, object]:
    return {
        "study": outcome.study,
        "title": outcome.title,
        "seeds": outcome.seeds,
        "findings": [asdict(finding) for finding in outcome.findings],
        "runs": [task._asdict() | asdict(sample) for task, sample in outcome.samples.items()],
    }


def _runs(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    yield ["study", "part", "who", "seed", "quantity", "value"]
    for outcome in outcomes:
        for task, sample in outcome.samples.items():
            for name, value in sample.numbers.items():
                yield [outcome.study, task.part, task.who, str(task.seed), name, repr(float(value))]
