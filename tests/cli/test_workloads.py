# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant workloads`: data sets, and manifests that are those of the example."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from cotenant.workloads.registry import TASKS
from tests.cli.command import refusal, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "iadeep"


def test_the_files_of_the_example_are_what_the_command_in_its_readme_writes(tmp_path: Path) -> None:
    (line,) = [line for line in (EXAMPLE / "README.md").read_text().splitlines() if line.endswith("--out .")]
    done = run(*shlex.split(line)[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in EXAMPLE.glob("*.yaml")}
    assert set(written) == {"data.yaml", *(f"{task.replace('_', '-')}.yaml" for task in TASKS)}


def test_a_manifest_runs_the_task_with_its_demand_on_its_data() -> None:
    words = ("lstm", "bert", "--image", "team/tasks:1", "--size", "full", "--volume", "sets", "--policy", "iadeep")
    claim, fill, lstm, bert = yaml.safe_load_all(run("workloads", "manifests", *words).stdout)
    assert (claim["kind"], claim["metadata"]["name"]) == ("PersistentVolumeClaim", "sets")
    (main,) = fill["spec"]["template"]["spec"]["containers"]
    assert main["command"][4:] == ["workloads", "prepare", "--out", "/data", "--size", "full"]
    assert main["resources"]["limits"] == {}
    # The image runs as a user to whom a new volume does not belong.
    assert fill["spec"]["template"]["spec"]["securityContext"]["fsGroup"] == 65532
    (main,) = lstm["spec"]["template"]["spec"]["containers"]
    assert main["command"][-2:] == ["--data", "/data/text"]
    assert main["resources"]["limits"] == {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 384 + 175}
    assert lstm["spec"]["template"]["metadata"]["annotations"] == {
        "cotenant.io/workload": "lstm",
        "cotenant.io/policy": "iadeep",
    }
    # bert makes its own samples, so it does not wait for the volume
    assert "volumes" not in bert["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("manifests nothing --image a", "no task named 'nothing'; there are vgg16"),
        ("manifests --image ../a", "--image ../a: expected the name of an image"),
        ("manifests --image a --policy best", "policy: "),
        ("manifests --image a --volume A_b", "--volume A_b: expected the name of a PersistentVolumeClaim"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(words: str, message: str) -> None:
    assert refusal("workloads", *words.split()).startswith(message)


def test_prepared_files_are_listed_for_programs(tmp_path: Path) -> None:
    done = run("workloads", "prepare", "--out", tmp_path / "sets", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["new"] for one in found] == [True] * 6
    assert (tmp_path / "sets" / found[0]["name"]).stat().st_size == found[0]["bytes"]
    again = run("workloads", "prepare", "--out", tmp_path / "sets").stdout
    assert again.count("present") == 6
