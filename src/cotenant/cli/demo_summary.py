# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a demo: the same jobs on shared and on exclusive GPUs, as numbers and as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from cotenant.cli.comparison import Metrics, metrics_table, outcome, slowdown
from cotenant.cli.output import or_dash, table
from cotenant.wire.job_views import JobView
from cotenant.wire.text import counted
from cotenant.workloads.driving import Life
from cotenant.workloads.generator import PlannedJob

QUIET = 0.15
"""fraction of the cores that other processes (the daemon among them) may use before the result is called unreliable"""
COLUMNS = (
    ("JOB", lambda job: job.name, False),
    ("GPU", lambda job: job.gpu, False),
    ("BATCH", lambda job: job.batches, False),
    ("JCT SHARED", lambda job: or_dash(job.shared.jct, "{:.1f} s"), False),
    ("EXCLUSIVE", lambda job: or_dash(job.alone.jct, "{:.1f} s"), False),
    ("RAN SHARED", lambda job: or_dash(job.shared.ran, "{:.1f} s"), False),
    ("ALONE", lambda job: or_dash(job.alone.ran, "{:.1f} s"), False),
    ("SLOWDOWN", lambda job: or_dash(job.slowdown, "{:.2f}x"), False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """The result of one part of a demo; jobs are in the order of the plan."""

    lives: Sequence[Life]
    results: Sequence[Mapping[str, Any]]
    """the last line that each job printed: steps, loss, speed, CPU time"""
    seconds: float
    others: float
    """fraction of the CPU cores that other programs used in the meantime"""


@dataclass(frozen=True, slots=True)
class JobComparison:
    """One job, from both runs."""

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
        return slowdown(self.shared, self.alone)

    @property
    def choices(self) -> list[Mapping[str, Any]]:
        """The batch sizes that tuning chose, oldest first."""
        return [trial for trial in self.view.tuning if trial.get("kind") == "choice"]

    @property
    def batches(self) -> str:
        sizes = [self.planned.batch, *(choice["sizes"][self.view.id] for choice in self.choices)]
        return " → ".join(str(size) for i, size in enumerate(sizes) if i == 0 or size != sizes[i - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All results of a demo."""

    devices: str
    most_together: int
    """the most jobs at once on one GPU"""
    jobs: Sequence[JobComparison]
    parts: Mapping[str, PartResult]
    """compile, shared, exclusive"""

    @property
    def shared(self) -> Metrics:
        return Metrics.of(self.parts["shared"].lives)

    @property
    def alone(self) -> Metrics:
        return Metrics.of(self.parts["exclusive"].lives)

    def as_json(self) -> dict[str, Any]:
        slowdowns = [job.slowdown for job in self.jobs if job.slowdown is not None]
        return {
            "version": 1,
            "devices": self.devices,
            "most_together": self.most_together,
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
    """The summary as text."""
    return "\n\n".join(
        [
            f"{counted(len(summary.jobs), 'job')} on {summary.devices}, up to {summary.most_together} on one GPU",
            metrics_table(("SHARED", "EXCLUSIVE"), summary.shared, summary.alone),
            table(summary.jobs, COLUMNS, wide=False),
            _tuned(summary.jobs),
            _verdict(summary),
        ]
    )


def _tuned(jobs: Sequence[JobComparison]) -> str:
    names = {job.view.id: job.name for job in jobs}
    # a trial of several jobs is in the history of each of them
    trials = {(trial["at"], trial["kind"], *trial["sizes"].items()): trial for job in jobs for trial in job.view.tuning}
    probes = [trial for trial in trials.values() if trial["kind"] == "probe"]
    unusable = sum(bool(trial.get("rejected")) for trial in probes)
    rejected = f"; {unusable} {'was' if unusable == 1 else 'were'} rejected" if unusable else ""
    changed = sum(any(choice["sizes"][job.view.id] != job.planned.batch for choice in job.choices) for job in jobs)
    kept = f" {changed} of {counted(len(jobs), 'job')} got a new batch size:" if changed else ""
    lines = [f"Tuning measured other batch sizes {counted(len(probes), 'time')}{rejected}.{kept}"]
    for job in jobs:
        for choice in job.choices:
            size = choice["sizes"][job.view.id]
            if size != job.planned.batch:
                beside = ", ".join(names.get(one, one) for one in choice["sizes"] if one != job.view.id)
                where = f"next to {beside}" if beside else "alone"
                lines.append(f"  {job.name}: {job.planned.batch} → {size} {where}{_gain(job, choice)}")
    if len(lines) == 1:
        lines.append("  No new batch size was kept: none was better, or the measurements were disturbed.")
    return "\n".join(lines)


def _gain(job: JobComparison, choice: Mapping[str, Any]) -> str:
    """The speed of a job with the chosen sizes, compared with the first sizes next to the same neighbours; empty if one
    of them was not measured."""
    ours = (choice.get("measured") or {}).get(job.view.id)
    first = [
        trial["measured"][job.view.id]
        for trial in job.view.tuning
        if trial["kind"] == "default" and trial.get("measured") and trial["sizes"].keys() == choice["sizes"].keys()
    ]
    if not ours or not first:
        return ""
    return f": {ours:,.0f} samples/s, before {first[-1]:,.0f} ({ours / first[-1] - 1:+.0%})"


def _verdict(summary: Summary) -> str:
    failed = [job.name for job in summary.jobs if not job.done]
    if failed:
        return f"Some jobs failed ({', '.join(failed)}), so the runs cannot be compared. See `cotenant logs`."
    slowdowns = [job.slowdown for job in summary.jobs if job.slowdown is not None]
    return f"{outcome(summary.shared, summary.alone, slowdowns)}\n{_caveat(summary)}"


def _caveat(summary: Summary) -> str:
    """How far the result can be trusted: it is one run, and other programs may have used the cores."""
    ours, theirs = (summary.parts[name].others for name in ("shared", "exclusive"))
    if max(ours, theirs) < QUIET:
        return "This was one run of each kind, on a quiet machine."
    return (
        f"However, other programs used {ours:.0%} of the cores during the shared run and {theirs:.0%} during the "
        "exclusive run, which may explain the difference.\nRepeat the demo on a quiet machine."
    )
