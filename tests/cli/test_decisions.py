# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant decisions` as a user runs it: a real daemon is recorded, and its day is replayed."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.command import refusal, run
from tests.local.daemon import Daemon, until


@pytest.mark.slow
def test_a_real_daemon_is_recorded_and_replayed(daemon: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    jobs = [daemon.submit("true", memory=memory).id for memory in ("600MiB", "300MiB", "500MiB")]
    for job in jobs:
        daemon.ended(job)
    daemon.kill()  # what was recorded is not lost
    daemon.up()
    last = daemon.ended(daemon.submit("true", memory="10MiB").id).id
    day = tmp_path / "day.jsonl"
    assert run("decisions", "--file", day, env=env).returncode == 0
    assert os.stat(day).st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in day.read_text().splitlines()]
    assert [line["job"]["id"] for line in lines if line["type"] == "decision" and line["slots"]][-4:] == [*jobs, last]
    assert run("decisions", env=env).stdout.encode() == day.read_bytes()

    replayed = json.loads(run("why", "--decision", day, "-o", "json").stdout)
    assert replayed["decisions"] == replayed["as_recorded"] >= 4
    shown = json.loads(run("why", "--decision", day, last, "-o", "json").stdout)
    assert (shown["job"], shown["as_recorded"]) == (last, True)
    assert "no decision about 'j-999999'" in refusal("why", "--decision", day, "j-999999")

    done = run("simulate", "--trace", f"recorded:{day}", "--policy", "least-loaded,binpack", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "recorded by local under least-loaded, queue fifo; durations are as measured" in done.stderr
    results = json.loads(done.stdout)
    assert (results["mode"], results["nodes"], results["gpus"]) == ("timed", 1, 2)
    assert {run["summary"]["jobs"] for run in results["runs"]} == {float(replayed["decisions"] - replayed["refused"])}


def test_why_a_job_waited_is_replayed(daemon: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    first = daemon.submit("sleep", "60", memory="900MiB", gpus=2).id
    until(lambda: daemon.job(first).state == "running" or None)
    second = daemon.submit("true", memory="800MiB").id
    day = tmp_path / "day.jsonl"
    run("decisions", "--file", day, env=env)
    waited = run("why", "--decision", day, second)
    assert "fits nowhere" in waited.stdout
    assert "124 MiB free" in waited.stdout
    assert run("cancel", first, env=env).returncode == 0
    daemon.ended(second)
    run("decisions", "--file", day, env=env)
    shown = run("why", "--decision", day, second).stdout
    assert f"{second} under least-loaded: local GPU" in shown
    assert "refused: " in shown.splitlines()[0]
    (before,) = json.loads(run("why", "--decision", day, second, "-o", "json").stdout)["before"]
    assert "124 MiB free" in before["outcome"]


def test_an_edited_recording_is_noticed(daemon: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    daemon.ended(daemon.submit("true", memory="600MiB").id)
    day = tmp_path / "day.jsonl"
    run("decisions", "--file", day, env=env)
    day.write_text(
        day.read_text().replace('"slots":[{"node":"local","gpus":[0]}]', '"slots":[{"node":"local","gpus":[1]}]')
    )
    done = run("why", "--decision", day)
    assert done.returncode == 2
    assert "recorded local/[1], replayed local/[0]" in done.stdout
    assert "would be made otherwise now" in done.stderr


@pytest.mark.slow
def test_bad_files_are_refused(daemon: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    assert "cannot be written: No such file" in run("decisions", "--file", tmp_path / "no" / "day", env=env).stderr
    newer = tmp_path / "newer.jsonl"
    newer.write_text('{"version":7,"type":"begin"}\n')
    assert "written by a newer cotenant" in refusal("why", "--decision", newer)
    assert "written by a newer cotenant" in refusal("simulate", "--trace", f"recorded:{newer}")
    assert "expected recorded:FILE" in refusal("simulate", "--trace", "recorded:")
    assert "No such file" in refusal("simulate", "--trace", "recorded:gone.jsonl")
