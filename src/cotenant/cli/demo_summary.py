# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a demo has shown: the same jobs shared and one to a GPU, side by side, as figures and as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from cotenant.cli.show import aligned, known, table
from cotenant.wire.local import JobView
from cotenant.workloads.driving import Life
from cotenant.workloads.generator import PlannedJob

SAME = 0.02
"""a difference of less than this share is called none"""
QUIET = 0.15
"""share of the cores that others may use before figures are doubtful; the daemon and we ourselves use a little"""
COLUMNS = (
    ("JOB", lambda job: job.name, False),
    ("GPU", lambda job: job.gpu, False),
    ("BATCH", lambda job: job.batches, False),
    ("JCT SHARED", lambda job: known(job.shared.jct, "{:.1f} s"), False),
    ("EXCLUSIVE", lambda job: known(job.alone.jct, "{:.1f} s"), False),
    ("RAN SHARED", lambda job: known(job.shared.ran, "{:.1f} s"), False),
    ("ALONE", lambda job: known(job.alone.ran, "{:.1f} s"), False),
    ("SLOWED", lambda job: known(job.slowdown, "{:.2f}x"), False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One part of a demo after its end; jobs are in the order of the plan."""

    lives: Sequence[Life]
    results: Sequence[Mapping[str, Any]]
    """the last line of each job: steps, loss, speed, processor time"""
    seconds: float
    others: float
    """share of the processor cores that other programs used meanwhile"""


@dataclass(frozen=True, slots=True)
class Compared:
    """One job, run both ways."""

    planned: PlannedJob
    shared: Life
    alone: Life
    view: JobView
    """of the shared run"""

    @property
    def name(self) -> str:
        return self.planned.name

    @property
    def gpu(self) -> str:
        return ",".join(map(str, self.view.gpus)) or "-"

    @property
    def done(self) -> bool:
        return self.shared.state == self.alone.state == "done"

    @property
    def slowdown(self) -> float | None:
        """How many times as long it ran beside others, starting up included."""
        return self.shared.ran / self.alone.ran if self.done and self.shared.ran and self.alone.ran else None

    @property
    def choices(self) -> list[Mapping[str, Any]]:
        """What tuning decided for it, oldest first."""
        return [trial for trial in self.view.tuning if trial.get("kind") == "choice"]

    @property
    def batches(self) -> str:
        sizes = [self.planned.batch, *(choice["sizes"][self.view.id] for choice in self.choices)]
        return " → ".join(str(size) for i, size in enumerate(sizes) if i == 0 or size != sizes[i - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One way of running all jobs; seconds."""

    mean_jct: float
    median_jct: float
    makespan: float
    """from the first submission to the last end"""
    mean_wait: float

    @classmethod
    def of(cls, lives: Sequence[Life]) -> "Figures":
        return cls(
            mean_jct=mean(life.jct or 0.0 for life in lives),
            median_jct=median(life.jct or 0.0 for life in lives),
            makespan=max(life.finish or 0.0 for life in lives) - min(life.submit for life in lives),
            mean_wait=mean((life.start or life.submit) - life.submit for life in lives),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything a demo found out."""

    devices: str
    together: int
    """the most jobs at once on one GPU"""
    jobs: Sequence[Compared]
    parts: Mapping[str, Ran]
    """compile, shared, exclusive"""

    @property
    def shared(self) -> Figures:
        return Figures.of(self.parts["shared"].lives)

    @property
    def alone(self) -> Figures:
        return Figures.of(self.parts["exclusive"].lives)

    def as_json(self) -> dict[str, Any]:
        slowdowns = [job.slowdown for job in self.jobs if job.slowdown is not None]
        return {
            "version": 1,
            "devices": self.devices,
            "most_together": self.together,
            "shared": self.shared,
            "exclusive": self.alone,
            "mean_slowdown": mean(slowdowns) if slowdowns else None,
            "seconds": {name: part.seconds for name, part in self.parts.items()},
            "used_by_others": {name: part.others for name, part in self.parts.items()},
            "jobs": [
                {
                    "name": job.name,
                    "task": job.planned.task,
                    "shared": job.shared,
                    "exclusive": job.alone,
                    "slowdown": job.slowdown,
                    "gpus": job.view.gpus,
                    "batch": job.planned.batch,
                    "results": {"shared": shared, "exclusive": alone},
                    "tuning": job.view.tuning,
                }
                for job, shared, alone in zip(
                    self.jobs, self.parts["shared"].results, self.parts["exclusive"].results, strict=True
                )
            ],
        }


def text_of(summary: Summary) -> str:
    """The summary for people."""
    return "\n\n".join(
        [
            f"{len(summary.jobs)} jobs on {summary.devices}, at most {summary.together} on one GPU at a time",
            _figures(summary),
            table(summary.jobs, COLUMNS, wide=False),
            _tuned(summary.jobs),
            _verdict(summary),
        ]
    )


def _figures(summary: Summary) -> str:
    shared, alone = summary.shared, summary.alone
    rows = [
        ("mean JCT", shared.mean_jct, alone.mean_jct),
        ("median JCT", shared.median_jct, alone.median_jct),
        ("makespan", shared.makespan, alone.makespan),
        ("mean wait", shared.mean_wait, alone.mean_wait),
    ]
    lines = [(name, f"{ours:.1f} s", f"{theirs:.1f} s", compared(ours, theirs)) for name, ours, theirs in rows]
    return "\n".join(aligned([("", "SHARED", "EXCLUSIVE", ""), *lines]))


def compared(ours: float, theirs: float) -> str:
    """A duration beside another, in words that hold whichever is longer."""
    if theirs <= 0 or abs(ours / theirs - 1) < SAME:
        return "no difference" if ours <= theirs * (1 + SAME) else "longer"
    return f"{1 - ours / theirs:.0%} shorter" if ours < theirs else f"{ours / theirs - 1:.0%} longer"


def _tuned(jobs: Sequence[Compared]) -> str:
    names = {job.view.id: job.name for job in jobs}
    # a trial of several jobs is in the history of each of them
    trials = {(trial["at"], *trial["sizes"].items()): trial for job in jobs for trial in job.view.tuning}
    probes = [trial for trial in trials.values() if trial["kind"] == "probe"]
    spoilt = sum(bool(trial.get("rejected")) for trial in probes)
    lines = [f"Tuning tried other batch sizes {len(probes)} times{f', {spoilt} of them spoilt' if spoilt else ''}."]
    for job in jobs:
        for choice in job.choices:
            size = choice["sizes"][job.view.id]
            if size != job.planned.batch:
                beside = ", ".join(names.get(one, one) for one in choice["sizes"] if one != job.view.id)
                lines.append(f"  {job.name}: {job.planned.batch} → {size} {f'beside {beside}' if beside else 'alone'}")
    if len(lines) == 1:
        lines.append("  None was kept: none was better than the owner's, or other work or a neighbour's end spoilt it.")
    return "\n".join(lines)


def _verdict(summary: Summary) -> str:
    failed = [job.name for job in summary.jobs if not job.done]
    if failed:
        return f"Not all jobs ended well ({', '.join(failed)}): these figures compare nothing. Their logs say why."
    return f"{_outcome(summary)}\n{_care(summary)}"


def _outcome(summary: Summary) -> str:
    gains = [
        summary.alone.mean_jct / summary.shared.mean_jct - 1,
        summary.alone.makespan / summary.shared.makespan - 1,
    ]
    if min(gains) > SAME:
        return "Sharing paid: jobs ended sooner on the whole, though most ran slower than alone."
    if max(gains) < -SAME:
        return "Sharing lost here: jobs ended later than with a GPU to each."
    return "Sharing made little difference, or gained in one figure what it lost in the other."


def _care(summary: Summary) -> str:
    """What to hold against these figures: they are one run, of which others may have taken a part."""
    ours, theirs = (summary.parts[name].others for name in ("shared", "exclusive"))
    if max(ours, theirs) < QUIET:
        return "This was one run each, on a quiet machine."
    return (
        f"But other programs used {ours:.0%} of the cores while jobs shared and {theirs:.0%} while they did not: "
        "the difference may be theirs.\nTry again when the machine is quiet."
    )
