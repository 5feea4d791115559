# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The ten cases of ai-benchmark: one of them is measured under all three settings, and tables are made of results."""

import json
import os
import time
from pathlib import Path

import pytest
import yaml

from cotenant.cli import ai_benchmark
from cotenant.extras import EXTRAS
from cotenant.node.limits import VARIABLE, GpuLimit, Limits, applying_file, limits_text
from cotenant.workloads.registry import find
from cotenant.workloads.suite import CASES, Setting, command_of, measure
from tests.cli.command import environment, refusal, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "hami" / "ai-benchmark.yaml"


def test_there_are_ten_cases_of_five_models_with_the_published_batch_sizes() -> None:
    assert [case.number for case in CASES] == [f"{model}.{mode}" for model in range(1, 6) for mode in (1, 2)]
    assert {find(case.task).suite for case in CASES} == {"ai-benchmark"}
    assert [case.batch for case in CASES] == [50, 20, 10, 10, 20, 2, 2, 1, 100, 10]
    assert "--batch" in command_of(CASES[0], "full", 1)


@pytest.mark.slow
def test_a_case_is_measured_native_in_a_slice_and_with_virtual_memory(tmp_path: Path) -> None:
    words = ("ai-benchmark", "--case", "5.2", "--seconds", "0.1", "--memory", "512MiB")
    done = run(*words, "--output", "json", env={"JAX_PLATFORMS": "cpu", "COTENANT_RUNTIME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["setting"] for one in found] == list(Setting)
    assert [(one["device"], one["error"]) for one in found] == [("cpu", None)] * 3
    assert all(one["samples_per_s"] > 0 for one in found)


def test_a_failed_run_is_in_the_output_and_in_the_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "limits"
    file.write_text(limits_text(Limits(gpus=(GpuLimit("GPU-1", 1 << 30, host_bytes=1 << 30),))))
    env = environment(JAX_PLATFORMS="no-such-platform", **{VARIABLE: str(file)})
    done = run("ai-benchmark", "--case", "5.1", "--seconds", "0.1", "--output", "json", env=env)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "cotenant: 1 of 1 run failed; the line of each above says why"
    (one,) = json.loads(done.stdout)  # in a slice, which has its own setting, a case runs once
    assert (one["setting"], one["samples_per_s"]) == ("virtual", None)
    assert "no-such-platform" in one["error"]


def test_a_run_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    starts = f"sleep 600 & echo $! > {file}; wait"
    found = measure(CASES[0], "tiny", 1, Setting.NATIVE, ["sh", "-c", starts], os.environ, timeout=2)
    assert found.error == "did not end within 2 s; raise --timeout"
    status = Path("/proc", file.read_text().strip(), "status")
    until = time.monotonic() + 30
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < until, "it still runs"
        time.sleep(0.01)


def test_without_jax_nothing_runs_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ai_benchmark, "find_spec", lambda _name: None)
    with pytest.raises(ModuleNotFoundError) as raised:
        ai_benchmark._run(CASES[:1], "tiny", 1, 1, "1GiB")
    assert EXTRAS[raised.value.name or ""] == "workloads"


def test_the_limits_file_of_a_container_applies_before_the_one_of_the_environment(tmp_path: Path) -> None:
    fixed, named = tmp_path / "fixed", tmp_path / "named"
    env = {VARIABLE: str(named)}
    assert applying_file({}, fixed) is None
    assert applying_file(env, fixed) == named
    fixed.write_text("")
    fixed.chmod(0o666)
    assert applying_file(env, fixed) == named
    fixed.chmod(0o644)
    assert applying_file(env, fixed) == (fixed if fixed.stat().st_uid == 0 else named)


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


def test_a_log_with_notes_before_and_after_the_result_is_read(tmp_path: Path) -> None:
    notes = "1.1 ResNet-V2-50 infer, native: 90 samples/s", "[note] 1 run failed"
    file = tmp_path / "native.json"
    file.write_text(f"{notes[0]}\n{json.dumps([result('3.1', 'native', 90.0, 'V100')])}\n{notes[1]}\n")
    done = run("ai-benchmark", "--merge", str(file), "--output", "json")
    assert (done.returncode, [one["samples_per_s"] for one in json.loads(done.stdout)]) == (0, [90.0])


def test_two_results_for_one_cell_of_the_table_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("vgpu.json", "virtual.json")]
    for file in files:
        file.write_text(json.dumps([result("3.1", "virtual", 90.0, "V100")]))
    said = refusal("ai-benchmark", "--merge", *files)
    assert "case 3.1 was measured 2 times with the setting virtual" in said


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
