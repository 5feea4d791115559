# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures interference on simulated devices: how well the daemon learns which tasks slow each other, and what that
gains.

Tiny tasks that wait for input for 0 to 80 % of their time run in pairs under the daemon, which measures them like any
other jobs. Then the same jobs run with our policy, which uses these measurements, with one job per GPU, and with any
sharing. The benchmark takes 45 minutes and needs a quiet machine with two cores; `python -m bench.interference` runs a
sample.
"""

import os
import random
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.daemon import daemon, state_folder
from bench.harness import Figure, at_least, at_most, benchmark
from bench.pairs import compile_all, usual
from cotenant.client.client import Client
from cotenant.client.requests import environment
from cotenant.core.interference import Predictor, PredictorState, Signature
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView
from cotenant.wire.profile import JobProfile
from cotenant.workloads.registry import TASKS

EIGHT = ("neumf", "adgcl", "yolo", "squeezenet", "lstm", "resnet50", "vgg16", "bert")
"""from the task that waits most to the one that never waits"""
OBSERVED, SPLITS = 30, 20
LOOK_S = 6
LONGEST_S = 180.0
"""seconds that a pair or a profile may take"""
JOBS, RUNS, WORK_S = 24, 3, 10.0
ENDED = ("finished", "cancelled", "interrupted", "lost")
POLICIES = ("cotenant", "alone", "share")
OPTIONS = ("--gpu-memory", "2GiB", "--queue", "aged", "--look", str(LOOK_S))


class Pair(NamedTuple):
    """Two tasks, their profiles alone, and their measured speeds together."""

    signatures: tuple[Signature, Signature]
    utilisation: tuple[float, float]
    speeds: tuple[float, float]


@benchmark("local-interference")
def local_interference() -> Iterator[Figure]:
    """Evaluates the predictor on unseen pairs, and then the mean completion time of the same jobs under several
    policies."""
    yield from study(EIGHT, OBSERVED, JOBS, RUNS)


def study(tasks: Sequence[str], observed: int, jobs: int, runs: int) -> Iterator[Figure]:
    for task in tasks:
        compile_all(task)
    with state_folder() as state:
        with daemon(state, *OPTIONS, "--policy", "share"):
            pairs = measured_pairs(state, tasks)
            profiles = {one.family: one for one in Client().get("/v1/profiles", list[JobProfile])}
        yield from prediction(pairs, observed)
        times: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for _ in range(runs):
            for policy in POLICIES:
                with daemon(state, *OPTIONS, "--policy", policy):
                    uncordon()
                    times[policy].append(mean_completion([*tasks] * (jobs // len(tasks)), profiles))
        yield from completion(times)


def measured_pairs(state: Path, tasks: Sequence[str]) -> list[Pair]:
    """Runs each task alone and then next to each other task on one GPU; the other core is left to the daemon."""
    client = Client()
    client.post("/v1/gpus/1/cordon", GpuView)
    for task in tasks:
        while_running([task], partial(profiled, task))
    profiles = {one.family: one for one in client.get("/v1/profiles", list[JobProfile])}
    found = []
    for one, other in combinations_with_replacement(tasks, 2):
        while_running([one, other], partial(learned, state, one, other))
        signatures, speeds = learned(state, one, other) or ((), ())
        if len(signatures) == 2 and len(speeds) == 2:
            busy = tuple(profiles[task].utilisation or 0.0 for task in (one, other))
            found.append(Pair((signatures[0], signatures[1]), (busy[0], busy[1]), (speeds[0], speeds[1])))
    return found


def profiled(task: str) -> bool:
    return any(one.family == task and one.step_seconds for one in Client().get("/v1/profiles", list[JobProfile]))


def learned(state: Path, one: str, other: str) -> tuple[tuple[Signature, ...], tuple[float, ...]] | None:
    """The speeds of a pair that the daemon has recorded; None if there are none yet."""
    with sqlite3.connect(f"file:{state / 'journal.db'}?mode=ro", uri=True) as journal:
        rows = journal.execute("SELECT value FROM remembered WHERE key = 'predictor:simulated'").fetchall()
    if not rows:
        return None
    known = msgspec.json.decode(rows[0][0], type=PredictorState)
    families = [signature.family for signature in known.types]
    if one not in families or other not in families:
        return None
    first, second = families.index(one), families.index(other)
    speeds = {(row.victim, row.partner): row.root**2 for row in known.rows}
    if (first, second) not in speeds:
        return None
    return (known.types[first], known.types[second]), (speeds[first, second], speeds[second, first])


def while_running(tasks: Sequence[str], done: Callable[[], object]) -> None:
    """Runs tasks until their result is known."""
    client = Client()
    jobs = [client.post("/v1/jobs", JobView, msgspec.json.encode(request(task, LONGEST_S))).id for task in tasks]
    deadline = time.monotonic() + LONGEST_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.5)
    for job in jobs:
        client.post(f"/v1/jobs/{job}/cancel", JobView)
    wait_for(jobs)


def request(task: str, seconds: float | None = None, steps: int | None = None) -> JobRequest:
    until = ("--seconds", str(seconds)) if seconds is not None else ("--steps", str(steps))
    batch = usual(task)
    return JobRequest(
        command=(sys.executable, "-m", "cotenant.workloads", task, "--batch", str(batch), "--noise-every", "0", *until),
        cwd=str(Path.cwd()),
        env=environment(()) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"},
        memory=f"{TASKS[task].at('tiny').memory_at(batch)}MiB",
        workload=task,
        tune=False,
        revert=True,
        grace_s=2.0,
    )


def wait_for(jobs: Sequence[str]) -> list[JobView]:
    client = Client()
    while True:
        views = [client.get(f"/v1/jobs/{job}", JobView) for job in jobs]
        if all(view.state in ENDED for view in views):
            return views
        time.sleep(0.5)


def uncordon() -> None:
    Client().post("/v1/gpus/1/uncordon", GpuView)


# Results


def prediction(pairs: Sequence[Pair], observed: int) -> Iterator[Figure]:
    """Mean absolute errors on the pairs that were left out, over several random choices."""
    chance = random.Random(0)
    errors: dict[str, list[float]] = {"ours": [], "none": [], "sum": []}
    for _ in range(SPLITS):
        shuffled = chance.sample(list(pairs), len(pairs))
        predictor = Predictor()
        for pair in shuffled[:observed]:
            predictor.observe(*pair.signatures, *pair.speeds)
        for pair in shuffled[observed:]:
            divided = 1 / max(1.0, sum(pair.utilisation))
            for expected, speed in zip(predictor.pair(*pair.signatures), pair.speeds, strict=True):
                errors["ours"].append(abs(expected.mean - speed))
                errors["none"].append(abs(1.0 - speed))
                errors["sum"].append(abs(divided - speed))
    ours, none, divided = (statistics.mean(errors[name]) for name in ("ours", "none", "sum"))
    note = f"{len(pairs)} pairs, {SPLITS} splits; speeds {min(min(one.speeds) for one in pairs):.2f} to 1"
    name = f"error on pairs not seen, {min(observed, len(pairs))} seen"
    yield at_most(name, ours, "speed", limit=round(min(none, divided), 3), note=note)
    yield Figure(name="the same, no interference expected", figure=none, unit="speed")
    yield Figure(name="the same, card divided by utilisations", figure=divided, unit="speed")


def mean_completion(tasks: Sequence[str], profiles: dict[str, JobProfile]) -> float:
    """Seconds from submission to end of each job; all jobs are submitted at once in one order."""
    client, jobs = Client(), []
    for task in random.Random(1).sample(list(tasks), len(tasks)):
        step = profiles[task].step_seconds or 0.02
        asked = msgspec.structs.replace(request(task, steps=round(WORK_S / step)), estimate_s=WORK_S)
        jobs.append(client.post("/v1/jobs", JobView, msgspec.json.encode(asked)).id)
    ended = wait_for(jobs)
    failed = [view.id for view in ended if view.code != 0]
    if failed:
        raise RuntimeError(f"{', '.join(failed)} failed")
    return statistics.mean((view.ended or 0.0) - view.submitted for view in ended)


def completion(times: dict[str, list[float]]) -> Iterator[Figure]:
    means = {policy: statistics.mean(runs) for policy, runs in times.items()}
    note = "; ".join(f"{policy} {' '.join(f'{run:.0f}' for run in runs)} s" for policy, runs in times.items())
    for other in POLICIES[1:]:
        yield at_least(f"mean JCT, {other} over cotenant", means[other] / means["cotenant"], "x", limit=1.0, note=note)


if __name__ == "__main__":
    for figure in study(("neumf", "yolo", "bert"), 4, 6, 1):
        print(figure)
