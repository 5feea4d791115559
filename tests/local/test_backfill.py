# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""On one machine, a large job is not overtaken without end, and `why` says who overtook and for whom GPUs are kept."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cotenant.wire.job_views import JobView
from tests.local.daemon import SOURCE, Daemon, running_daemon, until

HOUR = 3600.0


class Jobs:
    """Jobs for whole GPUs that run until the test ends them."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon, self.folder = daemon, folder

    def submit(self, name: str, **request: object) -> str:
        waits = f"while [ ! -e {self.folder / name} ]; do sleep 0.05; done"
        return self.daemon.submit("sh", "-c", waits, memory="100%", name=name, **request).id

    def run(self, name: str, **request: object) -> str:
        job = self.submit(name, **request)
        self.runs(job)
        return job

    def end(self, name: str) -> None:
        (self.folder / name).touch()
        self.daemon.ended(name)

    def runs(self, job: str) -> None:
        until(lambda: self.daemon.job(job).state == "running")

    def waits(self, job: str) -> bool:
        return self.daemon.job(job).state == "queued"

    def why(self, job: str) -> dict[str, Any]:
        return self.daemon.client.get(f"/v1/jobs/{job}/why", dict[str, Any])


def cotenant(daemon: Daemon, *words: str, code: int = 0) -> str:
    """What a command prints."""
    env = {**os.environ, "PYTHONPATH": SOURCE, "COTENANT_STATE": str(daemon.state)}
    done = subprocess.run([sys.executable, "-m", "cotenant", *words], env=env, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_small_jobs_do_not_take_the_gpus_that_a_large_one_waits_for(daemon: Daemon, tmp_path: Path) -> None:
    jobs = Jobs(daemon, tmp_path)
    one, two = jobs.run("one"), jobs.run("two")
    urgent = jobs.submit("urgent", gpus=2, priority=100)
    reserved = f"; GPUs 0 1 are reserved for it, and it can start when {one}, {two} have ended"
    until(lambda: jobs.why(urgent)["reason"].endswith(reserved))
    jobs.end("one")
    small = [jobs.submit(f"small-{i}", priority=-10) for i in range(3)]
    until(lambda: "reserved for" in jobs.why(small[2])["reason"])
    assert all(map(jobs.waits, small)), "a GPU is idle, and kept for the large job"
    assert jobs.why(small[0])["reason"] == (
        f"the GPUs on which it would fit are reserved for {urgent}, which can start when {two} has ended; "
        "it is not known when that will be, so no other job may use them until then"
    )
    jobs.end("two")
    jobs.runs(urgent)
    assert all(map(jobs.waits, small))
    assert jobs.why(urgent).get("overtaken_by") is None, "it no longer waits"
    jobs.end("urgent")
    jobs.runs(small[1])


@pytest.mark.slow
def test_a_job_that_is_short_enough_overtakes_and_why_names_it(daemon: Daemon, tmp_path: Path) -> None:
    jobs = Jobs(daemon, tmp_path)
    jobs.run("one", estimate_s=HOUR)
    jobs.run("two", estimate_s=HOUR)
    urgent = jobs.submit("urgent", gpus=2, priority=100)
    reserved = "GPUs 0 1 are reserved for it, and it can start in about 60 min"
    until(lambda: jobs.why(urgent)["reason"].endswith(reserved))
    jobs.end("two")
    unknown, long = jobs.submit("unknown"), jobs.submit("long", estimate_s=3 * HOUR)
    short = jobs.run("short", estimate_s=HOUR / 2, priority=-10)
    jobs.end("short")
    assert jobs.waits(long)
    assert "this job has no estimate of its length, and could take longer" in jobs.why(unknown)["reason"]
    assert "this job is expected to take 3 h, which is longer" in jobs.why(long)["reason"]
    expected = "expected to end before that job can start, in about 60 min"
    assert jobs.why(urgent)["overtaken_by"] == [{"job": short, "reason": expected}]
    said = cotenant(daemon, "why", urgent)
    assert f"1 job behind it in the queue started before it:\n  {short}: {expected}\n" in said
    assert f"overtook {urgent}: {expected}" in (daemon.job(short).reason or "")


@pytest.mark.slow
def test_estimates_and_reservations_survive_the_daemon(daemon: Daemon, tmp_path: Path) -> None:
    jobs = Jobs(daemon, tmp_path)
    jobs.run("one", estimate_s=HOUR)
    jobs.run("two", estimate_s=HOUR)
    urgent = jobs.submit("urgent", gpus=2)
    daemon.kill()
    daemon.up()
    until(lambda: jobs.why(urgent)["reason"].endswith("and it can start in about 60 min"))
    jobs.end("one")
    assert jobs.waits(jobs.submit("small"))


def test_if_the_large_job_is_cancelled_others_start_at_once(daemon: Daemon, tmp_path: Path) -> None:
    jobs = Jobs(daemon, tmp_path)
    jobs.run("one")
    urgent, small = jobs.submit("urgent", gpus=2), jobs.submit("small")
    until(lambda: "reserved for" in jobs.why(small)["reason"])
    daemon.client.post(f"/v1/jobs/{urgent}/cancel", JobView)
    jobs.runs(small)


def test_a_large_job_whose_gpu_is_cordoned_keeps_nobody_waiting(daemon: Daemon, tmp_path: Path) -> None:
    jobs = Jobs(daemon, tmp_path)
    daemon.client.post("/v1/gpus/0/cordon", dict[str, Any])
    urgent = jobs.submit("urgent", gpus=2)
    jobs.run("small")
    daemon.client.post("/v1/gpus/0/uncordon", dict[str, Any])
    assert jobs.waits(jobs.submit("next"))
    until(lambda: "GPUs 0 1 are reserved for it" in jobs.why(urgent)["reason"])


@pytest.mark.slow
def test_without_backfill_every_job_that_fits_starts_and_why_names_those_that_overtook(tmp_path: Path) -> None:
    with running_daemon("--no-backfill") as daemon:
        jobs = Jobs(daemon, tmp_path)
        jobs.run("one")
        urgent = jobs.submit("urgent", gpus=2, priority=100)
        small = []
        for i in range(3):
            small.append(jobs.run(f"small-{i}", priority=-10))
            jobs.end(f"small-{i}")
        answer = jobs.why(urgent)
        assert [one["job"] for one in answer["overtaken_by"]] == small[::-1]
        assert answer["overtaken_by"][0]["reason"] == "it fitted at the time, and no GPU was reserved"
        assert jobs.waits(urgent)


@pytest.mark.slow
def test_the_owner_of_a_job_says_how_long_it_takes(daemon: Daemon) -> None:
    cotenant(daemon, "submit", "--estimate", "1.5h", "--name", "known", "--memory", "100MiB", "true")
    request = daemon.job("known").request
    assert request is not None
    assert request.estimate_s == 1.5 * HOUR
    for wrong in ("2", "0s", "400d", "soon"):
        said = cotenant(daemon, "submit", "--estimate", wrong, "true", code=2)
        assert f"--estimate {wrong}: expected a run time of 1s to 365d, for example 45m, 2h or 3d" in said
