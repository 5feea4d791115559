# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a study is: independent runs over seeds, and what they say together, held against what was promised."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from cotenant.sim.pool import side_by_side
from cotenant.sim.report.axes import Axis
from cotenant.sim.report.charts import Figure
from cotenant.sim.report.plots import Line, Plot, Point, draw
from cotenant.sim.report.stats import Estimate, estimate


class Task(NamedTuple):
    """One run: which part of the study, who or what runs, and the seed."""

    part: str
    who: str
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What a run found: numbers by name, and one curve where the study draws any."""

    numbers: Mapping[str, float]
    curve: tuple[float, ...] = ()


Samples = Mapping[Task, Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row of a study's tables."""

    part: str
    """the table"""
    name: str
    value: float
    half: float | None = None
    """half the width of the 95 % interval over seeds; None where seeds have no part in it, or there is one"""
    unit: str
    beside: str = ""
    """the same elsewhere, with whose it is"""
    target: str | None = None
    """None: it is only reported"""
    met: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A question, the runs that answer it, and how the answer reads."""

    title: str
    about: str
    """how it is done and what its limits are, in paragraphs"""
    seeds: tuple[int, ...]
    """where none are given"""
    tasks: Callable[[Sequence[int]], list[Task]]
    run: Callable[[Task, Path], Sample]
    """a function of a module, since other processes call it"""
    findings: Callable[[Samples], Iterable[Finding]]
    figures: Callable[[Samples], Iterable[Figure]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A study that was run."""

    study: str
    title: str
    about: str
    seeds: tuple[int, ...]
    findings: list[Finding]
    samples: dict[Task, Sample]
    figures: list[Figure] = field(default_factory=list)


Finished = Callable[[tuple[Task, Sample]], None]


def conduct(
    name: str, study: Study, seeds: Sequence[int], data: Path, processes: int, finished: Finished = lambda _: None
) -> Outcome:
    """Runs a study; `finished` is told of each run as it ends."""
    found: dict[Task, Sample] = {}

    def take(one: tuple[Task, Sample]) -> None:
        found[one[0]] = one[1]
        finished(one)

    tasks = study.tasks(seeds)
    side_by_side([partial(_run, study.run, task, data) for task in tasks], processes, take)
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


# What studies are written with


def of(samples: Samples, part: str, who: str) -> list[Sample]:
    """The runs of one contender, by seed."""
    return [sample for task, sample in samples.items() if (task.part, task.who) == (part, who)]


def numbers(samples: Samples, part: str, who: str, name: str) -> list[float]:
    return [sample.numbers[name] for sample in of(samples, part, who)]


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean and 95 % interval."""
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
    """A finding over seeds."""
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


Bound = Literal["at most", "below"]


def held(found: Estimate, limit: float, bound: Bound = "at most") -> Verdict:
    """By the mean, or for `below` by the whole interval, which one seed has not."""
    if bound == "below":
        return f"< {limit:g}", None if found.half is None else found.mean + found.half < limit
    return f"<= {limit:g}", found.mean <= limit


def lines(curves: Mapping[str, Iterable[tuple[float, Estimate]]]) -> Iterator[Line]:
    """Curves by name, each with its interval where there is one."""
    for style, (name, points) in enumerate(curves.items()):
        known = list(points)
        upper = [(x, y.mean + y.half) for x, y in known if y.half is not None]
        lower = [(x, y.mean - y.half) for x, y in known if y.half is not None]
        yield Line(name=name, points=[(x, y.mean) for x, y in known], band=[*upper, *lower[::-1]], style=style)


def plotted(
    title: str,
    caption: str,
    x: Axis,
    y: Axis,
    curves: Iterable[Line],
    reference: Sequence[Point] = (),
    reference_name: str = "",
) -> Figure:
    """A figure of lines; its name in files comes from its title."""
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
