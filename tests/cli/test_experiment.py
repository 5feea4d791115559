# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant experiment` as a user runs it: what it lists, writes and refuses, and how it ends when it is stopped."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from cotenant.sim.studies.registry import STUDIES
from tests.cli.command import START, environment, refusal, run, wait_until
from tests.cli.test_simulate import alive, workers

QUICK = ("experiment", "tune-grid", "--seeds", "40")


@pytest.fixture
def env(data: Path) -> dict[str, str]:
    return environment(COTENANT_DATA=str(data), COLUMNS="200")


def test_unknown_study_is_answered_with_those_that_exist() -> None:
    assert refusal("experiment", "nothing") == (f"unknown study 'nothing'; expected some of {', '.join(STUDIES)}, all")


def test_without_a_name_all_are_listed_and_no_data_is_needed() -> None:
    done = run("experiment", "-o", "json")
    assert [one["name"] for one in json.loads(done.stdout)] == list(STUDIES)
    assert [line.split()[0] for line in run("experiment").stdout.splitlines()] == ["NAME", *STUDIES]


def test_study_without_data_says_what_to_set(tmp_path: Path) -> None:
    assert "set COTENANT_DATA" in refusal("experiment", "place")
    missing = environment(COTENANT_DATA=str(tmp_path / "none"))
    assert "is not a folder; set COTENANT_DATA" in refusal("experiment", "place", env=missing).replace(")", "")


@pytest.mark.parametrize("words", ["nothing", "place --seeds 3-1", "place --out file", "place --processes 0"])
def test_bad_word_is_refused_in_one_line(tmp_path: Path, env: dict[str, str], words: str) -> None:
    (tmp_path / "file").touch()
    assert refusal("experiment", *words.split(), cwd=tmp_path, env=env)


@pytest.mark.slow
def test_same_command_gives_the_same_bytes_and_its_own_words(tmp_path: Path, env: dict[str, str]) -> None:
    written = []
    for _ in range(2):
        done = run(*QUICK, "--out", "out", cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(" targets met\n")
        written.append({path.name: path.read_bytes() for path in sorted((tmp_path / "out").iterdir())})
    assert list(written[0]) == ["report.html", "report.md", "results.json", "runs.csv"]
    assert written[0] == written[1]
    found = json.loads(written[0]["results.json"])
    assert found["command"] == "cotenant experiment tune-grid --seeds 40 --out out"
    assert found["command"].encode() in written[0]["report.html"]
    assert len(found["studies"][0]["runs"]) == 18
    assert {row["met"] for row in found["studies"][0]["findings"]} == {True}


def test_interrupt_ends_everything_in_one_line_and_writes_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    words = [*START, "experiment", "place", "--processes", "2", "--out", "out"]
    command = subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: len(workers(command.pid)) == 2)
    there = workers(command.pid)
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=300)
    assert (command.returncode, said.strip()) == (130, "cotenant: interrupted")
    wait_until(lambda: not any(map(alive, there)))
    assert list(tmp_path.iterdir()) == []
