# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The form of a study: independent runs over seeds, and findings that are compared with targets."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from cotenant.sim.pool import run_parallel
from cotenant.sim.report.axes import Axis
from cotenant.sim.report.charts import Figure
from cotenant.sim.report.plots import Line, Plot, Point, draw
from cotenant.sim.report.stats import Estimate, estimate


class Task(NamedTuple):
    """One run: the part of the study, the contender or variant that runs, and the seed."""

    part: str
    who: str
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of a run: numbers by name, and a curve if the study draws one."""

    numbers: Mapping[str, float]
    curve: tuple[float, ...] = ()


Samples = Mapping[Task, Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row of a study's tables."""

    part: str
    """title of the table"""
    name: str
    value: float
    half: float | None = None
    """half the width of the 95 % interval over seeds; None with one seed, or if the value does not depend on seeds"""
    unit: str
    beside: str = ""
    """the same quantity of a baseline, with its name"""
    target: str | None = None
    """the target as text; None: the value is only reported"""
    met: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study: its runs, and functions that turn their samples into findings and figures."""

    title: str
    about: str
    """method and limits of the study, in paragraphs"""
    seeds: tuple[int, ...]
    """the default seeds"""
    tasks: Callable[[Sequence[int]], list[Task]]
    run: Callable[[Task, Path], Sample]
    """a module-level function, because worker processes call it"""
    findings: Callable[[Samples], Iterable[Finding]]
    figures: Callable[[Samples], Iterable[Figure]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a study."""

    study: str
    title: str
    about: str
    seeds: tuple[int, ...]
    findings: list[Finding]
    samples: dict[Task, Sample]
    figures: list[Figure] = field(default_factory=list)


Finished = Callable[[tuple[Task, Sample]], None]


def run_study(
    name: str, study: Study, seeds: Sequence[int], data: Path, processes: int, finished: Finished = lambda _: None
) -> Outcome:
    """Runs a study, and calls `finished` with each run as it ends."""
    found: dict[Task, Sample] = {}

    def take(one: tuple[Task, Sample]) -> None:
        found[one[0]] = one[1]
        finished(one)

    tasks = study.tasks(seeds)
    run_parallel([partial(_run, study.run, task, data) for task in tasks], processes, take)
    samples = {task: found[task] for task in tasks}
    return Outcome(
        study=name,
        title=study.title,
        about=study.about,
        seeds=tuple(seeds),
        findings=list(study.findings(samples)),
        samples=samples,
        figures=list(study.figures(samples)),
    )


def _run(run: Callable[[Task, Path], Sample], task: Task, data: Path) -> tuple[Task, Sample]:
    return task, run(task, data)


# Building blocks of studies


def runs_of(samples: Samples, part: str, who: str) -> list[Sample]:
    """The samples of one contender, in order of seeds."""
    return [sample for task, sample in samples.items() if (task.part, task.who) == (part, who)]


def numbers(samples: Samples, part: str, who: str, name: str) -> list[float]:
    return [sample.numbers[name] for sample in runs_of(samples, part, who)]


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean and 95 % confidence interval."""
    found = estimate(values)
    assert found is not None, "every part of a study has runs"
    return found


Verdict = tuple[str | None, bool | None]
"""a target, and whether it is met"""


def row(
    part: str,
    name: str,
    found: Estimate,
    unit: str,
    *,
    beside: str = "",
    verdict: Verdict = (None, None),
    note: str = "",
) -> Finding:
    """Makes a finding from an estimate over seeds."""
    target, met = verdict
    return Finding(
        part=part,
        name=name,
        value=found.mean,
        half=found.half,
        unit=unit,
        beside=beside,
        target=target,
        met=met,
        note=note,
    )


Bound = Literal["at most", "below", "not above"]


def judge(found: Estimate, limit: float, bound: Bound = "at most") -> Verdict:
    """Compares an estimate with a limit: by its mean, or by its interval, which needs two seeds.

    For `below` the whole interval must be below the limit; for `not above` it must not be above it as a whole.
    """
    if bound == "below":
        return f"< {limit:g}", None if found.half is None else found.mean + found.half < limit
    if bound == "not above":
        return f"not > {limit:g}", None if found.half is None else found.mean - found.half <= limit
    return f"<= {limit:g}", found.mean <= limit


def lines(curves: Mapping[str, Iterable[tuple[float, Estimate]]]) -> Iterator[Line]:
    """Makes the lines of a plot from curves by name, with a band for the interval if there is one."""
    for style, (name, points) in enumerate(curves.items()):
        found = list(points)
        upper = [(x, y.mean + y.half) for x, y in found if y.half is not None]
        lower = [(x, y.mean - y.half) for x, y in found if y.half is not None]
        yield Line(name=name, points=[(x, y.mean) for x, y in found], band=[*upper, *lower[::-1]], style=style)


def plot_figure(
    title: str,
    caption: str,
    x: Axis,
    y: Axis,
    curves: Iterable[Line],
    reference: Sequence[Point] = (),
    reference_name: str = "",
) -> Figure:
    """Draws a line plot; its file name is derived from its title."""
    slug = "-".join("".join(letter if letter.isalnum() else " " for letter in title.lower()).split())
    plot = Plot(
        slug=slug,
        title=title,
        text=caption,
        x=x,
        y=y,
        lines=list(curves),
        reference=reference,
        reference_name=reference_name,
    )
    return Figure(slug, title, caption, draw(plot))
