# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Commands against a real daemon, as a user runs them: what they print, what they refuse, and how they exit."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotenant.client.endings import exit_code
from cotenant.wire.job_views import JobView
from tests.cli.command import START, environment, refusal, run
from tests.local.daemon import Daemon, until

MACHINE = ("up", "--simulate", "1", "--gpu-memory", "1GiB")


@pytest.fixture(scope="module")
def nap(daemon: Daemon) -> str:
    """A job that runs as long as these tests."""
    job = daemon.submit("sleep", "600", name="nap").id
    until(lambda: daemon.job(job).state == "running")
    return job


# What they print


def steady(document: Any) -> Any:
    """Without what is measured, and may be known a moment later."""
    if isinstance(document, list):
        return [steady(one) for one in document]
    if isinstance(document, dict):
        measured = ("memory_used_mib", "utilisation")
        return {key: steady(value) for key, value in document.items() if key not in measured}
    return document


@pytest.mark.parametrize("words", ["status", "jobs", "gpus", "show nap", "why nap", "top --once"])
def test_every_command_that_prints_data_prints_it_four_ways(env: dict[str, str], nap: str, words: str) -> None:
    printed = {kind: run(*words.split(), "-o", kind, env=env).stdout for kind in ("table", "wide", "json", "yaml")}
    document = json.loads(printed["json"])
    assert type(yaml.safe_load(printed["yaml"])) is type(document)
    if words != "top --once":  # which looks at other moments
        assert steady(yaml.safe_load(printed["yaml"])) == steady(document)
    assert len(printed["wide"].splitlines()) >= len(printed["table"].splitlines()) > 1
    assert not printed["table"].startswith(("{", "["))


def test_submit_prints_the_id_alone_for_scripts(env: dict[str, str]) -> None:
    job = run("submit", "--memory", "10MiB", "--wait", "--", "true", env=env).stdout.strip()
    assert json.loads(run("show", job, "-o", "json", env=env).stdout)["outcome"] == "exited"


def test_show_says_what_is_known_and_nothing_of_what_is_not(env: dict[str, str], nap: str) -> None:
    lines = run("show", nap, env=env).stdout.splitlines()
    said = {line.split()[0]: line.split()[1:] for line in lines if len(line.split()) > 1}
    assert (said["id"], said["name"], said["state"], said["gpus"]) == ([nap], ["nap"], ["running"], ["0"])
    assert (said["command"], said["memory"]) == (["sleep", "600"], ["100MiB"])
    assert not {"ended", "outcome", "error", "batch", "env"} & set(said)


def test_a_list_that_was_cut_says_so(daemon: Daemon, env: dict[str, str], nap: str) -> None:
    daemon.ended(daemon.submit("true").id)
    done = run("jobs", "--limit", "1", "-o", "json", env=env)
    assert len(json.loads(done.stdout)) == 1
    assert done.stderr.startswith("the output is limited to the newest 1 job")
    assert run("jobs", "--state", "running , starting", env=env).stderr == ""


def test_what_a_job_is_called_cannot_move_the_cursor(daemon: Daemon, env: dict[str, str]) -> None:
    job = daemon.submit("sh", "-c", "exit 1 # \x1b[2J", memory="10MiB")
    daemon.ended(job.id)
    assert "\x1b" not in run("show", job.id, env=env).stdout + run("jobs", env=env).stdout


# What they do


def test_a_job_that_failed_runs_again_when_asked(daemon: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    job = daemon.submit("sh", "-c", f"echo ran >> {tmp_path}/ran; test -e {tmp_path}/ready")
    assert daemon.ended(job.id).code == 1
    (tmp_path / "ready").touch()
    assert run("retry", job.id, env=env).returncode == 0
    until(lambda: daemon.job(job.id).code == 0)
    assert (tmp_path / "ran").read_text() == "ran\nran\n"


def test_a_drained_gpu_is_cordoned_and_empty(daemon: Daemon, env: dict[str, str]) -> None:
    job = daemon.submit("sleep", "1", memory="1000MiB")  # beside the nap there is no room for it
    until(lambda: daemon.job(job.id).state == "running")
    (gpu,) = daemon.job(job.id).gpus
    done = run("drain", str(gpu), "-o", "json", env=env)
    assert (json.loads(done.stdout)["cordoned"], json.loads(done.stdout)["tenants"]) == (True, [])
    assert daemon.job(job.id).code == 0
    assert run("uncordon", str(gpu), env=env).returncode == 0


def test_eviction_empties_a_gpu_at_once_and_the_job_goes_elsewhere(daemon: Daemon, env: dict[str, str]) -> None:
    job = daemon.submit("sleep", "600", memory="600MiB", grace_s=1)
    until(lambda: daemon.job(job.id).state == "running")
    (gpu,) = daemon.job(job.id).gpus
    assert run("drain", "--evict", str(gpu), env=env).returncode == 0
    moved = until(lambda: view if (view := daemon.job(job.id)).state == "running" else None)
    assert moved.gpus == (1 - gpu,)
    assert run("uncordon", str(gpu), env=env).returncode == 0
    assert run("cancel", job.id, env=env).returncode == 0
    daemon.ended(job.id)


# How they exit


def wait_code(env: dict[str, str], *words: str) -> int:
    return run("submit", "--memory", "10MiB", "--wait", "--", *words, env=env).returncode


def test_wait_exits_as_the_job_did(env: dict[str, str]) -> None:
    assert wait_code(env, "sh", "-c", "exit 7") == 7
    assert wait_code(env, "sh", "-c", "kill -TERM $$") == 128 + signal.SIGTERM
    assert wait_code(env, "/no/such/program") not in (0, 2, 3, 4, 5)


def test_wait_exits_as_the_first_job_that_failed(daemon: Daemon, env: dict[str, str]) -> None:
    well, badly = daemon.submit("true").id, daemon.submit("sh", "-c", "exit 3").id
    done = run("wait", well, badly, env=env)
    assert done.returncode == 3
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{well} is done")
    assert second.startswith(f"{badly} failed with exit code 3")
    assert run("wait", well, env=env).returncode == 0
    assert run("wait", "j-999999", env=env).returncode == 4


def test_wait_ends_at_its_timeout(env: dict[str, str], nap: str) -> None:
    done = run("wait", "--timeout", "1s", nap, env=env)
    assert (done.returncode, done.stdout) == (124, f"{nap} is running: it has not ended in time\n")


def test_the_time_limit_is_the_outcome_of_a_job(daemon: Daemon, env: dict[str, str]) -> None:
    done = run("submit", "--time", "1s", "--retries", "3", "--memory", "10MiB", "--wait", "--", "sleep", "600", env=env)
    job = done.stdout.strip()
    assert done.returncode == 124
    assert (daemon.job(job).outcome, daemon.job(job).attempts) == ("time-limit", 1)
    assert "was ended at its time limit" in run("why", job, env=env).stdout
    assert job in run("jobs", "--state", "time-limit", env=env).stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--time", "0s"), "--time 0s: expected a run time of 1s to 365d, for example 45m, 2h or 3d"),
        (("--time", "soon"), "--time soon: expected a run time of 1s to 365d, for example 45m, 2h or 3d"),
        (("--warn", "5m"), "--warn: expected a time before the end of --time, which is needed too"),
        (("--time", "1m", "--warn", "5m"), "--warn: expected a time before the end of --time, which is needed too"),
    ],
)
def test_impossible_time_limits_are_refused(env: dict[str, str], options: tuple[str, ...], sentence: str) -> None:
    assert refusal("submit", *options, "--", "true", env=env) == sentence


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"state": "finished", "outcome": "exited", "code": 0}, 0),
        ({"state": "finished", "outcome": "out-of-memory", "signal": 9}, 137),
        ({"state": "cancelled", "outcome": "cancelled"}, 130),
        ({"state": "cancelled"}, 130),
        ({"state": "finished", "outcome": "time-limit", "code": 0}, 124),
        ({"state": "running"}, 124),
        ({"state": "interrupted", "outcome": "interrupted"}, 1),
        ({"state": "lost", "outcome": "lost"}, 1),
    ],
)
def test_every_end_of_a_job_has_its_exit_code(how: dict[str, str], code: int) -> None:
    assert exit_code(JobView(id="j-1", name="a", submitted=0.0, **how)) == code  # type: ignore[arg-type]


def test_interrupted_wait_exits_with_130_and_leaves_the_job_alone(daemon: Daemon, env: dict[str, str]) -> None:
    words = ("submit", "--memory", "10MiB", "--name", "left", "--wait", "--", "sleep", "600")
    with subprocess.Popen(
        [*START, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waiting:
        until(lambda: any(job.name == "left" for job in daemon.client.get("/v1/jobs?state=running", list[JobView])))
        waiting.send_signal(signal.SIGINT)
        printed, said = waiting.communicate(timeout=300)
    assert waiting.returncode == 130
    assert said.split("\n\n") == [
        f"{printed.strip()} continues; `cotenant cancel {printed.strip()}` stops it",
        "cotenant: interrupted\n",
    ]
    assert daemon.job("left").state == "running"
    assert run("cancel", "left", env=env).returncode == 0


@pytest.mark.parametrize("words", ["jobs", "logs x", "top --once"])
def test_without_a_daemon_the_exit_code_is_3(words: str, tmp_path: Path) -> None:
    done = run(*words.split(), env=environment(COTENANT_STATE=str(tmp_path)))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "cotenant: no daemon is running; start it with `cotenant up --detach`\n"


@pytest.mark.parametrize("words", ["show x", "logs x", "retry x", "drain 7"])
def test_what_the_daemon_does_not_know_is_exit_code_4(env: dict[str, str], words: str) -> None:
    done = run(*words.split(), env=env)
    assert (done.returncode, done.stdout) == (4, "")
    kind, name = ("GPU", "7") if words.endswith("7") else ("job", "x")
    assert done.stderr.startswith(f"cotenant: no {kind} '{name}' here; ")


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (
            "--memory 2GiB",
            "needs 2048 MiB on one GPU; the freest has 1024 MiB free; "
            "it would run with 1024 MiB of GPU memory instead of 2048 MiB",
        ),
        ("--gpus 3", "needs 3 GPUs on one node; the node has 2; it would run with 2 GPUs instead of 3 GPUs"),
    ],
)
def test_what_can_never_run_here_is_exit_code_5_with_the_numbers(env: dict[str, str], words: str, numbers: str) -> None:
    done = run("submit", *words.split(), "--", "true", env=env)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == f"cotenant: this can never run here: {numbers}\n"


REFUSED = {
    "jbos": "unknown command 'jbos'; did you mean jobs?",
    "submit --memory 4 -- true": "--memory 4: give a unit, for example 4GiB, 4096MiB or 50%",
    "submit --memory -4GiB -- true": "--memory -4GiB: give a unit, for example 4GiB, 4096MiB or 50%",
    "submit --gpus -1 -- true": "Invalid value for '--gpus': -1 is not in the range 0<=x<=1024.",
    "submit --retries -2 -- true": "Invalid value for '--retries': -2 is not in the range 0<=x<=100.",
    "submit --floor nan -- true": "--floor nan: expected a finite number",
    "submit --compute 130% -- true": "--compute: '130%' is not a percentage",
    "submit --batch-range 9-3 -- true": "--batch-range 9-3: expected LOW-HIGH with 1 <= LOW <= HIGH",
    "submit --batch-range 9 -- true": "--batch-range 9: expected LOW-HIGH, for example 16-512",
    "submit --cwd /no/such/folder -- true": "Invalid value for '--cwd': Directory '/no/such/folder' does not exist.",
    "submit --name a/b -- true": "--name a/b: expected up to 100 letters, digits, dots, dashes and underscores",
    "submit --env NOT_SET_ANYWHERE -- true": "--env NOT_SET_ANYWHERE: the variable is not set in this shell;",
    "submit --colour red -- true": "No such option '--colour'.",
    "submit": "submit: give a command, for example `cotenant submit -- python train.py`, or --file jobs.yaml",
    "jobs --state happy": "--state happy: unknown state; expected some of queued, starting, running, finished,",
    "up --listen 99": "--listen needs --token-file",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_line_with_exit_code_2(env: dict[str, str], words: str) -> None:
    assert refusal(*words.split(), env=env).startswith(REFUSED[words])


def test_what_has_ended_cannot_be_cancelled(daemon: Daemon, env: dict[str, str]) -> None:
    job = daemon.ended(daemon.submit("true").id).id
    assert refusal("cancel", job, env=env) == f"{job} has already ended (finished)"


def test_a_large_log_of_earlier_daemons_is_set_aside(tmp_path: Path) -> None:
    state, env = tmp_path, environment(COTENANT_STATE=str(tmp_path))
    (state / "daemon.log").write_bytes(b"x" * (9 << 20))
    run(*MACHINE, "--policy", "nope", "--detach", env=env)
    assert (state / "daemon.log.1").stat().st_size == 9 << 20
    assert "unknown policy" in (state / "daemon.log").read_text()


def test_a_detached_daemon_that_cannot_start_says_why_and_exits_as_it_did(tmp_path: Path) -> None:
    env = environment(COTENANT_STATE=str(tmp_path))
    (tmp_path / "journal.db").write_bytes(b"not a database" * 100)
    (tmp_path / "journal.db").chmod(0o600)
    damaged = run(*MACHINE, "--detach", env=env)
    assert damaged.returncode == 1
    (line,) = damaged.stderr.splitlines()
    assert line.startswith("cotenant: the daemon did not start: ")
    (tmp_path / "journal.db").unlink()
    unknown = run(*MACHINE, "--policy", "nope", "--detach", env=env)
    assert unknown.returncode == 2
    assert "unknown policy 'nope'" in unknown.stderr


def test_a_state_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = environment(COTENANT_STATE=str(tmp_path / "file" / "state"))
    expected = "the state folder cannot be created: Not a directory; set COTENANT_STATE to another folder"
    assert refusal(*MACHINE, "--detach", env=env) == f"{tmp_path}/file/state: {expected}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    env = environment(COTENANT_STATE=str(tmp_path / "closed"))
    assert "is not writable" in refusal(*MACHINE, "--detach", env=env)


@pytest.mark.parametrize("url", ["http://here", "http://here:port", "ftp://here:1", "nowhere"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    line = refusal("jobs", env=environment(COTENANT_URL=url))
    assert line == f"COTENANT_URL={url}: expected http://HOST:PORT or https://HOST:PORT"
