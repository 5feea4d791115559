# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays on the command line: one ID, one row, and real elements with their index and values."""

import json

from tests.cli.command import refusal, run
from tests.local.daemon import Daemon


def test_an_array_runs_each_element_with_its_index(daemon: Daemon, env: dict[str, str]) -> None:
    script = 'echo "$COTENANT_ARRAY_INDEX" "$1"'
    submitted = run("submit", "--array", "2-4%2", "--memory", "10MiB", "--", "sh", "-c", script, "sh", "i={}", env=env)
    array = submitted.stdout.strip()
    assert run("wait", array, env=env).returncode == 0
    assert [run("logs", f"{array}_{index}", env=env).stdout for index in (2, 3, 4)] == ["2 i=2\n", "3 i=3\n", "4 i=4\n"]
    (row,) = (line for line in run("jobs", env=env).stdout.splitlines() if line.startswith(array))
    assert "3 done" in row
    assert len(run("jobs", "--array", array, env=env).stdout.splitlines()) == 4


def test_the_values_of_a_grid_may_follow_its_option(daemon: Daemon, env: dict[str, str]) -> None:
    # Options after the first value would be words of the command: the values come last.
    words = ("--array", "%1", "--memory", "10MiB", "--grid", "lr=0.1,a b", "seed=1-2", "--")
    array = run("submit", *words, "sh", "-c", 'echo "$lr|$seed|$1"', "sh", "{lr}", env=env).stdout.strip()
    assert run("wait", array, env=env).returncode == 0
    printed = [run("logs", f"{array}_{index}", env=env).stdout for index in range(4)]
    assert printed == ["0.1|1|0.1\n", "0.1|2|0.1\n", "a b|1|a b\n", "a b|2|a b\n"]


def test_an_element_leads_to_the_cancellation_of_its_array(daemon: Daemon, env: dict[str, str]) -> None:
    array = run("submit", "--array", "3%1", "--memory", "10MiB", "--", "sleep", "600", env=env).stdout.strip()
    element = json.loads(run("jobs", "--array", array, "-o", "json", env=env).stdout)[2]
    assert element["array"] == array
    done = run("cancel", "--array", element["id"], "-o", "json", env=env)
    assert json.loads(done.stdout)["elements"] == {"cancelled": 3}


def test_an_array_of_a_million_is_refused_at_once(env: dict[str, str]) -> None:
    line = refusal("submit", "--array", "0-999999", "--", "true", env=env)
    assert line == "--array 0-999999: has 1,000,000 elements; an array has at most 10,000"
