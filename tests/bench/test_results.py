# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every published figure was measured: pages name only benchmarks with rows, and tables of figures agree with them."""

import re
from pathlib import Path

import pytest

from bench import ablation, replay
from bench.__main__ import discover
from bench.harness import BENCHMARKS
from bench.rows import HERE, Row, read
from cotenant.sim.studies.registry import STUDIES
from tests.docs.test_house import PAGES, named

ROWS = read()
FIELDS = {"bench", "name", "figure", "unit", "baseline", "target", "met", "note", "command", "commit", "date", "cpu"}
NUMBER = re.compile(r"(?<![\w.,-])-?\d*[.,]?\d+(?:\.\d+)?(?![\w.,])")
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def of(*benchmarks: str) -> list[Row]:
    return [row for row in ROWS if row["bench"] in benchmarks]


def named_in(text: str) -> list[str]:
    """The benchmarks that a text names: `make bench ONLY=a,b`, or [a] that is no link."""
    lists = re.findall(r"\bONLY=([a-z][a-z0-9,-]*[a-z0-9])", text)
    bracketed = re.findall(r"\[([a-z]+(?:-[a-z0-9]+)+)\](?![(\[:])", text)
    return [one for names in lists for one in names.split(",")] + [one for one in bracketed if one in BENCHMARKS]


def tables_in(page: str) -> list[tuple[list[str], str]]:
    """The tables of figures: the benchmarks that the header or the paragraph before it names, and the rows."""
    found = []
    for table in TABLE.finditer(page):
        lines = table.group().splitlines()
        before = page[: table.start()].rstrip().rpartition("\n\n")[2]
        benchmarks = named_in(lines[0]) or ([] if before.startswith("|") else named_in(before))
        if benchmarks and "Verified by" not in lines[0]:
            found.append((benchmarks, "\n".join(lines[2:])))
    return found


def agrees(text: str, rows: list[Row]) -> bool:
    """Whether a number is the figure or the baseline of a row, rounded as it is written."""
    digits = len(text.partition(".")[2])
    known = [float(row["figure"] or 0) for row in rows]
    known += [float(one) for row in rows for one in NUMBER.findall(str(row["baseline"]).replace(",", ""))]
    return any(abs(float(text.replace(",", "")) - one) <= 0.5 * 10**-digits * 1.001 for one in known)


@pytest.fixture(scope="module", autouse=True)
def _discovered() -> None:
    assert discover(HERE) == []


def test_every_row_says_how_and_when_it_was_measured() -> None:
    assert {frozenset(row) for row in ROWS} == {frozenset(FIELDS)}
    for row in ROWS:
        assert re.fullmatch(r"[0-9a-f]{12}\+?", str(row["commit"])), row
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", str(row["date"])), row
        assert row["command"] == f"make bench ONLY={row['bench']}"


UNMEASURED: dict[str, str] = {}
"""benchmarks without rows, and why; no page may name their figures"""


def test_every_row_is_of_a_benchmark_that_exists_and_every_benchmark_has_rows_or_a_reason() -> None:
    assert sorted({str(row["bench"]) for row in ROWS} | UNMEASURED.keys()) == sorted(BENCHMARKS)
    assert [row["bench"] for row in ROWS if row["bench"] in UNMEASURED] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_names_only_figures_that_were_measured(page: Path) -> None:
    assert [name for name in named_in(page.read_text()) if name != "name" and not of(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_table_of_figures_says_what_was_measured(page: Path) -> None:
    for benchmarks, table in tables_in(page.read_text()):
        for line in table.splitlines():
            for cell in line.strip("|").split("|")[1:]:
                for number in NUMBER.findall(cell):
                    assert agrees(number, of(*benchmarks)), f"no row of {', '.join(benchmarks)} has {number}: {line}"


TUNED = {42, 43, 44}
"""published orders of arrival on which the constants of `fragmentation` were chosen"""


def test_gains_over_fgd_are_measured_on_orders_that_nothing_was_tuned_on() -> None:
    for seeds in (replay.FRESH_SEEDS, replay.ONLINE_SEEDS, ablation.SEEDS, STUDIES["waits"].seeds):
        assert seeds
        assert TUNED.isdisjoint(seeds)
    page = (HERE.parent / "docs" / "explanation" / "fragmentation.md").read_text()
    drawn = re.findall(r"--order published --policy \S*fragmentation --seeds (\S+)", page)
    assert drawn == ["45-51"]


def test_the_ablation_is_the_one_that_was_measured_last() -> None:
    page = ablation.PAGE.read_text(encoding="utf-8")
    assert ablation.rewrite(page, ROWS) == page


def written(page: str, title: str) -> dict[str, tuple[str, str]]:
    """By `part: name`, the value and the baseline that the page of results has in the tables of a study."""
    section = page.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    found: dict[str, tuple[str, str]] = {}
    part, columns = "", [""]
    for line in section.splitlines():
        if line.startswith("### "):
            part = line.removeprefix("### ")
        elif line.startswith("|  |"):
            columns = [cell.strip() for cell in line.strip("|").split("|")]
        elif line.startswith("|") and not line.startswith("| ---"):
            cells = dict(zip(columns, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
            found[f"{part}: {cells['']}"] = cells["Value"], cells.get("Baseline", "")
    return found


@pytest.mark.parametrize("study", STUDIES)
def test_the_page_of_results_has_the_rows_of_the_last_run(study: str) -> None:
    page = (HERE.parent / "docs" / "results.md").read_text()
    rows = {str(row["name"]): row for row in of(study)}
    found = written(page, STUDIES[study].title)
    assert found.keys() == rows.keys()
    for name, (value, baseline) in found.items():
        number = value.split()[0]
        assert float(number) == round(float(rows[name]["figure"] or 0), len(number.partition(".")[2])), name
        assert baseline == (rows[name]["baseline"] or ""), name
    assert STUDIES[study].about in page


@pytest.mark.parametrize("study", STUDIES)
def test_the_page_of_results_has_the_command_that_repeats_a_study(study: str) -> None:
    page = (HERE.parent / "docs" / "results.md").read_text()
    section = page.split(f"\n## {STUDIES[study].title}\n", 1)[1].split("\n## ", 1)[0]
    first, last = STUDIES[study].seeds[0], STUDIES[study].seeds[-1]
    assert f"Seeds {first}–{last}: `cotenant experiment {study} --seeds {first}-{last}`." in section
