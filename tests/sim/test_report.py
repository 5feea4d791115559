# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reports: the same numbers in every format, safe to open, and never half-written."""

import csv
import io
import json
import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cotenant import __version__
from cotenant.errors import InputError
from cotenant.sim.report import read, table, write
from cotenant.sim.report.axes import elapsed, linear, log_time, step_125
from cotenant.sim.report.charts import figures
from cotenant.sim.report.files import replace_files
from cotenant.sim.report.page import render, spans
from cotenant.sim.report.paired import difference
from cotenant.sim.report.plots import encode
from cotenant.sim.report.stats import estimate, level_curve, student_t, time_curve
from cotenant.sim.report.summary import summarise
from cotenant.sim.results import HeatMap, Results, RunResult

SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)
POLICIES = {"fragmentation": 3.9, "fgd": 4.8, "bestfit": 7.1, "dotprod": 8.6, "packing": 6.2, "random": 13.0}


def heat_map(end: float, level: float, generator: np.random.Generator) -> HeatMap:
    columns = np.linspace(0.0, end, 160, endpoint=False)
    thresholds = np.linspace(0.0, 1.0, 64)[:, None] * 0.9
    full = np.clip(140 * (columns / end - thresholds) + generator.normal(0, level, (64, 160)), 0, 100)
    rows = [f"GPU {16 * row}–{16 * row + 15}" for row in range(64)]
    return HeatMap(columns=columns.tolist(), rows=rows, values=full.round(2).tolist())


def fill_run(policy: str, seed: int) -> RunResult:
    generator = np.random.default_rng([seed, len(policy)])
    lost = POLICIES.get(policy, 5.0) + generator.normal(0, 0.25)
    arrived = np.linspace(0.0, 130.0, 521)
    # a smooth minimum of what arrived and what the policy can reach
    allocated = 100 - lost * 0.8 - np.logaddexp(0, (100 - lost * 0.8 - arrived) / 1.6) * 1.6
    fragmented = lost * np.exp(-(((arrived - 100) / 38) ** 2)) + generator.normal(0, 0.05, 521).cumsum() * 0.05
    at_100 = float(np.interp(100, arrived, allocated))
    return RunResult(
        policy=policy,
        seed=seed,
        summary={
            "rejected": float(generator.integers(2000, 3000)),
            "placed": 8000.0,
            "allocated_at_100": at_100,
            "fragmented_at_100": float(np.interp(100, arrived, fragmented)),
            "allocated": float(allocated[-1]),
            "fragmented": float(fragmented[-1]),
        },
        series={
            "arrived": arrived.tolist(),
            "allocated": np.maximum(allocated, 0).tolist(),
            "fragmented": np.maximum(fragmented, 0).tolist(),
        },
        heat=heat_map(130.0, POLICIES.get(policy, 5.0), generator),
    )


def timed_run(policy: str, seed: int) -> RunResult:
    generator = np.random.default_rng([seed, len(policy), 7])
    slow = POLICIES.get(policy, 5.0)
    times = np.sort(generator.uniform(0, 36 * 3600 * (1 + slow / 100), 3000))
    allocated = np.clip(95 - slow - 30 * np.exp(-times / 9000) + 6 * np.sin(times / 7000), 0, 100)
    allocated[times > 33 * 3600] *= 0.4
    waits = np.maximum(0, generator.lognormal(5 + slow / 8, 2.2, 4000) - 40)
    jcts = waits + generator.lognormal(7.4, 1.6, 4000)
    queued = np.maximum(0, 400 * np.sin(times / 20000) ** 2 * slow / 6 + generator.normal(0, 12, 3000)).round()
    percentiles = np.arange(101)
    return RunResult(
        policy=policy,
        seed=seed,
        summary={
            "jobs": 4000.0,
            "unplaceable": 0.0,
            "mean_wait": float(waits.mean()),
            "p95_wait": float(np.percentile(waits, 95)),
            "mean_jct": float(jcts.mean()),
            "median_jct": float(np.median(jcts)),
            "p95_jct": float(np.percentile(jcts, 95)),
            "makespan": float(times[-1]),
            "utilisation": float(allocated.mean()),
            "fragmented": slow / 2,
            "preemptions": 0.0,
        },
        series={
            "time": times.tolist(),
            "allocated": allocated.tolist(),
            "queued": queued.tolist(),
            "fragmented": np.full(3000, slow / 2).tolist(),
        },
        quantiles={
            "wait": np.percentile(waits, percentiles).tolist(),
            "jct": np.percentile(jcts, percentiles).tolist(),
        },
        heat=heat_map(float(times[-1]), slow, generator),
    )


def sample(
    mode: str,
    *,
    seeds: int = 3,
    policies: tuple[str, ...] = ("fragmentation", "fgd", "random"),
    trace: str = "openb default",
) -> Results:
    run = fill_run if mode == "fill" else timed_run
    return Results(
        command=f"cotenant simulate --trace openb --policy {','.join(policies)} --seeds 42-{41 + seeds} --mode {mode}",
        mode=mode,
        trace=trace,
        nodes=1213,
        gpus=6212,
        runs=[run(policy, seed) for policy in policies for seed in range(42, 42 + seeds)],
    )


@pytest.fixture(params=["fill", "timed"])
def results(request: pytest.FixtureRequest) -> Results:
    return sample(request.param)


def html_of(results: Results, folder: Path) -> str:
    write(results, folder)
    return (folder / "report.html").read_text("utf-8")


def printed(results: Results, width: int = 160, *, styles: bool = False) -> str:
    console = Console(
        width=width, file=io.StringIO(), force_terminal=styles, color_system="standard" if styles else None
    )
    console.print(table(results))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def with_summaries(mode: str, summaries: dict[str, list[dict[str, float]]]) -> Results:
    runs = [
        RunResult(policy=policy, seed=seed, summary=summary, series={})
        for policy, found in summaries.items()
        for seed, summary in enumerate(found)
    ]
    return Results(command="cotenant simulate", mode=mode, trace="t", nodes=1, gpus=8, runs=runs)


def cells(results: Results, title: str) -> list[tuple[str, str, bool]]:
    summary = summarise(results)
    column = [heading.title for heading in summary.headings].index(title)
    return [(row.cells[column].mean, row.cells[column].spread, row.cells[column].best) for row in summary.rows]


# --- numbers ---


@pytest.mark.parametrize(("degrees", "published"), [(1, 12.706), (9, 2.262), (11, 2.201), (30, 2.042), (120, 1.980)])
def test_student_t_equals_published_tables(degrees: int, published: float) -> None:
    assert student_t(degrees) == pytest.approx(published, abs=6e-4)


def test_interval_is_that_of_the_mean() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found is not None
    assert found.mean == 3.0
    assert found.half == pytest.approx(2.776445 * 2.5**0.5 / 5**0.5)


def test_one_seed_has_no_interval_and_no_seed_no_mean() -> None:
    alone = estimate([4.0])
    assert alone is not None
    assert (alone.mean, alone.half) == (4.0, None)
    assert estimate([]) is None


def test_runs_that_end_at_different_loads_are_compared_where_both_have_been() -> None:
    runs = [
        RunResult(policy="p", seed=0, summary={}, series={"arrived": [0.0, 130.0], "allocated": [0.0, 130.0]}),
        RunResult(policy="p", seed=1, summary={}, series={"arrived": [0.0, 120.0], "allocated": [0.0, 240.0]}),
    ]
    curve = level_curve(runs, "arrived", "allocated")
    assert curve is not None
    assert curve.x[-1] == 120.0
    assert curve.mean[-1] == pytest.approx(180.0)


def test_time_curve_keeps_the_area_of_a_step() -> None:
    run = RunResult(policy="p", seed=0, summary={}, series={"time": [0.0, 1.0, 9.0], "queued": [10.0, 0.0, 5.0]})
    curve = time_curve([run], "time", "queued", 12.0, bins=4)
    assert curve is not None
    assert curve.mean == pytest.approx([10 / 3, 0.0, 0.0])
    assert curve.x == pytest.approx([1.5, 4.5, 7.5])


def test_ticks_are_at_one_two_five() -> None:
    assert [step_125(span, 5) for span in (5, 6, 11, 40, 100)] == [1.0, 2.0, 5.0, 10.0, 20.0]
    assert [label for _, label in linear("x", 80.0, 130.0).ticks] == ["80", "90", "100", "110", "120", "130"]
    assert [label for _, label in linear("x", 0.0, 0.31, fit=True).ticks][-1] == "0.35"
    assert elapsed("Time", 36 * 3600.0).label == "Time (h)"


def test_log_axis_names_the_end_that_stands_for_smaller_values() -> None:
    axis = log_time("wait", 1.0, 4000.0, below=True)
    assert [label for _, label in axis.ticks] == ["≤ 1 s", "10 s", "1 min", "10 min", "1 h"]
    assert axis.place(0.0, 0.0, 100.0) == 0.0


# --- summary table ---


def over_seeds(key: str, **values: list[float]) -> dict[str, list[dict[str, float]]]:
    return {policy: [{key: value} for value in found] for policy, found in values.items()}


def marked(results: Results, title: str) -> list[bool]:
    return [best for _, _, best in cells(results, title)]


def test_best_of_each_column_is_marked_in_the_direction_that_is_better() -> None:
    high = with_summaries("fill", over_seeds("allocated_at_100", a=[96.0, 97.0, 95.9], b=[94.9, 96.0, 95.0]))
    assert marked(high, "Allocated at 100 % arrived") == [True, False]
    assert marked(high, "Unallocated at 100 % arrived") == [True, False]
    low = with_summaries("fill", over_seeds("rejected", a=[9.0, 8.0, 9.0], b=[3.0, 3.0, 2.0]))
    assert marked(low, "Rejected") == [False, True]


def test_best_is_marked_only_if_the_paired_difference_to_every_other_policy_is_certain() -> None:
    # The seeds differ much, but on every seed `a` is better by about 1: the intervals of the means overlap.
    results = with_summaries("timed", over_seeds("mean_jct", a=[10, 50, 90], b=[11.1, 51, 91], c=[20, 61, 99]))
    assert marked(results, "Mean JCT") == [True, False, False]
    results = with_summaries("timed", over_seeds("mean_jct", a=[10, 50, 90], b=[12, 49, 93], c=[20, 61, 99]))
    assert marked(results, "Mean JCT") == [False, False, False]


def test_one_seed_marks_nothing() -> None:
    results = with_summaries("timed", over_seeds("mean_jct", a=[10.0], b=[90.0]))
    assert marked(results, "Mean JCT") == [False, False]
    assert "differences may be chance" in printed(results)


def test_seeds_that_change_nothing_are_no_evidence() -> None:
    results = with_summaries("timed", over_seeds("mean_jct", a=[10.0, 10.0], b=[90.0, 90.0]))
    assert marked(results, "Mean JCT") == [False, False]
    text = " ".join(printed(results).split())
    assert "All 2 seeds gave the same results (--vary arrivals makes them differ)" in text
    assert "paired" not in [one.slug for one in figures(results)]


def test_values_that_look_equal_are_not_marked() -> None:
    results = with_summaries("timed", over_seeds("utilisation", a=[90.001, 90.002], b=[90.004, 90.004], c=[80.0, 80.0]))
    assert marked(results, "Utilisation") == [False, False, False]


@pytest.mark.parametrize(
    ("seconds", "text", "unit"),
    [(45.0, "45.00", "s"), (1800.0, "30.00", "min"), (36000.0, "10.00", "h"), (8.64e6, "100.0", "d")],
)
def test_times_are_in_units_people_read(seconds: float, text: str, unit: str) -> None:
    results = with_summaries("timed", {"a": [{"makespan": seconds}]})
    summary = summarise(results)
    assert cells(results, "Makespan") == [(text, "", False)]
    assert next(heading.unit for heading in summary.headings if heading.title == "Makespan") == unit


def test_policies_keep_the_order_given(results: Results) -> None:
    assert [row.policy for row in summarise(results).rows] == ["fragmentation", "fgd", "random"]


def test_terminal_table_shows_policies_means_and_intervals(results: Results) -> None:
    text = printed(results)
    assert "openb default on 1,213 nodes with 6,212 GPUs" in text
    assert all(policy in text for policy in ("fragmentation", "fgd", "random"))
    assert re.search(r"±\d", text)
    assert "3 seeds" in text


def test_terminal_table_marks_the_best_in_bold() -> None:
    results = with_summaries("fill", over_seeds("allocated", a=[96.0, 96.0, 96.0], b=[95.0, 95.0, 95.01]))
    assert "\x1b[1m96.00" in printed(results, styles=True)
    assert "\x1b[1m95.00" not in printed(results, styles=True)


def test_terminal_table_of_one_seed_shows_no_interval() -> None:
    assert "±" not in printed(sample("timed", seeds=1))


def test_terminal_markup_in_names_is_text() -> None:
    results = with_summaries("fill", {"[bold]x[/]": [{"allocated": 96.0}]})
    assert "[bold]x[/]" in printed(replace(results, trace="[red]t"))


def test_terminal_table_says_when_runs_are_missing() -> None:
    assert "Incomplete" in printed(replace(sample("fill"), complete=False))


# --- files ---


def test_results_come_back_as_written(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path / "new" / "folder")
    assert read(tmp_path / "new" / "folder" / "results.json") == results
    assert read(tmp_path / "new" / "folder") == results


def test_equal_results_give_equal_bytes_whatever_the_order_of_their_keys(results: Results, tmp_path: Path) -> None:
    def backwards(run: RunResult) -> RunResult:
        return replace(
            run,
            summary=dict(reversed(run.summary.items())),
            series=dict(reversed(run.series.items())),
            quantiles=dict(reversed(run.quantiles.items())),
        )

    write(results, tmp_path / "a")
    write(replace(results, runs=[backwards(run) for run in results.runs]), tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["report.html", "results.json", "series.csv", "summary.csv"]
    for name in names:
        content = (tmp_path / "a" / name).read_bytes()
        assert content == (tmp_path / "b" / name).read_bytes()
        assert content.endswith(b"\n")


def test_summary_csv_has_a_row_per_policy_and_seed(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "summary.csv").read_text())))
    assert [(row["policy"], int(row["seed"])) for row in rows] == [(run.policy, run.seed) for run in results.runs]
    first = {"fill": "allocated_at_100", "timed": "jobs"}[results.mode]
    assert list(rows[0])[:3] == ["policy", "seed", first]
    assert set(rows[0]) == {"policy", "seed", *results.runs[0].summary}
    for row, run in zip(rows, results.runs, strict=True):
        assert {key: float(row[key]) for key in run.summary} == run.summary


def test_series_csv_is_long_and_exact(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "series.csv").read_text())))
    assert list(rows[0]) == ["policy", "seed", "series", "x", "value"]
    run = results.runs[-1]
    mine = [row for row in rows if row["policy"] == run.policy and int(row["seed"]) == run.seed]
    axis = run.series["arrived" if results.mode == "fill" else "time"]
    allocated = [(float(row["x"]), float(row["value"])) for row in mine if row["series"] == "allocated"]
    assert allocated == list(zip(axis, run.series["allocated"], strict=True))
    expected = {"fill": {"allocated", "fragmented"}}.get(
        results.mode, {"allocated", "fragmented", "queued", "wait_percentile", "jct_percentile"}
    )
    assert {row["series"] for row in mine} == expected


def test_a_failure_while_writing_leaves_the_old_files_and_nothing_else(tmp_path: Path) -> None:
    replace_files(tmp_path, {"a": b"old", "b": b"old"})
    not_bytes: dict[str, bytes] = {"a": b"new", "b": "not bytes"}  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        replace_files(tmp_path, not_bytes)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old", "b": b"old"}


def test_an_earlier_report_survives_results_that_cannot_be_written(tmp_path: Path) -> None:
    write(sample("fill", seeds=1), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    broken = with_summaries("fill", {"a": [{"allocated": float("nan")}]})
    with pytest.raises(InputError, match="policy a, seed 0: the summary holds a number that is not finite"):
        write(broken, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_where_the_folder_should_be_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(InputError, match="out: cannot write the report here"):
        write(sample("fill", seeds=1), tmp_path / "out")


def test_bytes_that_are_no_text_in_the_command_do_not_lose_the_results(tmp_path: Path) -> None:
    write(replace(sample("fill", seeds=1), command="cotenant simulate --trace caf\udce9.csv"), tmp_path)
    assert read(tmp_path).command == "cotenant simulate --trace caf?.csv"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b'"schema":1', b'"schema":9'), "schema 9, but this version reads schema 1"),
        ((b'"mode":"fill"', b'"mode":"slow"'), "mode 'slow', expected one of: fill, timed"),
        ((b'"gpus":6212', b'"gpus":"many"'), r"Expected `int`, got `str` - at `\$.gpus`"),
        ((b'"arrived":[', b'"arrived":[0.0,'), "policy fgd, seed 42: series of different lengths"),
        ((b'"arrived":[0.0', b'"arrived":[900.0'), "series 'arrived' must begin at 0 or later and never decrease"),
        ((b'"arrived":[', b'"strange":['), "series without 'arrived'"),
        ((b'"columns":[', b'"columns":[-1.0,'), "heat map has a row that is not 161 values long"),
        ((b'"columns":[0.0', b'"columns":[9.0'), "heat map has columns that do not increase"),
        ((b"}\n", b""), "not the results of a simulation"),
    ],
)
def test_bad_results_are_refused_with_one_clear_line(change: tuple[bytes, bytes], message: str, tmp_path: Path) -> None:
    write(sample("fill", seeds=1, policies=("fgd",)), tmp_path)
    path = tmp_path / "results.json"
    content = path.read_bytes()
    assert change[0] in content
    path.write_bytes(content.replace(*change, 1))
    with pytest.raises(InputError, match=message) as refused:
        read(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_results_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent.json: cannot read results: No such file"):
        read(tmp_path / "absent.json")


# --- the HTML report ---


class Outline(HTMLParser):
    """Collects elements and addresses, and checks that what was opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.addresses += [
            value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "data", "action")
        ]
        if tag not in ("meta", "link", "br", "hr", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(html: str) -> Outline:
    parsed = Outline()
    parsed.feed(html)
    parsed.close()
    assert parsed.open == []
    return parsed


def test_report_has_the_figures_of_its_mode(results: Results, tmp_path: Path) -> None:
    parsed = outline(html_of(results, tmp_path))
    expected = {
        "fill": ["paired", "allocation", "unallocated", "fragmentation", "heat"],
        "timed": ["paired", "jct", "wait", "allocation", "queue", "fragmentation", "heat"],
    }[results.mode]
    assert [name for name in parsed.ids if name in expected] == expected
    assert len(parsed.ids) == len(set(parsed.ids))


def test_differences_are_paired_by_seed_and_drawn_with_their_intervals() -> None:
    results = with_summaries("timed", over_seeds("mean_jct", a=[10, 50, 90], b=[12, 52.2, 91.9], c=[5, 56, 88]))
    figure = next(one for one in figures(results) if one.slug == "paired")
    assert "Differences to a" in figure.title
    assert ">+2.03 ± 0.38 s<" in figure.svg
    assert ">+0 ± 14 s<" in figure.svg  # the mean has as many decimals as the interval
    assert figure.svg.count("<circle") == 4
    assert figure.svg.count('r="4.2" class="paper"') == 1  # the hollow point of c


def test_one_seed_or_one_policy_has_no_differences() -> None:
    for values in ({"a": [10.0], "b": [12.0]}, {"a": [10.0, 11.0]}):
        results = with_summaries("timed", over_seeds("mean_jct", **values))
        assert "paired" not in [one.slug for one in figures(results)]


def test_seeds_that_only_one_policy_has_are_left_out_of_differences() -> None:
    runs = with_summaries("timed", over_seeds("mean_jct", a=[10.0, 20.0, 30.0], b=[11.0, 21.0])).runs
    found = difference(
        [run for run in runs if run.policy == "b"], [run for run in runs if run.policy == "a"], "mean_jct"
    )
    assert found is not None
    assert (found.seeds, found.value.mean) == (2, 1.0)


def test_an_axis_of_curves_far_above_zero_does_not_begin_at_zero() -> None:
    axis = linear("allocated", 81.0, 93.0, fit=True)
    assert (axis.low, axis.high) == (80.0, 94.0)


def test_the_version_is_shown(results: Results, tmp_path: Path) -> None:
    assert f"<dt>cotenant</dt><dd>{__version__}</dd>" in html_of(results, tmp_path)
    assert f"cotenant {__version__}" in " ".join(printed(results).split())
    assert json.loads((tmp_path / "results.json").read_text())["cotenant"] == __version__


def test_every_drawing_stands_alone(results: Results, tmp_path: Path) -> None:
    drawings = SVG.findall(html_of(results, tmp_path))
    assert len(drawings) >= 4
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        space = "{http://www.w3.org/2000/svg}"
        assert root.tag == f"{space}svg"
        assert root.get("font-family")
        assert root.findtext(f"{space}title")
        assert root.findtext(f"{space}desc")
        assert all(element.get("fill") for element in root.iter(f"{space}text"))
        # No coordinate may be lost to a division by zero or an empty axis.
        assert "nan" not in drawing.split("base64")[0]
        assert "inf" not in " ".join(element.get("d", "") for element in root.iter())


def test_report_reaches_nothing_outside_itself(results: Results, tmp_path: Path) -> None:
    html = html_of(results, tmp_path)
    assert re.findall(r"https?://[^\"' <]*", html.replace('xmlns="http://www.w3.org/2000/svg"', "")) == []
    assert "@import" not in html
    assert re.findall(r"url\((?!#)", html) == []
    parsed = outline(html)
    assert not {"script", "link", "iframe", "object", "embed", "img"} & set(parsed.tags)
    assert all(address.startswith("data:image/") for address in parsed.addresses)
    assert "default-src 'none'" in html


def test_each_figure_says_the_command_that_reproduces_it(results: Results, tmp_path: Path) -> None:
    html = html_of(results, tmp_path)
    for figure in re.findall(r"<figure.*?</figure>", html, re.DOTALL):
        assert f"<code>{results.command}</code>" in figure
    assert html.count(results.command) == 1 + html.count("<figure ")


@pytest.mark.parametrize("mode", ["fill", "timed"])
def test_names_from_outside_are_shown_as_text(mode: str, tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>\"'&</style>\x00"
    results = sample(mode, seeds=1, policies=("fgd", attack), trace=attack)
    results = replace(results, command=attack)
    html = html_of(results, tmp_path)
    assert "<script" not in html
    assert "script" not in outline(html).tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    for drawing in SVG.findall(html):
        ElementTree.fromstring(drawing)


def test_interrupted_results_say_so(tmp_path: Path) -> None:
    assert "Incomplete." not in html_of(sample("fill", seeds=1), tmp_path)
    assert "Incomplete." in html_of(replace(sample("fill", seeds=1), complete=False), tmp_path)


def test_jobs_that_fit_nowhere_are_mentioned() -> None:
    results = with_summaries("timed", {"a": [{"jobs": 10.0, "unplaceable": 2.0}]})
    assert "2 jobs did not fit even the empty cluster" in render(results)


@pytest.mark.parametrize("mode", ["fill", "timed"])
def test_results_without_runs_or_series_still_make_a_report(mode: str, tmp_path: Path) -> None:
    outline(html_of(replace(sample(mode), runs=[], complete=False), tmp_path))
    outline(html_of(with_summaries(mode, {"a": [{}]}), tmp_path))
    assert printed(replace(sample(mode), runs=[]))


def test_idle_runs_still_make_a_report(tmp_path: Path) -> None:
    idle = RunResult(
        policy="a",
        seed=1,
        summary={},
        series={"time": [0.0], "allocated": [0.0], "queued": [0.0], "fragmented": [0.0]},
        quantiles={"wait": [0.0] * 101, "jct": [0.0] * 101},
        heat=HeatMap(columns=[0.0], rows=["GPU 0"], values=[[0.0]]),
    )
    html = html_of(replace(sample("timed"), runs=[idle]), tmp_path)
    assert [ElementTree.fromstring(drawing).tag for drawing in SVG.findall(html)]


@pytest.mark.slow
def test_report_stays_small_with_many_policies_and_seeds(tmp_path: Path) -> None:
    policies = tuple(f"policy-{index}" for index in range(16))
    for mode in ("fill", "timed"):
        assert len(html_of(sample(mode, seeds=2, policies=policies), tmp_path).encode()) < 2_000_000


def test_a_policy_looks_the_same_in_every_figure_even_where_another_is_missing() -> None:
    results = sample("timed", seeds=1)
    runs = [replace(run, quantiles={}) if run.policy == "fragmentation" else run for run in results.runs]
    drawings = SVG.findall(render(replace(results, runs=runs)))
    looks = [re.search(r'<path d="M[^"]*h24" ([^>]*)/><text[^>]*>fgd<', drawing) for drawing in drawings[:4]]
    assert len({look[1] for look in looks if look}) == 1


def test_heat_map_picture_has_one_pixel_per_cell() -> None:
    picture = encode([[0.0, 50.0, None], [100.0, 130.0, -1.0]])
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", picture[16:24]) == (3, 2)
    start = picture.index(b"IDAT")
    length = struct.unpack(">I", picture[start - 4 : start])[0]
    assert zlib.decompress(picture[start + 4 : start + 4 + length]) == bytes([0, 0, 50, 101, 0, 100, 100, 0])


def test_seeds_are_written_as_spans() -> None:
    assert spans([1, 4, 5, 6, 9]) == "1, 4–6, 9"
    assert spans([]) == ""
