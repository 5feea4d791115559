# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Benchmark tasks on a real cluster: the generator, the manifests of the example, and data sets on a volume."""

import contextlib
import csv
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.api import RefusedError, wait_for
from tests.cluster.engine import Engine
from tests.cluster.images import WORKLOADS, workloads_image
from tests.cluster.pods import pod_of_job
from tests.cluster.test_demo import in_background, running
from tests.cluster.test_jobs import JOBS
from tests.cluster.test_serving import cotenant

PODS = "/api/v1/namespaces/default/pods"
EXAMPLE = Path(__file__).parents[2] / "examples" / "iadeep"
VOLUMES, CLAIMS = "/api/v1/persistentvolumes", "/api/v1/namespaces/default/persistentvolumeclaims"
TINY = ("--mix", "neumf", "--work", "0.02", "--scale", "0")


@pytest.fixture
def tasks(engine: Engine) -> Iterator[Engine]:
    """The engine, with the image of the benchmark tasks, and without jobs afterwards."""
    engine.cluster.add_image(workloads_image())
    yield engine
    engine.cluster.delete(f"{JOBS}?propagationPolicy=Background")


def test_generated_jobs_train_and_the_report_is_that_of_one_machine(tasks: Engine, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    words = ("generate", "--on", "kubernetes", "--image", WORKLOADS, "--policy", "iadeep", "--jobs", "2", *TINY)
    ended = json.loads(cotenant(tasks, *words, "--csv", str(file), "-o", "json"))
    assert sorted(one["name"] for one in ended) == ["neumf-1", "neumf-2"]
    assert [one["state"] for one in ended] == ["done", "done"]
    assert all(one["submit"] <= one["start"] <= one["finish"] for one in ended)
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert sorted(row["event"] for row in rows) == ["finished"] * 2 + ["started"] * 2 + ["submitted"] * 2
    (first, _) = tasks.cluster.get(JOBS)["items"]
    assert first["spec"]["template"]["metadata"]["annotations"]["cotenant.io/policy"] == "iadeep"


@pytest.fixture
def volume(tasks: Engine) -> Iterator[Engine]:
    """The engine with a volume in a folder of its node, to which the claim of the example is bound.

    Kubernetes does not give a folder of a node to the group of a pod, as it does with other volumes.
    """
    tasks.machine("node1").run("mkdir", "--mode=0777", "--parents", "/run/datasets")
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "hostPath": {"path": "/run/datasets", "type": "DirectoryOrCreate"},
    }
    tasks.cluster.post(VOLUMES, {"metadata": {"name": "datasets"}, "spec": spec})
    yield tasks
    tasks.cluster.delete(f"{JOBS}?propagationPolicy=Background")
    with contextlib.suppress(RefusedError):  # the test did not come so far
        tasks.cluster.delete(f"{CLAIMS}/datasets")
    tasks.cluster.delete(f"{VOLUMES}/datasets")


def test_the_manifests_of_the_example_are_accepted_and_run_on_their_data(volume: Engine) -> None:
    cluster = volume.cluster
    cluster.kubectl("apply", "--filename", str(EXAMPLE / "data.yaml"))
    files = sorted(EXAMPLE.glob("*.yaml"))
    assert len(files) == 14
    cluster.kubectl("apply", "--dry-run=server", *(f"--filename={file}" for file in files))
    for file in files:  # the webhook reviews pods, not Jobs
        job = list(yaml.safe_load_all(file.read_text()))[-1]
        pod = {"metadata": {"generateName": "task-", **job["spec"]["template"]["metadata"]}}
        pod = cluster.post(f"{PODS}?dryRun=All", {**pod, "spec": job["spec"]["template"]["spec"]})
        mine = "default-scheduler" if file.stem == "data" else "cotenant-scheduler"
        assert pod["spec"]["schedulerName"] == mine, file

    written = volume.log(pod_of_job(cluster, "prepare-data")["metadata"]["name"])
    assert written.count("written") == 6
    cluster.kubectl("apply", "--filename", str(EXAMPLE / "lstm.yaml"))
    pod = pod_of_job(cluster, "lstm")
    assert pod["metadata"]["annotations"]["cotenant.io/policy"] == "iadeep"
    result = json.loads(volume.log(pod["metadata"]["name"]).splitlines()[-1])
    assert (result["task"], result["stopped"]) == ("lstm", False)
    assert result["samples"] >= 7200  # the last step of a tuned job may go beyond
    assert result["loss_last"] < result["loss_first"]

    # A demo in the same namespace finds the data sets on the volume, and removes only what is its own.
    words = ("--namespace", "default", "--volume", "datasets", "--baseline", "none", "--jobs", "1", "--work", "0.02")
    told = cotenant(volume, "kube", "demo", "--image", WORKLOADS, "--mix", "lstm", "--policy", "iadeep", *words)
    assert "writing data sets to the volume datasets" in told.splitlines()
    assert told.endswith("There was no baseline to compare with.\n")
    assert sorted(job["metadata"]["name"] for job in cluster.get(JOBS)["items"]) == ["lstm", "prepare-data"]


def test_after_an_interrupt_jobs_are_cancelled_if_that_was_asked_for(tasks: Engine, tmp_path: Path) -> None:
    words = ("generate", "--on", "kubernetes", "--image", WORKLOADS, "--jobs", "1", "--mix", "neumf", "--work", "1000")
    with in_background(tasks, *words, "--cancel-on-interrupt", "--csv", str(tmp_path / "jobs.csv")) as process:
        wait_for("a running task", lambda: running(tasks, "default"))
        tasks.kill("cotenant generate", number=signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "cotenant: submitted 1 job; those that had not ended are cancelled" in errors
    (job,) = json.loads(cotenant(tasks, "jobs", "--on", "kubernetes", "-o", "json"))
    assert job["state"] == "cancelled"
