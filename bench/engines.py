# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The same list of tasks on three engines: the simulator, the daemon of one machine, and a real cluster.

The tasks and their arrivals come from the generator. Their lengths are fixed, and so is the table of speeds beside each
other, so each engine should give the same completion times. Jobs compute nothing (`paced.py`), so the load of the
machine hardly matters.

A pod takes longer to start than a process. The start-up of a pod is measured on the idle cluster first, and is then a
parameter of the other two engines: the simulator models it, and a process on one machine waits for what it lacks.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import msgspec
import numpy as np

from bench.clusters import engine_in_cluster, require_cluster
from bench.daemon import daemon, state_folder
from bench.harness import Figure, at_most, benchmark
from bench.paced import speed
from cotenant.cli.generate import life_of
from cotenant.client.client import Client
from cotenant.core.model import Demand, Gpu, Job, Machine
from cotenant.core.sharing.speeds import TenantSet
from cotenant.core.units import MiB, MilliGpu, Percent, Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.timed import TimedRun, Timing
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import ENDED, JobView
from cotenant.workloads.driving import Change, Life, drive
from cotenant.workloads.generator import PlannedJob, plan
from cotenant.workloads.registry import TASKS
from tests.cluster.api import wait_for
from tests.cluster.engine import V100

JOBS, SCALE, GPUS = 40, 0.6, 3
LENGTHS = {"neumf": 16.0, "lstm": 20.0, "squeezenet": 24.0, "vgg16": 28.0, "resnet50": 32.0}
"""seconds that each task takes alone"""
MEMORY_PERCENT = 40
"""of a GPU, for each job: two fit on one"""
POLICY = "spread"
NAMESPACE = "bench"
STARTS = 4
PROGRAM = (Path(__file__).parent / "paced.py").read_text()
BUSY = {task: TASKS[task].busy / 1000 for task in LENGTHS}


@dataclass(frozen=True, slots=True)
class Times:
    """The completion times of one engine, in seconds."""

    mean: float
    quantiles: Sequence[float]
    """101 values: the 0th to the 100th percentile"""

    @classmethod
    def of(cls, jcts: Sequence[float]) -> "Times":
        return cls(mean(jcts), [float(one) for one in np.quantile(jcts, np.linspace(0, 1, 101))])

    def __str__(self) -> str:
        return f"median {self.quantiles[50]:.1f} s, 95th percentile {self.quantiles[95]:.1f} s"


@benchmark("three-engines")
def three_engines() -> Iterator[Figure]:
    """Runs the list on each engine, and compares mean completion times."""
    require_cluster()
    tasks = listed()
    startup, cluster = on_cluster()
    own, machine = on_machine(tasks, startup)
    simulated = simulate(tasks, startup)
    rows = {"simulator": simulated, "one machine": machine, "cluster": cluster}
    print(side_by_side(rows))
    means = [one.mean for one in rows.values()]
    note = f"{JOBS} tasks on {GPUS} GPUs, policy {POLICY}; " + "; ".join(f"{name} {one}" for name, one in rows.items())
    apart = 100 * (max(means) / min(means) - 1)
    yield at_most("mean JCT, largest difference of two engines", apart, "%", limit=5, note=note)
    for name, one in rows.items():
        yield Figure(name=f"mean JCT, {name}", figure=one.mean, unit="s", note=str(one))
    note = f"a parameter of the other two engines; a process of one machine takes {own:.2f} s"
    yield Figure(name="start-up and end of a pod", figure=startup, unit="s", note=note)


def listed() -> list[PlannedJob]:
    """The tasks, in the order of their submission."""
    return plan(jobs=JOBS, scale=SCALE)


def side_by_side(rows: dict[str, Times]) -> str:
    """The completion times of all engines in a table, by their quantiles."""
    lines = ["".join(f"{name:>14}" for name in ("JCT", *rows))]
    for percent in (0, 10, 25, 50, 75, 90, 100):
        cells = [f"{one.quantiles[percent]:.1f} s" for one in rows.values()]
        lines.append("".join(f"{cell:>14}" for cell in (f"{percent} %", *cells)))
    lines.append("".join(f"{cell:>14}" for cell in ("mean", *(f"{one.mean:.1f} s" for one in rows.values()))))
    return "\n".join(lines)


def words(task: PlannedJob, startup: float, folder: str, length: float | None = None) -> list[str]:
    """The arguments of `python3` for a job."""
    table = [f"{name}={fraction}" for name, fraction in BUSY.items()]
    work = LENGTHS[task.task] if length is None else length
    return ["-c", PROGRAM, task.task, str(work), f"{startup:.3f}", folder, *table]


# The simulator


class Table:
    """The true speeds: those that the jobs keep to on the other engines."""

    def alone(self, gpu_type: str, workload: str | None) -> float:
        return 1.0

    def speeds(self, company: TenantSet) -> tuple[float, ...]:
        busy = [BUSY[workload or ""] for workload in company.workloads]
        return tuple(speed(one, [*busy[:place], *busy[place + 1 :]]) for place, one in enumerate(busy))


def simulate(tasks: Sequence[PlannedJob], startup: float) -> Times:
    gpus = tuple(Gpu(uuid=f"GPU-{number}", type=V100.name, memory=MiB(V100.memory_mib)) for number in range(GPUS))
    arrivals = [
        Arrival(
            Job(
                id=task.name,
                submitted=task.at,
                demand=Demand(memory_percent=Percent(MEMORY_PERCENT), compute=MilliGpu(0), workload=task.task),
            ),
            Seconds(LENGTHS[task.task]),
        )
        for task in tasks
    ]
    run = TimedRun([Machine(name="node1", gpus=gpus)], POLICY, {}, 0, Timing(startup=Seconds(startup)), world=Table())
    result = run.run(iter(arrivals)).result(POLICY, 0)
    return Times(result.summary["mean_jct"], result.quantiles["jct"])


# One machine


def on_machine(tasks: Sequence[PlannedJob], startup: float) -> tuple[float, Times]:
    """The start-up of a process, and the times with processes that start as slowly as pods."""
    options = ("--simulate", str(GPUS), "--policy", POLICY, "--queue", "fifo")
    with state_folder() as state, daemon(state, *options), tempfile.TemporaryDirectory() as folder:
        client = Client()

        def submit(task: PlannedJob, startup: float, length: float | None = None) -> JobView:
            request = JobRequest(
                command=(sys.executable, *words(task, startup, folder, length)),
                cwd="/",
                memory=f"{MEMORY_PERCENT}%",
                workload=task.task,
                tune=False,
            )
            return client.post("/v1/jobs", JobView, msgspec.json.encode(request))

        def look(jobs: Sequence[str]) -> dict[str, Life]:
            return {job: life_of(client.get(f"/v1/jobs/{job}", JobView)) for job in jobs}

        own = []
        for task in tasks[:STARTS]:
            view = submit(task, 0.0, 1.0)
            while view.state not in ENDED:
                time.sleep(0.02)
                view = client.get(f"/v1/jobs/{view.id}", JobView)
            own.append((view.ended or 0.0) - view.submitted - 1.0)
        lacking = max(0.0, startup - mean(own))
        return mean(own), Times.of(jcts_of(drive(tasks, lambda task: life_of(submit(task, lacking)), look)))


def jcts_of(changes: Iterator[Sequence[Change]]) -> list[float]:
    """The completion times of all jobs, when the last one has ended."""
    lives = [change.life for some in changes for change in some if change.event == "finished"]
    wrong = [life for life in lives if life.state != "done"]
    if wrong:
        raise RuntimeError(f"{wrong[0].job}: {wrong[0].state}")
    return [life.jct or 0.0 for life in lives]


# A real cluster


def on_cluster() -> tuple[float, Times]:
    """The start-up of a pod, and the times. The API server is reached only from inside the node, so the part that
    submits is a process there."""
    settings = f"queue: {{namespaces: [{NAMESPACE}]}}\n"
    with engine_in_cluster(gpus=[V100] * GPUS, settings=settings) as engine:
        engine.cluster.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        wait_for("its account", lambda: engine.cluster.get(account))
        credentials = engine.cluster.credentials / "admin.kubeconfig"
        variables = [f"KUBECONFIG={credentials}", f"PYTHONPATH={Path(__file__).parents[1]}"]
        printed = engine.machine("node1").run("env", *variables, sys.executable, "-m", "bench.engines_cluster")
    found = json.loads(printed.splitlines()[-1])
    return found["startup"], Times.of(found["jcts"])


if __name__ == "__main__":
    for figure in three_engines():
        print(figure)
