# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant submit --on kubernetes` and its relatives on a real cluster: an array, a gang, a failure and a job that
waits, in the words of one machine."""

import json
import signal
from collections.abc import Iterator

import pytest

from tests.cluster.api import Json, wait_for
from tests.cluster.engine import SLEEP, Engine
from tests.cluster.images import PYTHON
from tests.cluster.test_demo import in_background
from tests.cluster.test_serving import cotenant, refused, run_cotenant

JOBS = "/apis/batch/v1/namespaces/default/jobs"
ON = ("--on", "kubernetes")
SUBMIT = ("submit", *ON, "--image", PYTHON, "--memory", "1GiB")
INDEX = "import os; print('index', os.environ['JOB_COMPLETION_INDEX'])"


@pytest.fixture
def jobs(engine: Engine) -> Iterator[Engine]:
    """The engine, without jobs afterwards."""
    yield engine
    engine.cluster.delete(f"{JOBS}?propagationPolicy=Background")


def listed(engine: Engine, name: str) -> Json:
    found: list[Json] = json.loads(cotenant(engine, "jobs", *ON, "-o", "json"))
    return next(job for job in found if job["name"] == name)


def test_an_array_runs_and_its_output_is_that_of_all_indices(jobs: Engine) -> None:
    done = run_cotenant(jobs, *SUBMIT, "--name", "sweep", "--array", "3", "--wait", "--", "python3", "-c", INDEX)
    assert (done.returncode, done.stdout) == (0, "sweep\n"), done
    seen = listed(jobs, "sweep")
    assert (seen["state"], seen["outcome"], seen["code"]) == ("finished", "exited", 0)
    assert seen["reason"] == "3 of 3 pods done, 0 active, 0 failed"
    assert sorted(cotenant(jobs, "logs", *ON, "sweep").splitlines()) == ["index 0", "index 1", "index 2"]
    assert cotenant(jobs, "jobs", *ON, "--state", "failed") == "no jobs\n"
    assert "sweep is already finished" in refused(jobs, "cancel", *ON, "sweep")[1]


def test_a_gang_is_cancelled_and_its_pods_end(jobs: Engine) -> None:
    assert cotenant(jobs, *SUBMIT, "--name", "pair", "--replicas", "2", "--", "python3", "-c", SLEEP) == "pair\n"
    wait_for("the gang to run", lambda: listed(jobs, "pair")["state"] == "running")
    path = "/api/v1/namespaces/default/pods?labelSelector=cotenant.io%2Fjob%3Dpair"
    assert {pod["metadata"]["annotations"]["cotenant.io/gang"] for pod in jobs.cluster.get(path)["items"]} == {"pair"}
    used = json.loads(cotenant(jobs, "top", "job", *ON, "-o", "json"))
    assert [(one["name"], one["pods"], one["allocated_mib"]) for one in used] == [("pair", 2, 2048)]
    assert "node1" in cotenant(jobs, "top", "node", *ON, "--once")
    with in_background(jobs, "top", "job", *ON, "--every", "0.2") as live:
        assert live.stdout is not None
        drawn = (line.split()[2] for line in live.stdout if "pair" in line)
        assert [next(drawn), next(drawn)] == ["2", "2"], "it is drawn again and again"
        jobs.kill("cotenant top", number=signal.SIGINT)
        _, errors = live.communicate(timeout=60)
    assert live.returncode == 0, errors
    shown = json.loads(cotenant(jobs, "show", *ON, "pair", "-o", "json"))
    assert (shown["state"], shown["request"]["image"]) == ("running", PYTHON)
    assert [(one["state"], one["node"], one["gpus"].endswith(":1024MiB")) for one in shown["pods"]] == [
        ("running", "node1", True)
    ] * 2
    assert "is running; only a job that has ended is run again" in refused(jobs, "retry", *ON, "pair")[1]
    assert cotenant(jobs, "cancel", *ON, "pair").startswith("pair was cancelled after ")
    assert jobs.cluster.get(path)["items"] == []
    assert listed(jobs, "pair")["state"] == "cancelled"
    assert cotenant(jobs, "retry", *ON, "pair").splitlines()[1].split()[:3] == ["pair", "pair", "queued"]
    wait_for("the gang to run again", lambda: listed(jobs, "pair")["state"] == "running")


def test_a_failure_and_a_job_that_waits_are_explained(jobs: Engine) -> None:
    fails = run_cotenant(jobs, *SUBMIT, "--name", "bad", "--wait", "--", "python3", "-c", "raise SystemExit(7)")
    assert fails.returncode == 7, fails
    assert cotenant(jobs, "jobs", *ON, "--state", "failed").splitlines()[1].split()[:3] == ["bad", "bad", "failed"]
    details = cotenant(jobs, "show", *ON, "bad")
    assert "python3 -c 'raise SystemExit(7)'" in details
    assert "failed" in details.splitlines()[-1]
    before = jobs.cluster.get(f"{JOBS}/bad")["metadata"]["uid"]
    cotenant(jobs, "retry", *ON, "bad")
    assert jobs.cluster.get(f"{JOBS}/bad")["metadata"]["uid"] != before
    wait_for("its second failure", lambda: listed(jobs, "bad")["code"] == 7)
    large = ("submit", *ON, "--image", PYTHON, "--memory", "40GiB", "--name", "large")
    cotenant(jobs, *large, "--", "python3", "-c", SLEEP)

    def waits() -> str | None:
        reason = listed(jobs, "large")["reason"]
        return reason if reason and "40960 MiB" in reason else None

    wait_for("the reason", waits)
    assert listed(jobs, "large")["state"] == "queued"
    assert "40960 MiB" in cotenant(jobs, "why", *ON, "large")
    assert "is queued and has no output yet" in run_cotenant(jobs, "logs", *ON, "large").stderr
    assert refused(jobs, "cancel", *ON, "none")[0] == 4
    assert refused(jobs, "show", *ON, "none")[0] == 4
    assert refused(jobs, "retry", *ON, "none")[0] == 4
