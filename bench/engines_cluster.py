# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The part of `three-engines` that runs inside a node of the cluster: it submits the tasks as Jobs, and prints their
completion times."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from bench.engines import MEMORY_PERCENT, NAMESPACE, POLICY, STARTS, jcts_of, listed, words
from cotenant.cli.cluster import Connected, connected
from cotenant.cli.generate import life_of
from cotenant.kube.deploy.batches import Batch
from cotenant.kube.deploy.training import TrainingRequest, job_object
from cotenant.wire.job_views import ENDED, JobView
from cotenant.workloads.driving import Life, drive
from cotenant.workloads.generator import PlannedJob
from tests.cluster.images import PYTHON

SHARED = "/run/paced"
"""folder of the node in which pods find each other"""


def main() -> None:
    """Measures the start-up of pods on the idle cluster, and then runs the list."""
    tasks, run = listed(), secrets.token_hex(3)
    with connected(NAMESPACE, None, None) as cluster:
        batch = Batch(cluster.client, NAMESPACE, run)
        cluster.start(*batch.followers())

        def submit(task: PlannedJob, name: str, length: float | None = None) -> JobView:
            return cluster.do(batch.create(manifest(task, name, run, length)))

        def look(jobs: Sequence[str]) -> Mapping[str, Life]:
            return {view.id: life_of(view) for view in batch.changed() if view.id in jobs}

        startups = [extra(cluster, batch, submit(task, f"first-{task.name}", 1.0)) for task in tasks[:STARTS]]
        found = jcts_of(drive(tasks, lambda task: life_of(submit(task, task.name)), look, sleep=cluster.sleep))
    print(json.dumps({"startup": mean(startups), "jcts": found}))


def extra(cluster: Connected, batch: Batch, view: JobView) -> float:
    """Seconds that a job of one second takes longer than that, from its submission to its end."""
    began = time.monotonic()
    while batch.views[view.id].state not in ENDED:
        cluster.sleep(0.02)
        batch.changed()
    return time.monotonic() - began - 1.0


def manifest(task: PlannedJob, name: str, run: str, length: float | None) -> dict[str, Any]:
    """The Job of a task, with the folder of the node in which jobs find each other."""
    request = TrainingRequest(
        name=name,
        image=PYTHON,
        command=("python3", *words(task, 0.0, SHARED, length)),
        memory=f"{MEMORY_PERCENT}%",
        workload=task.task,
        policy=POLICY,
        tune=False,
        run=run,
    )
    made = job_object(request)
    spec = made["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "paced", "hostPath": {"path": SHARED, "type": "DirectoryOrCreate"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "paced", "mountPath": SHARED}]
    return made


if __name__ == "__main__":
    main()
