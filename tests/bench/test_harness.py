# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The bench framework itself: rows are kept, crashes are contained, measures mean what they say."""

import json
import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest

from bench.__main__ import main, run
from bench.harness import BENCHMARKS, Figure, at_least, at_most, benchmark, cpu_seconds, in_fresh_process, p99
from bench.rows import keep


def two_figures() -> Iterator[Figure]:
    yield at_most("time", 1.0, "s", limit=1.5, baseline="elsewhere 23")
    yield at_least("share", 80.0, "%", limit=90.0)


def dies_after_one_figure() -> Iterator[Figure]:
    yield Figure(name="first", figure=1.0, unit="s")
    raise RuntimeError("the second was never measured")


def hold_mebibytes(count: int) -> int:
    return len(b"x" * (count * 1024 * 1024))


def hush(_: str) -> None:
    """Print nothing."""


def rows_of(results: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(results.read_text())
    return rows


def test_a_percentile_of_few_is_never_more_than_the_worst() -> None:
    assert p99([1.0] * 20 + [2.0]) == pytest.approx(1.8)
    assert p99([float(one) for one in range(1, 1001)]) == pytest.approx(990, abs=1)


def test_a_figure_says_whether_its_target_is_met() -> None:
    assert [figure.met for figure in two_figures()] == [True, False]
    assert [figure.target for figure in two_figures()] == ["<= 1.5", ">= 90"]


def test_a_row_names_its_command_commit_date_and_cpu(tmp_path: Path) -> None:
    run({"pair": two_figures}, tmp_path / "results.json", hush)
    row = rows_of(tmp_path / "results.json")[0]
    assert re.fullmatch(r"[0-9a-f]{12}\+?|unknown", str(row.pop("commit")))
    assert abs(date.fromisoformat(str(row.pop("date"))) - date.today()) <= timedelta(days=1)
    assert re.fullmatch(r"\S.*, \d+ cores", str(row.pop("cpu")))
    assert row == {
        "bench": "pair",
        "name": "time",
        "figure": 1.0,
        "unit": "s",
        "baseline": "elsewhere 23",
        "target": "<= 1.5",
        "met": True,
        "note": "",
        "command": "make bench ONLY=pair",
    }


def test_a_part_of_a_benchmark_replaces_only_its_own_rows(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    run({"pair": two_figures}, results, hush)
    keep(results, "pair", [at_least("share", 95.0, "%", limit=90.0)], part=True)
    assert [(row["name"], row["figure"]) for row in rows_of(results)] == [("time", 1.0), ("share", 95.0)]


def test_rows_of_benchmarks_that_did_not_run_are_kept(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    run({"b": two_figures}, results, hush)
    run({"a": two_figures}, results, hush)
    run({"b": two_figures}, results, hush)
    assert [row["bench"] for row in rows_of(results)] == ["a", "a", "b", "b"]


def test_a_crash_is_told_and_the_others_still_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.json"
    figures, crashed = run({"dies": dies_after_one_figure, "lives": two_figures}, results, hush)
    assert crashed == ["dies"]
    assert [figure.name for figure in figures] == ["first", "time", "share"]
    assert "the second was never measured" in capsys.readouterr().err
    assert [row["bench"] for row in rows_of(results)] == ["dies", "lives", "lives"]


def test_two_benchmarks_cannot_share_a_name() -> None:
    name = "taken by this test"
    benchmark(name)(two_figures)
    try:
        with pytest.raises(ValueError, match=name):
            benchmark(name)(two_figures)
    finally:
        del BENCHMARKS[name]


def test_an_unknown_name_is_one_line_and_exit_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nonsense"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_cpu_time_is_the_median_of_the_runs() -> None:
    assert 0.0 < cpu_seconds(lambda: sum(range(100_000)), repeats=3) < 5.0


def test_peak_memory_is_that_of_the_function_alone() -> None:
    ballast = b"x" * (200 * 1024 * 1024)  # in this process: must not count
    usage = in_fresh_process(hold_mebibytes, 60)
    assert usage.result == 60 * 1024 * 1024
    assert 60.0 < usage.peak_mib < 180.0
    assert len(ballast) == 200 * 1024 * 1024
