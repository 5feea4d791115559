# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The ten cases of ai-benchmark: one of them is measured under all three settings, and tables are made of results."""

import json
from pathlib import Path

import pytest
import yaml

from cotenant.workloads.registry import find
from cotenant.workloads.suite import CASES, Setting, command_of
from tests.cli.command import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "hami" / "ai-benchmark.yaml"


def test_there_are_ten_cases_of_five_models_with_the_published_batch_sizes() -> None:
    assert [case.number for case in CASES] == [f"{model}.{mode}" for model in range(1, 6) for mode in (1, 2)]
    assert {find(case.task).suite for case in CASES} == {"ai-benchmark"}
    assert [case.batch for case in CASES] == [50, 20, 10, 10, 20, 2, 2, 1, 100, 10]
    assert "--batch" in command_of(CASES[0], "full", 1)


def test_a_case_is_measured_native_in_a_slice_and_with_virtual_memory(tmp_path: Path) -> None:
    words = ("ai-benchmark", "--case", "5.2", "--seconds", "0.1", "--memory", "512MiB")
    done = run(*words, "--output", "json", env={"JAX_PLATFORMS": "cpu", "COTENANT_RUNTIME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["setting"] for one in found] == list(Setting)
    assert [(one["device"], one["error"]) for one in found] == [("cpu", None)] * 3
    assert all(one["samples_per_s"] > 0 for one in found)


def result(case: str, setting: str, speed: float | None, device: str) -> dict[str, object]:
    about = {"case": case, "model": "VGG-16", "mode": "infer", "size": "full", "batch": 20, "setting": setting}
    return {**about, "device": device, "samples_per_s": speed, "error": None if speed else "exit code 1: no memory"}


def test_results_of_several_containers_become_one_table(tmp_path: Path) -> None:
    files = []
    for setting, speed, device in (("native", 90.0, "V100"), ("vgpu", 88.25, "V100"), ("virtual", None, "cpu")):
        files.append(tmp_path / f"{setting}.json")
        files[-1].write_text(json.dumps([result("3.1", setting, speed, device)]))
    done = run("ai-benchmark", "--merge", *map(str, files))
    heading, row, *_ = done.stdout.splitlines()
    assert heading.split()[:7] == ["CASE", "MODEL", "MODE", "BATCH", "NATIVE", "VGPU", "VGPU"]
    assert row.split() == ["3.1", "VGG-16", "infer", "20", "90.0", "88.2", "failed", "V100,", "cpu", "(no", "GPU)"]
    assert "no GPU: JAX ran on the CPU" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--merge"], "--merge and the files that it reads belong together"),
        (["--memory", "much"], "--memory"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(words: list[str], sentence: str) -> None:
    done = run("ai-benchmark", *words)
    assert (done.returncode, sentence in done.stderr) == (2, True)


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('[{"case": 1}]')
    done = run("ai-benchmark", "--merge", str(tmp_path / "other.json"))
    assert (done.returncode, "not what `cotenant ai-benchmark --output json` prints" in done.stderr) == (2, True)


def test_the_example_has_a_job_for_each_setting() -> None:
    jobs = list(yaml.safe_load_all(EXAMPLE.read_text()))
    assert [job["metadata"]["name"] for job in jobs] == [f"ai-benchmark-{setting}" for setting in Setting]
