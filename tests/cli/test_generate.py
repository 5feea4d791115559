# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant generate` as a user runs it: plans, refusals, and real tasks on a real daemon."""

import csv
import json
import signal
import subprocess
from pathlib import Path

import pytest

from cotenant.wire.job_views import JobView
from tests.cli.command import START, environment, refusal, run
from tests.local.daemon import Daemon, until

PLAN = """\
AT     NAME        MEMORY   BUSY  BATCH
0.0 s  lstm-1      196 MiB  60%   16
3.5 s  neumf-2     193 MiB  20%   256
3.6 s  resnet50-3  323 MiB  70%   8
"""


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    done = run("generate", "--jobs", "3", "--dry-run", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, PLAN, "")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_can_be_read_by_programs() -> None:
    words = ("--jobs", "2", "--mix", "bert", "--work", "0.5", "--seed", "7", "--size", "small", "-o", "json")
    done = run("generate", "--dry-run", *words)
    first, second = json.loads(done.stdout)
    assert (first["name"], second["name"]) == ("bert-1", "bert-2")
    assert first["argv"][3:] == ["bert", "--size", "small", "--samples", "1600", "--seed", "7"]
    assert first["batch_range"] == [4, 128]


def test_arrivals_come_from_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "team.csv"
    trace.write_text("id,submitted_s,duration_s,gpus\na,1000,60,1\nb,4000,60,1\nc,9000,60,1\n")
    done = run("generate", "--jobs", "3", "--trace", trace, "--scale", "2", "--dry-run", "-o", "json")
    assert [job["at"] for job in json.loads(done.stdout)] == pytest.approx([0.0, 6.0, 16.0])


def test_arrivals_come_from_a_public_trace(data: Path) -> None:
    env = environment(COTENANT_DATA=str(data))
    done = run("generate", "--jobs", "40", "--trace", "philly", "--dry-run", "-o", "json", env=env)
    times = [job["at"] for job in json.loads(done.stdout)]
    assert len(times) == 40
    assert times == sorted(times)
    assert times[-1] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mix vgg=1", "mix 'vgg=1': 'vgg=1' is not task=weight; write one of iadeep, "),
        ("--mix vgg16=much", "mix 'vgg16=much': 'vgg16=much' is not task=weight"),
        ("--mix vgg16=0", "a mix needs tasks with weights of at least 0, one of them above 0"),
        ("--mix vgg16=-1", "a mix needs tasks with weights of at least 0"),
        ("--trace nobody", "unknown trace 'nobody'; expected a CSV file or one of demo, openb"),
        ("--trace philly", "philly needs the folder of public data (it is not set); set COTENANT_DATA"),
        ("--scale -1", "scale must be a number of at least 0, not -1"),
        ("--scale nan", "--scale nan: expected a finite number"),
        ("--work 0", "work must be a number above 0, not 0"),
        ("--image a", "--image: needs --on kubernetes"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused_in_one_line(words: str, message: str) -> None:
    assert refusal("generate", "--dry-run", *words.split()).startswith(message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--image is missing; name an image with cotenant[workloads]"),
        ("--image ../a", "--image ../a: expected the name of an image"),
        ("--image a --policy best", "policy: "),
        ("--image a --volume A_b", "--volume A_b: expected the name of a PersistentVolumeClaim"),
    ],
)
def test_what_a_cluster_cannot_run_is_refused_before_it_is_asked(words: str, message: str) -> None:
    assert refusal("generate", "--on", "kubernetes", *words.split()).startswith(message)


def test_a_trace_with_too_few_jobs_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "team.csv"
    trace.write_text("id,submitted_s,duration_s,gpus\na,0,60,1\n")
    assert refusal("generate", "--trace", trace) == "the trace has 1 arrival, fewer than the 100 requested"


def test_without_a_daemon_it_says_so(tmp_path: Path) -> None:
    done = run("generate", "--jobs", "1", cwd=tmp_path, env=environment(COTENANT_STATE=str(tmp_path)))
    assert done.returncode == 3
    assert done.stderr.startswith("cotenant: no daemon is running")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def active(daemon: Daemon) -> list[JobView]:
    return daemon.client.get("/v1/jobs?state=queued,starting,running", list[JobView])


def started(daemon: Daemon, folder: Path, *words: str) -> subprocess.Popen[str]:
    """The command, once its first job is in the file."""
    env = environment(COTENANT_STATE=str(daemon.state))
    command = [*START, "generate", "--mix", "neumf", "--work", "1000", *words]
    process = subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True)
    until(lambda: (folder / "generated.csv").exists() and rows(folder / "generated.csv"))
    return process


@pytest.mark.slow
def test_a_task_runs_to_its_end_and_the_file_says_when(daemon: Daemon, tmp_path: Path) -> None:
    env = environment(
        COTENANT_STATE=str(daemon.state), COTENANT_CACHE=str(tmp_path), XLA_FLAGS="--xla_backend_optimization_level=1"
    )
    words = ("--jobs", "1", "--mix", "neumf", "--work", "0.05", "--csv", "jobs.csv", "-o", "json")
    done = run("generate", *words, cwd=tmp_path, env=env, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    (ended,) = json.loads(done.stdout)
    assert (ended["name"], ended["state"]) == ("neumf-1", "done")
    assert ended["submit"] <= ended["start"] <= ended["finish"]
    written = rows(tmp_path / "jobs.csv")
    assert [row["event"] for row in written] == ["submitted", "started", "finished"]
    assert float(written[-1]["jct_s"]) == pytest.approx(ended["jct_s"], abs=0.001)
    request = daemon.job(ended["job"]).request
    assert request is not None
    assert (request.memory, request.compute, request.batch_range) == ("193MiB", None, (64, 4096))


@pytest.mark.slow
def test_a_kill_leaves_a_file_that_can_be_read(daemon: Daemon, tmp_path: Path) -> None:
    with started(daemon, tmp_path, "--compute") as process:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert rows(tmp_path / "generated.csv")[0]["event"] == "submitted"
    (left,) = active(daemon)
    request = daemon.job(left.id).request
    assert request is not None
    assert request.compute == "20%"
    daemon.client.post(f"/v1/jobs/{left.id}/cancel", JobView)
    daemon.ended(left.id)


def test_after_an_interrupt_jobs_go_on_unless_they_are_to_be_cancelled(daemon: Daemon, tmp_path: Path) -> None:
    with started(daemon, tmp_path) as process:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert said.splitlines()[0] == "cotenant: submitted 1 job, which continues; `cotenant jobs` lists it"
    (going_on,) = active(daemon)
    (folder := tmp_path / "second").mkdir()
    with started(daemon, folder, "--cancel-on-interrupt") as process:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert "those that had not ended are cancelled" in said
    until(lambda: [job.id for job in active(daemon)] == [going_on.id])
    daemon.client.post(f"/v1/jobs/{going_on.id}/cancel", JobView)
    daemon.ended(going_on.id)


def test_a_task_too_large_for_the_machine_is_refused_by_name(daemon: Daemon, tmp_path: Path) -> None:
    env = environment(COTENANT_STATE=str(daemon.state))
    done = run("generate", "--jobs", "1", "--mix", "bert", "--size", "full", cwd=tmp_path, env=env)
    assert done.returncode == 5
    assert done.stderr.startswith("cotenant: bert-1: this can never run here")
