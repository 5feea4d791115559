# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The comparison of three engines: the table of speeds in the simulator and in a job, and how results are printed."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.engines import BUSY, LENGTHS, Times, jcts_of, listed, side_by_side, simulate, words
from bench.paced import speed
from cotenant.core.units import Seconds
from cotenant.workloads.driving import Change, Life
from cotenant.workloads.generator import single


def test_a_gpu_is_divided_by_what_its_tenants_use_alone() -> None:
    assert speed(0.8, [0.7]) == pytest.approx(1 / 1.5)
    assert speed(0.2, [0.6]) == 1.0
    assert speed(1.0, []) == 1.0


def test_the_simulator_keeps_to_the_table() -> None:
    # Three on three GPUs run alone. Of six, each shares its GPU with one that arrives later.
    three = [replace(single("vgg16"), name=f"vgg16-{number}", at=Seconds(number / 100)) for number in range(3)]
    assert simulate(three, 2.0).mean == pytest.approx(LENGTHS["vgg16"] + 2.0)
    six = [replace(three[0], name=f"job-{number}") for number in range(6)]
    assert simulate(six, 0.0).mean == pytest.approx(LENGTHS["vgg16"] / speed(BUSY["vgg16"], [BUSY["vgg16"]]))


def test_the_list_has_the_tasks_of_the_generator() -> None:
    tasks = listed()
    assert len(tasks) == 40
    assert {task.task for task in tasks} == set(LENGTHS)


def test_a_job_does_its_work_and_leaves_no_mark(tmp_path: Path) -> None:
    command = [sys.executable, *words(single("lstm"), 0.0, str(tmp_path), 0.05)]
    subprocess.run(command, env={**os.environ, "NVIDIA_VISIBLE_DEVICES": "GPU-a"}, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["GPU-a"]
    assert list((tmp_path / "GPU-a").iterdir()) == []


def test_a_job_that_failed_is_no_result() -> None:
    life = Life(job="one", submit=0.0, start=1.0, finish=3.0, state="done")
    assert jcts_of(iter([[Change("finished", single("lstm"), life)]])) == [3.0]
    with pytest.raises(RuntimeError, match=r"one: failed \(1\)"):
        jcts_of(iter([[Change("finished", single("lstm"), replace(life, state="failed (1)"))]]))


def test_engines_are_printed_side_by_side() -> None:
    text = side_by_side({"simulator": Times.of([1.0, 3.0]), "cluster": Times.of([2.0, 4.0])})
    assert text.splitlines()[0].split() == ["JCT", "simulator", "cluster"]
    assert text.splitlines()[-1].split() == ["mean", "2.0", "s", "3.0", "s"]
