# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant report` as a user runs it, on a real daemon and on a file, in every format."""

import csv
import getpass
import io
import json
from pathlib import Path

import pytest

from tests.cli.command import environment, refusal, run
from tests.local.daemon import Daemon


@pytest.mark.slow
def test_a_real_daemon_is_reported_in_every_format(daemon: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    jobs = [daemon.submit("sleep", "0.5", memory="300MiB").id for _ in range(3)]
    failing = daemon.submit("false", memory="10MiB").id
    for one in (*jobs, failing):
        daemon.ended(one)
    made = json.loads(run("report", "--since", "1h", "-o", "json", env=env).stdout)
    assert made["version"] == 1
    assert (made["nodes"], made["gpus"]) == (1, 2)
    assert made["outcomes"]["finished"] >= 3
    assert made["outcomes"]["failed"] >= 1
    assert made["saved"]["low"] <= made["saved"]["estimate"] <= made["saved"]["high"]
    assert made["exclusive"]["unplaceable"] == 0
    users = {one["name"]: one for one in made["groups"] if one["by"] == "user"}
    assert users[getpass.getuser()]["jobs"] >= 4

    text = run("report", env=env).stdout
    assert "GPU-hours" in text
    assert "against one job per GPU" in text
    rows = list(csv.DictReader(io.StringIO(run("report", "-o", "csv", env=env).stdout)))
    assert rows[0]["by"] == "all"
    assert int(rows[0]["jobs"]) >= 4
    page = tmp_path / "report.html"
    assert f"bytes to {page}" in run("report", "-o", "html", "--file", page, env=env).stdout
    assert page.read_text().startswith("<!DOCTYPE html>")

    day = tmp_path / "day.jsonl"
    run("decisions", "--file", day, env=env)
    again = json.loads(run("report", "--recording", day, "-o", "json").stdout)
    assert again["outcomes"] == made["outcomes"]


@pytest.mark.parametrize("name", ["=SUM(A1)", "@x", "-1"])
def test_no_cell_is_a_formula(name: str, tmp_path: Path) -> None:
    from cotenant.wire.recording import encode_line
    from tests.history.test_day_report import begin, job

    day = tmp_path / "day.jsonl"
    day.write_bytes(b"".join(map(encode_line, [begin(), *job("a", 0, 0, 1, user=name)])))
    text = run("report", "--recording", day, "--since", "5h", "-o", "csv").stdout
    assert f"user,'{name}," in text


def test_bad_files_are_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("nonsense\n")
    assert "bad.jsonl:1: not a line of a recording" in refusal("report", "--recording", bad)
    assert "expected an age" in refusal("report", "--since", "yesterday")
    alone = environment(COTENANT_RUNTIME=str(tmp_path))  # the machine may have a daemon for all its users
    assert "no daemon is running" in run("report", env=alone).stderr
