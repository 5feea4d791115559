# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs in files: `submit --file jobs.yaml`, and scripts with `#COTENANT` lines."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.command import run
from tests.local.daemon import Daemon


def written(folder: Path, text: str, name: str = "jobs.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def submitted(env: dict[str, str], *words: str | Path) -> list[str]:
    done = run("submit", *words, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def refused(env: dict[str, str], *words: str | Path, code: int = 2) -> str:
    """The error; nothing was submitted."""
    before = run("jobs", "-o", "json", env=env).stdout
    done = run("submit", *words, env=env)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert [(job["id"]) for job in json.loads(run("jobs", "-o", "json", env=env).stdout)] == [
        job["id"] for job in json.loads(before)
    ]
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_all_jobs_of_a_file_are_submitted(tmp_path: Path, daemon: Daemon, env: dict[str, str]) -> None:
    path = written(
        tmp_path,
        """
defaults: {retries: 1}
jobs:
  - name: prepare
    command: sh -c 'echo "$COLOUR"'
    env: {COLOUR: dark blue}
    gpus: 0
  - command: [echo, "{lr}", two words]
    grid: {lr: [0.1, 1e-3]}
    after: [prepare]
    time: 1h
""",
    )
    first, second = submitted(env, "--file", path)
    one, two = daemon.ended(first), daemon.client.wait_for(second)
    assert one.request is not None
    assert (one.request.retries, one.name) == (1, "prepare")
    assert run("logs", first, env=env).stdout == "dark blue\n"
    assert two.request is not None
    assert (two.request.after, two.request.time_s) == ((f"{first}:ok",), 3600.0)
    assert two.elements == {"done": 2}
    assert run("logs", f"{second}_1", env=env).stdout == "1e-3 two words\n"


def test_one_job_needs_no_list_and_the_command_line_wins(tmp_path: Path, daemon: Daemon, env: dict[str, str]) -> None:
    path = written(tmp_path, "command: 'true'\nmemory: 100MiB\npriority: 3\nenv: [A=1]\nexclusive: true\n")
    (job,) = submitted(env, "--priority", "5", "--env", "B=2", "--file", path)
    request = daemon.ended(job).request
    assert request is not None
    assert (request.priority, request.memory, request.exclusive) == (5, "100MiB", True)
    assert "B" in request.env
    assert "A" not in request.env


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", " expected at least one job"),
        ("- \n", "1: expected keys and values"),
        ("[]", "1: expected at least one job"),
        ("jobs: [}", "1: not YAML"),
        ("- command: 'true'\n  memroy: 1GiB\n", "2: unknown key 'memroy'; did you mean 'memory'?"),
        ("- command: 'true'\n- name: x\n", "2: the job has no command"),
        ("- command: 'true'\n  gpus: many\n", "2: Invalid value for '--gpus'"),
        ("- command: 'true'\n  time: soon\n", "2: --time soon: expected a run time"),
        ("- command: 'true'\n  gpus: 1\n  gpus: 2\n", "3: the key 'gpus' comes a second time"),
        ("- command: 'true'\n  exclusive: maybe\n", "2: exclusive: expected true or false"),
        ("- command: 'true'\n  gpus: [1, 2]\n", "2: gpus: expected one value"),
        ("- command: 'true'\n  gpus:\n", "2: gpus: expected a value"),
        ("- command: \"sh -c 'x\"\n", "1: command: no closing quotation"),
        ("- command: 'true'\n  wait: true\n", "2: unknown key 'wait'"),
        ("- command: 'true'\n  array: 0-31\n  grid: {A: [1]}\n", "1: an array needs either indexes"),
        ("- command: 'true'\n  grid: &a {A: *a}\n", "2: grid: expected one value, or a list of them"),
        ("- command: 'true'\n  warn: 5m\n", "1: --warn: expected a time before the end"),
        ("- command: 'true'\n  name: 'j-000001'\n", "1: --name j-000001: this is the form of a job ID"),
        ("defaults: {gpus: 1}\njobs:\n- command: 'true'\nother: 1\n", "4: unknown key 'other'"),
    ],
)  # fmt: skip
def test_an_error_names_the_line_and_nothing_is_submitted(
    tmp_path: Path, env: dict[str, str], text: str, error: str
) -> None:
    path = written(tmp_path, text)
    assert f"{path}:{error}" in refused(env, "--file", path)


def test_all_are_accepted_or_none(tmp_path: Path, env: dict[str, str]) -> None:
    path = written(tmp_path, "- command: 'true'\n  memory: 100MiB\n- command: 'true'\n  gpus: 100\n")
    assert f"{path}:3: this can never run here" in refused(env, "--file", path, code=5)


@pytest.mark.parametrize("first", ["second", "second:any"])
def test_a_circle_of_jobs_is_refused_with_the_line(tmp_path: Path, env: dict[str, str], first: str) -> None:
    jobs = f"- command: 'true'\n  name: first\n  after: {first}\n- command: 'true'\n  name: second\n  after: first\n"
    path = written(tmp_path, jobs)
    assert f"{path}:1: --after second: this job comes later in the list" in refused(env, "--file", path)


def test_a_job_that_is_not_there_is_named_with_the_line(tmp_path: Path, env: dict[str, str]) -> None:
    path = written(tmp_path, "- command: 'true'\n- command: 'true'\n  after: nothing-here\n")
    assert f"{path}:2: no job 'nothing-here'" in refused(env, "--file", path, code=4)


def test_a_dry_run_checks_and_submits_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    before = run("jobs", "-o", "json", env=env).stdout
    path = written(tmp_path, "- {command: 'true', name: one}\n- {command: echo 2, after: one}\n")
    done = run("submit", "--file", path, "--dry-run", env=env)
    assert (done.returncode, done.stdout) == (0, "one: true\necho: echo 2\n")
    assert done.stderr == "2 jobs would be accepted; nothing was submitted\n"
    done = run("submit", "--dry-run", "-o", "json", "--", "true", env=env)
    assert [one["id"] for one in json.loads(done.stdout)] == [""]
    assert len(json.loads(run("jobs", "-o", "json", env=env).stdout)) == len(json.loads(before))
    assert "this can never run here" in refused(env, "--dry-run", "--gpus", "100", "true", code=5)


def test_a_file_and_a_command_exclude_each_other(tmp_path: Path, env: dict[str, str]) -> None:
    path = written(tmp_path, "command: 'true'\n")
    assert "give a command" in refused(env)
    assert "give a command" in refused(env, "--file", path, "true")


SCRIPT = """#!/bin/sh
# trains

#COTENANT --memory 100MiB --name trained
#COTENANT --env "COLOUR=dark blue" --priority 2   # a comment
echo "$COLOUR" "$@"
#COTENANT --gpus 99
"""


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_script_has_options_in_comment_lines(tmp_path: Path, daemon: Daemon, env: dict[str, str], mode: int) -> None:
    path = written(tmp_path, SCRIPT, "train.sh")
    path.chmod(mode)
    (job,) = submitted(env, "--priority", "7", path, "--epochs", "3")
    view = daemon.ended(job)
    assert view.request is not None
    assert (view.name, view.request.priority, view.request.gpus, view.request.memory) == ("trained", 7, 1, "100MiB")
    assert run("logs", job, env=env).stdout == "dark blue --epochs 3\n"


def test_a_script_is_found_in_the_current_folder(tmp_path: Path, daemon: Daemon, env: dict[str, str]) -> None:
    written(tmp_path, SCRIPT, "train.sh")
    done = run("submit", "train.sh", cwd=tmp_path, env=env)
    assert daemon.ended(done.stdout.strip()).code == 0


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--memroy 1GiB", ":2: No such option '--memroy'"),
        ("--gpus many", ":2: Invalid value for '--gpus'"),
        ("--time never", ":2: --time never: expected a run time"),
        ("--gpus", ":2: Option '--gpus' requires an argument"),
        ("train", ":2: expected options only, not 'train'"),
        ("--name 'x", ":2: no closing quotation"),
        ("--wait", ":2: --wait: give it on the command line"),
        ("--file other.yaml", ":2: --file: give it on the command line"),
    ],
)
def test_an_error_in_a_script_names_the_line(tmp_path: Path, env: dict[str, str], line: str, error: str) -> None:
    path = written(tmp_path, f"#!/bin/sh\n#COTENANT {line}\n", "train.sh")
    assert f"{path}{error}" in refused(env, path)


def test_a_program_without_such_lines_is_a_plain_command(tmp_path: Path, env: dict[str, str]) -> None:
    path = written(tmp_path, "#!/bin/sh\necho hello\n", "plain.sh")
    path.chmod(0o755)
    assert run("submit", "--wait", "--memory", "100MiB", path, env=env).returncode == 0
    os.mkfifo(tmp_path / "fifo")
    assert run("submit", "--wait", "--memory", "100MiB", tmp_path / "fifo", env=env).returncode == 127
    path = written(tmp_path, "echo\n#COTENANT --gpus 99\n", "late.sh")
    assert run("submit", "--wait", "--memory", "100MiB", path, env=env).returncode == 127


def test_a_script_without_interpreter_is_refused(tmp_path: Path, env: dict[str, str]) -> None:
    path = written(tmp_path, "#COTENANT --gpus 1\n", "train.sh")
    assert f"{path}:1: expected a line such as #!/bin/sh" in refused(env, path)
