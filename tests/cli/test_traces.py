# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant traces`: what there is, and a checkout that becomes a trace the simulator reads."""

import json
from pathlib import Path

from tests.cli.command import environment, refusal, run
from tests.sim.test_public_traces import openb


def test_a_checkout_is_added_listed_and_simulated(tmp_path: Path) -> None:
    checkout, data = tmp_path / "clusterdata", tmp_path / "data"
    checkout.mkdir()
    openb(checkout)
    env = environment(COTENANT_DATA=str(data))
    added = run("traces", "add", "openb", checkout, env=env)
    assert added.returncode == 0, added.stderr
    assert [line.split()[0] for line in added.stdout.splitlines()] == [
        "FILE",
        "openb/openb_pod_list_default.csv",
        "openb/openb_node_list_gpu_node.csv",
    ]
    listed = {row["name"]: row for row in json.loads(run("traces", "list", "-o", "json", env=env).stdout)}
    assert listed["openb"]["traces"] == ["openb", "openb:default"]
    assert [name for name, row in listed.items() if row["present"]] == ["openb"]
    simulated = run("simulate", "--trace", "openb", "--policy", "binpack", "-o", "json", env=env)
    assert json.loads(simulated.stdout)["runs"][0]["policy"] == "binpack", simulated.stderr


def test_without_a_folder_the_list_says_which_variable_names_it() -> None:
    done = run("traces", "list")
    assert "git clone --depth 1 https://github.com/microsoft/elasticflow-traces" in done.stdout
    assert done.stderr == "COTENANT_DATA is not set; it names the folder of public traces\n"


def test_what_cannot_be_added_is_refused_in_one_line(tmp_path: Path) -> None:
    env = environment(COTENANT_DATA=str(tmp_path / "data"))
    assert refusal("traces", "add", "borg", tmp_path, env=env).startswith(
        "unknown traces 'borg'; expected one of openb"
    )
    assert refusal("traces", "add", "openb", tmp_path).startswith("COTENANT_DATA is not set")
    assert refusal("traces", "add", "openb", tmp_path / "x", env=env).endswith(
        "not a folder; expected that of `git clone --depth 1 https://github.com/alibaba/clusterdata`"
    )
    assert refusal("traces", "add", "openb", tmp_path, env=env).startswith(f"{tmp_path}: no traces of openb")


def test_a_trace_that_is_missing_says_how_to_get_it(tmp_path: Path) -> None:
    assert "`cotenant traces list`" in refusal("simulate", "--trace", "philly")
    assert "`cotenant traces list`" in refusal(
        "simulate", "--trace", "philly", env=environment(COTENANT_DATA=str(tmp_path))
    )
