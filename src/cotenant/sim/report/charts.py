# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The figures of a report: for each mode, what is plotted against what, with titles and captions."""

import math
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cotenant.sim.report import axes
from cotenant.sim.report.forest import Forest, ForestPanel, Whisker, draw_forest
from cotenant.sim.report.paired import Difference, difference
from cotenant.sim.report.plots import Line, Panel, Panels, Plot, draw, draw_panels
from cotenant.sim.report.stats import Curve, by_policy, level_curve, longest, quantile_curve, time_curve
from cotenant.sim.report.summary import COLUMNS, Column, unit_of, varies
from cotenant.sim.results import HeatMap, Results, RunResult

_MOST_CELLS = 480
"""largest number of columns in a heat map; more would add bytes but no visible detail"""


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its title and caption."""

    slug: str
    title: str
    caption: str
    svg: str

    @property
    def address(self) -> str:
        """The drawing as a data URL, for the download link."""
        return "data:image/svg+xml;base64," + b64encode(self.svg.encode()).decode()


def figures(results: Results) -> list[Figure]:
    """Draws every figure for which the results have data."""
    drawn = _fill(results) if results.mode == "fill" else _timed(results)
    return [*_paired(results), *drawn, *_heat(results)]


COMPARED = {
    "fill": ("allocated_at_100", "fragmented_at_100", "rejected"),
    "timed": ("mean_jct", "mean_wait", "p95_jct", "makespan", "utilisation"),
}
"""metrics whose paired differences are drawn"""


def _paired(results: Results) -> Iterator[Figure]:
    """The difference of every policy to the first one, if there are several policies and seeds."""
    policies = by_policy(results)
    if len(policies) < 2 or len(next(iter(policies.values()))) < 2 or not varies(results):
        return
    baseline, *others = policies
    styles = {policy: index for index, policy in enumerate(policies)}
    panels = []
    for column in COLUMNS[results.mode]:
        found = [difference(policies[other], policies[baseline], column.key) for other in others]
        known = [one for one in found if one is not None and one.value.half is not None]
        if column.key in COMPARED[results.mode] and known and any(one.value.mean or one.value.half for one in known):
            panels.append(_panel(column, known, styles))
    if not panels:
        return
    counts = {len(runs) for runs in policies.values()}
    caption = (
        f"Each policy minus {baseline} on the same seed: mean and 95 % confidence interval of the differences over "
        f"{max(counts)} seeds (Student's t). Filled: the interval excludes 0; hollow: the difference may be chance."
    )
    figure = Forest(slug="paired", title=f"Differences to {baseline}", text=caption, panels=panels)
    yield Figure("paired", figure.title, caption, draw_forest(figure))


def _with_spread(mean: float, half: float) -> str:
    """A mean and its interval with the same decimals: as many as give the interval two digits that count."""
    digits = 2 if not half else min(6, max(0, 1 - math.floor(math.log10(half))))
    return f"{mean:+z.{digits}f} ± {half:.{digits}f}".replace("-", "−")


def _panel(column: Column, known: Sequence[Difference], styles: Mapping[str, int]) -> ForestPanel:
    reach = max(abs(one.value.mean) + (one.value.half or 0.0) for one in known)
    scale, unit = unit_of(column.kind, reach)
    low = min(0.0, *(one.value.mean - (one.value.half or 0.0) for one in known)) / scale
    high = max(0.0, *(one.value.mean + (one.value.half or 0.0) for one in known)) / scale
    margin = 0.04 * (high - low)
    points = " points" if column.kind == "percent" else f" {unit}" if unit else ""
    rows = [
        Whisker(
            name=one.policy,
            style=styles[one.policy],
            mean=one.value.mean / scale,
            half=(one.value.half or 0.0) / scale,
            label=_with_spread(one.value.mean / scale, (one.value.half or 0.0) / scale) + points,
            parts=one.parts,
        )
        for one in known
    ]
    axis = axes.linear("", low - margin, high + margin, count=6)
    return ForestPanel(
        title=f"{column.title}{f' ({unit})' if unit else ''}",
        better="right" if column.better == "high" else "left",
        axis=axis,
        rows=rows,
    )


def _fill(results: Results) -> Iterator[Figure]:
    note = _band_note(results)
    allocated = _levels(results, "allocated")
    if allocated:
        end = max(float(curve.x[-1]) for curve in allocated.values())
        x = axes.linear("Arrived load (% of GPU capacity)", 0.0, end)
        bend = [(0.0, 0.0), (min(end, 100.0), min(end, 100.0)), (end, min(end, 100.0))]
        yield _plot(
            "allocation",
            "GPU allocation",
            f"Share of all GPUs allocated as load arrives; dotted: all that has arrived is allocated.{note}",
            x,
            axes.linear("Allocated (% of GPUs)", 0.0, 100.0),
            _upright(results, allocated),
            bend,
            "ideal",
        )
        if end > 100.0:
            yield _unallocated(results, allocated, end, note)
    fragmented = _levels(results, "fragmented")
    if fragmented:
        end = max(float(curve.x[-1]) for curve in fragmented.values())
        yield _plot(
            "fragmentation",
            "Fragmentation",
            f"Idle GPU capacity that the expected mix of jobs cannot use, as a share of all GPUs.{note}",
            axes.linear("Arrived load (% of GPU capacity)", 0.0, end),
            axes.linear("Fragmented (% of GPUs)", 0.0, _top(fragmented), fit=True),
            _upright(results, fragmented),
        )


def _unallocated(results: Results, allocated: dict[str, Curve], end: float, note: str) -> Figure:
    left, right = 80.0, min(130.0, end)
    missing = {policy: Curve(curve.x, 100.0 - curve.mean, curve.half) for policy, curve in allocated.items()}
    # Below 100 % most GPUs are idle for lack of jobs, so the scale is set by the right-hand part, where policies
    # differ.
    late = {policy: _part(curve, 95.0, right) for policy, curve in missing.items()}
    return _plot(
        "unallocated",
        "Unallocated GPUs around full load",
        "The difference of GPU allocation to 100 %, enlarged. Lower is better; "
        f"dotted: what no policy can avoid.{note}",
        axes.linear("Arrived load (% of GPU capacity)", left, right),
        axes.linear("Unallocated (% of GPUs)", 0.0, 1.1 * _top(late), fit=True),
        _upright(results, missing),
        [(left, 100.0 - left), (100.0, 0.0), (right, 0.0)],
        "ideal",
    )


def _timed(results: Results) -> Iterator[Figure]:
    note = _band_note(results)
    yield from _distribution(results, "jct", "Job completion time", "from arrival to end", note)
    yield from _distribution(results, "wait", "Waiting time", "from arrival to start", note)
    end = longest(results.runs, "time")
    for slug, name, title, label, caption in (
        ("allocation", "allocated", "GPU allocation over time", "Allocated (% of GPUs)", "Share of all GPUs allocated"),
        ("queue", "queued", "Queue over time", "Waiting jobs", "Jobs that have arrived and not started"),
        (
            "fragmentation",
            "fragmented",
            "Fragmentation over time",
            "Fragmented (% of GPUs)",
            "Idle GPU capacity that the expected mix of jobs cannot use",
        ),
    ):
        curves = _each(results, lambda runs, name=name: time_curve(runs, "time", name, end))  # type: ignore[misc]
        if curves:
            low, top = _range(curves, math.inf if name == "queued" else 100.0)
            yield _plot(
                slug,
                title,
                f"{caption}, averaged over spans of 1/240 of the time shown.{note}",
                axes.elapsed("Time", end),
                axes.linear(label, low, top, fit=True),
                _upright(results, curves),
            )


def _distribution(results: Results, name: str, title: str, meaning: str, note: str) -> Iterator[Figure]:
    curves = _each(results, lambda runs: quantile_curve(runs, name))
    if not curves:
        return
    high = max(float(curve.mean[-1]) for curve in curves.values())
    smallest = min(float(curve.mean[0]) for curve in curves.values())
    # A wait is often zero, which a logarithmic axis cannot show: shorter values are drawn at the left end.
    low = axes.log_floor(min(max(smallest, 1.0), max(high / 10, 0.01)))
    below = smallest < low
    yield _plot(
        name,
        title,
        f"Share of jobs at or below each time {meaning}; further left is better.{note}",
        axes.log_time(f"{title} (logarithmic)", low, high, below=below),
        axes.linear("Share of jobs (%)", 0.0, 100.0),
        _sideways(results, curves),
    )


def _heat(results: Results) -> Iterator[Figure]:
    shown = [run for runs in by_policy(results).values() if (run := next((r for r in runs if r.heat), None))]
    maps = [(run, run.heat) for run in shown if run.heat and run.heat.rows and run.heat.columns]
    if not maps:
        return
    fill = results.mode == "fill"
    end = max(_right_edge(heat) for _, heat in maps)
    axis = axes.linear("Arrived load (% of GPU capacity)", 0.0, end) if fill else axes.elapsed("Time", end, count=5)
    panels = [
        Panel(title=f"{run.policy}, seed {run.seed}", rows=heat.rows, values=_cells(heat, end)) for run, heat in maps
    ]
    figure = Panels(
        slug="heat",
        title=f"GPU heat map {'as load arrives' if fill else 'over time'}",
        text="Allocated compute of each GPU or group of neighbouring GPUs; one panel per policy.",
        x=axis,
        scale_name="allocated compute (%)",
        panels=panels,
    )
    caption = "Allocated compute of each GPU or group of neighbouring GPUs (rows); one seed of each policy."
    yield Figure(figure.slug, figure.title, caption, draw_panels(figure))


def _right_edge(heat: HeatMap) -> float:
    # Only left edges are recorded; the last column is assumed to be as wide as the one before it.
    width = heat.columns[-1] - heat.columns[-2] if len(heat.columns) > 1 else 1.0
    return heat.columns[-1] + width


def _cells(heat: HeatMap, end: float) -> list[list[float | None]]:
    """Samples each row at equal steps from 0 to `end`; None after the end of the run."""
    count = min(_MOST_CELLS, max(len(heat.columns), round(len(heat.columns) * end / _right_edge(heat))))
    where = [bisect_right(heat.columns, (step + 0.5) * end / count) - 1 for step in range(count)]
    last = _right_edge(heat)
    inside = [at >= 0 and (step + 0.5) * end / count < last for step, at in enumerate(where)]
    return [[row[at] if shown else None for at, shown in zip(where, inside, strict=True)] for row in heat.values]


def _plot(
    slug: str,
    title: str,
    caption: str,
    x: axes.Axis,
    y: axes.Axis,
    lines: Sequence[Line],
    reference: Sequence[tuple[float, float]] = (),
    reference_name: str = "",
) -> Figure:
    plot = Plot(
        slug=slug,
        title=title,
        text=f"{caption} Policies: {', '.join(line.name for line in lines)}.",
        x=x,
        y=y,
        lines=lines,
        reference=reference,
        reference_name=reference_name,
    )
    return Figure(slug, title, caption, draw(plot))


def _each(results: Results, curve: Callable[[list[RunResult]], Curve | None]) -> dict[str, Curve]:
    curves = {policy: curve(runs) for policy, runs in by_policy(results).items()}
    return {policy: found for policy, found in curves.items() if found is not None}


def _levels(results: Results, name: str) -> dict[str, Curve]:
    return _each(results, lambda runs: level_curve(runs, "arrived", name))


def _upright(results: Results, curves: dict[str, Curve]) -> list[Line]:
    """Lines with a vertical interval; a policy has the same style in every figure."""
    lines = []
    styles = {policy: index for index, policy in enumerate(by_policy(results))}
    for policy, curve in curves.items():
        band: list[tuple[float, float]] = []
        if curve.half is not None:
            upper = zip(curve.x, curve.mean + curve.half, strict=True)
            lower = zip(curve.x[::-1], (curve.mean - curve.half)[::-1], strict=True)
            band = [*upper, *lower]
        lines.append(
            Line(name=policy, points=list(zip(curve.x, curve.mean, strict=True)), band=band, style=styles[policy])
        )
    return lines


def _sideways(results: Results, curves: dict[str, Curve]) -> list[Line]:
    """Lines of distributions: the interval of a percentile is horizontal."""
    flipped = []
    for line in _upright(results, curves):
        points, band = ([(y, x) for x, y in points] for points in (line.points, line.band))
        flipped.append(Line(name=line.name, points=points, band=band, style=line.style))
    return flipped


def _part(curve: Curve, left: float, right: float) -> Curve:
    inside = (curve.x >= left) & (curve.x <= right)
    return Curve(curve.x[inside], curve.mean[inside], None if curve.half is None else curve.half[inside])


def _top(curves: dict[str, Curve]) -> float:
    return max((float(curve.mean.max()) for curve in curves.values() if len(curve.mean)), default=1.0) or 1.0


def _range(curves: dict[str, Curve], most: float) -> tuple[float, float]:
    """The range of an axis, with the intervals: from 0, unless all curves stay far above it."""
    halves = {name: 0.0 if curve.half is None else curve.half for name, curve in curves.items()}
    top = max(
        (float((curve.mean + halves[name]).max()) for name, curve in curves.items() if len(curve.mean)), default=1.0
    )
    low = min(
        (float((curve.mean - halves[name]).min()) for name, curve in curves.items() if len(curve.mean)), default=0.0
    )
    return (low if low > top / 2 else 0.0), min(most, top) or 1.0


def _band_note(results: Results) -> str:
    several = any(len(runs) > 1 for runs in by_policy(results).values())
    return " Line: mean over seeds; band: 95 % confidence interval." if several else ""
