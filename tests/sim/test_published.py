# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A sample of FGD's published results (USENIX ATC 2023) on its own arrival orders; `make bench` replays them all."""

import statistics
from itertools import cycle
from pathlib import Path

import pytest

from bench.replay import EQUAL, PUBLISHED, RANDOM, Task, published, replay

pytestmark = pytest.mark.slow

TRACES = (
    "cpu050",
    "cpu100",
    "cpu200",
    "default",
    "gpushare40",
    "gpushare60",
    "gpushare80",
    "gpuspec10",
    "gpuspec20",
    "gpuspec25",
    "multigpu20",
    "multigpu30",
    "multigpu40",
)
FILES = {"allocated": "analysis_allo_discrete.csv.gz", "fragmented": "analysis_frag_discrete.csv.gz"}
BUCKETS = 131

EVERY_POLICY = [Task("default", policy, 42) for policy in PUBLISHED]
EVERY_TRACE = [
    Task(trace, policy, seed)
    for trace, policy, seed in zip(TRACES, cycle(PUBLISHED), cycle(range(43, 52)), strict=False)
]


def named(task: Task) -> str:
    return "-".join(map(str, task))


@pytest.mark.parametrize("task", EVERY_POLICY + EVERY_TRACE, ids=named)
def test_all_published_buckets_are_reproduced(task: Task, data: Path) -> None:
    _, result = replay(task)
    for series, file in FILES.items():
        ours = dict(zip(result.series["arrived"], result.series[series], strict=True))
        theirs = published(file)[Task(task.trace, PUBLISHED[task.policy], task.seed)]
        assert len(theirs) == BUCKETS
        apart = {at: (ours.get(at), value) for at, value in theirs.items() if abs(ours.get(at, -1.0) - value) > EQUAL}
        assert apart == {}, f"{series}: ours and theirs by percent arrived"


def test_every_published_trace_is_in_the_sample(data: Path) -> None:
    there = {path.name.removesuffix(".json.gz") for path in (data / "fgd_replay").glob("*.json.gz")}
    assert there == {task.trace for task in EVERY_TRACE}


def test_random_policy_allocates_as_published_on_average(data: Path) -> None:
    seeds = range(42, 45)  # three of the ten published, since each takes seconds
    expected = published(FILES["allocated"])
    theirs = statistics.mean(expected[Task("default", RANDOM, seed)][100] for seed in seeds)
    runs = [replay(Task("default", "random", seed))[1] for seed in seeds]
    assert statistics.mean(run.summary["allocated_at_100"] for run in runs) == pytest.approx(theirs, abs=0.3)
