# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The environment and the command of a submitted job: passed whole, and never shown."""

import os
from pathlib import Path

from tests.cli.command import environment, run
from tests.local.daemon import Daemon

SECRET = "hunter2-is-not-shown"


def submitted(daemon: Daemon, *words: str, **variables: str) -> str:
    """The output of a job that is submitted with these words."""
    env = environment(COTENANT_STATE=str(daemon.state), **variables)
    done = run("submit", "--memory", "50MiB", "--wait", *words, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return run("logs", done.stdout.strip(), env=env).stdout


def test_a_job_gets_the_environment_of_its_submitter(daemon: Daemon) -> None:
    seen = submitted(daemon, "--", "env", WANDB_MODE="offline", API_TOKEN=SECRET, COTENANT_JOB="j-other", PWD="/else")
    lines = seen.splitlines()
    assert {"WANDB_MODE=offline", f"API_TOKEN={SECRET}"} <= set(lines)
    assert not {"COTENANT_JOB=j-other", "PWD=/else"} & set(lines)


def test_the_environment_can_be_left_out(daemon: Daemon) -> None:
    seen = submitted(daemon, "--env-none", "--env", "KEPT=1", "--", "env", API_TOKEN=SECRET)
    assert "KEPT=1" in seen.splitlines()
    assert "API_TOKEN" not in seen


def test_no_value_of_a_variable_is_shown_and_none_is_in_a_process_list(daemon: Daemon) -> None:
    env = environment(COTENANT_STATE=str(daemon.state), API_TOKEN=SECRET)
    job = run("submit", "--memory", "50MiB", "--", "sleep", "60", env=env).stdout.strip()
    quiet = environment(COTENANT_STATE=str(daemon.state))
    for words in (("show", job), ("show", job, "-o", "wide"), ("show", job, "-o", "json"), ("jobs", "-o", "yaml")):
        assert SECRET not in run(*words, env=quiet).stdout
    assert "API_TOKEN" in run("show", job, "-o", "json", env=quiet).stdout
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert SECRET.encode() not in line.read_bytes()
        except OSError:
            continue
    run("cancel", job, env=quiet)


def test_a_variable_that_is_not_text_is_left_out_and_stops_nothing(daemon: Daemon) -> None:
    assert "WORKS=1" in submitted(daemon, "--", "env", ODD=os.fsdecode(b"\xff"), WORKS="1")


def test_options_after_the_first_word_belong_to_the_command(daemon: Daemon) -> None:
    assert submitted(daemon, "echo", "train.py", "--seed", "4", "--gpus", "8") == "train.py --seed 4 --gpus 8\n"
