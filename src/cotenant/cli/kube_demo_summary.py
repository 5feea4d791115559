# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a demo in a cluster: the same jobs under a policy and under a baseline, as numbers and as text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from cotenant.cli.comparison import Metrics, metrics_list, metrics_table, outcome, slowdown
from cotenant.cli.output import or_dash, table
from cotenant.wire.text import counted
from cotenant.workloads.driving import Life
from cotenant.workloads.generator import PlannedJob

if TYPE_CHECKING:
    from cotenant.kube.deploy.preflight import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPart:
    """One run of all jobs; everything is in the order of the plan."""

    name: str
    lives: Sequence[Life]
    results: Sequence[Mapping[str, Any]]
    """the last line that each job printed: steps, loss, speed, batch size; empty if it failed"""
    places: Sequence[tuple[str, tuple[str, ...]] | None]
    """node and UUIDs of the GPUs of each job"""

    @property
    def most_together(self) -> int:
        """The largest number of jobs that ran on one GPU at the same time."""
        spans = [
            (life.start, life.finish, set(place[1]))
            for life, place in zip(self.lives, self.places, strict=True)
            if place is not None and life.start is not None and life.finish is not None
        ]
        counts = (
            sum(bool(gpus & theirs) and begin <= start < end for begin, end, theirs in spans)
            for start, _, gpus in spans
        )
        return max(counts, default=0)


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job, in both runs; without a baseline the second is None."""

    planned: PlannedJob
    ours: Life
    theirs: Life | None
    node: str
    gpu: str
    batch: int | None
    """at the end of the first run"""

    @property
    def slowdown(self) -> float | None:
        return slowdown(self.ours, self.theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSummary:
    """All results of a demo."""

    policy: str
    baseline: str
    gpus: "Mapping[str, Location]"
    planned: Sequence[PlannedJob]
    parts: Sequence[ClusterPart]

    @property
    def done(self) -> bool:
        """Whether every job of every run ended well."""
        return all(life.state == "done" for part in self.parts for life in part.lives)

    @property
    def jobs(self) -> list[JobRow]:
        ours = self.parts[0]
        others: Sequence[Life | None] = self.parts[1].lives if len(self.parts) > 1 else [None] * len(self.planned)
        rows = zip(self.planned, ours.lives, others, ours.places, ours.results, strict=True)
        return [
            JobRow(planned, life, other, *self._shown(place), result.get("batch"))
            for planned, life, other, place, result in rows
        ]

    def _shown(self, place: tuple[str, tuple[str, ...]] | None) -> tuple[str, str]:
        if place is None:
            return "-", "-"
        return place[0], ",".join(str(self.gpus[uuid].number) if uuid in self.gpus else "?" for uuid in place[1])

    @property
    def slowdowns(self) -> list[float]:
        return [job.slowdown for job in self.jobs if job.slowdown is not None]

    def as_json(self) -> dict[str, Any]:
        names = ("policy", "baseline")[: len(self.parts)]
        return {
            "version": 1,
            "policy": self.policy,
            "baseline": self.baseline,
            "gpus": len(self.gpus),
            "nodes": len({one.node for one in self.gpus.values()}),
            "metrics": {name: Metrics.of(part.lives) for name, part in zip(names, self.parts, strict=True)},
            "most_together": {name: part.most_together for name, part in zip(names, self.parts, strict=True)},
            "mean_slowdown": mean(self.slowdowns) if self.slowdowns else None,
            "jobs": [
                {
                    "name": job.planned.name,
                    "task": job.planned.task,
                    "node": job.node,
                    "gpu": job.gpu,
                    "slowdown": job.slowdown,
                    "times": {name: part.lives[index] for name, part in zip(names, self.parts, strict=True)},
                    "results": {name: part.results[index] for name, part in zip(names, self.parts, strict=True)},
                }
                for index, job in enumerate(self.jobs)
            ],
        }


def text_of(summary: ClusterSummary) -> str:
    """The summary as text."""
    first = summary.parts[0]
    types = Counter(one.type for one in summary.gpus.values())
    devices = ", ".join(f"{number} {name}" for name, number in sorted(types.items()))
    nodes = counted(len({one.node for one in summary.gpus.values()}), "node")
    head = f"{counted(len(summary.planned), 'job')} on {counted(len(summary.gpus), 'GPU')} ({devices}) of {nodes}"
    return "\n\n".join(
        [
            f"{head}, up to {first.most_together} on one GPU under {first.name}",
            _metrics(summary),
            table(summary.jobs, _columns(summary), wide=False),
            _verdict(summary),
        ]
    )


def _metrics(summary: ClusterSummary) -> str:
    measured = [Metrics.of(part.lives) for part in summary.parts]
    if len(measured) == 1:
        return metrics_list(summary.parts[0].name.upper(), measured[0])
    return metrics_table((summary.parts[0].name.upper(), summary.parts[1].name.upper()), *measured)


def _columns(summary: ClusterSummary) -> Any:
    ours = summary.parts[0].name.upper()
    columns = [
        ("JOB", lambda job: job.planned.name, False),
        ("NODE", lambda job: job.node, False),
        ("GPU", lambda job: job.gpu, False),
        ("BATCH", lambda job: _batch(job), False),
        ("STATE", lambda job: job.ours.state, False),
        (f"JCT {ours}", lambda job: or_dash(job.ours.jct, "{:.0f} s"), False),
    ]
    if len(summary.parts) > 1:
        theirs = summary.parts[1].name.upper()
        columns += [
            (theirs, lambda job: or_dash(job.theirs.jct, "{:.0f} s"), False),
            (f"RAN {ours}", lambda job: or_dash(job.ours.ran, "{:.0f} s"), False),
            (theirs, lambda job: or_dash(job.theirs.ran, "{:.0f} s"), False),
            ("SLOWDOWN", lambda job: or_dash(job.slowdown, "{:.2f}x"), False),
        ]
    return columns


def _batch(job: JobRow) -> str:
    if job.batch is None or job.batch == job.planned.batch:
        return str(job.planned.batch)
    return f"{job.planned.batch} → {job.batch}"


def _verdict(summary: ClusterSummary) -> str:
    if not summary.done:
        failed = [
            f"{planned.name} ({part.name}: {life.state})"
            for part in summary.parts
            for planned, life in zip(summary.planned, part.lives, strict=True)
            if life.state != "done"
        ]
        return f"Some jobs did not end well, so the runs cannot be compared: {', '.join(failed)}."
    if len(summary.parts) == 1:
        return "There was no baseline to compare with."
    ours, theirs = (Metrics.of(part.lives) for part in summary.parts)
    caveat = "This was one run of each kind. The cluster records times in whole seconds."
    words = () if summary.baseline == "exclusive" else (f"The policy {summary.policy}", f"under {summary.baseline}")
    return f"{outcome(ours, theirs, summary.slowdowns, *words)}\n{caveat}"
