# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The table of tasks says what is true, and reading it needs no JAX."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.workloads import families
from cotenant.workloads.registry import SIZES, TASKS, find

EIGHT = {"vgg16", "resnet50", "squeezenet", "neumf", "lstm", "adgcl", "bert", "yolo"}
FIVE = {"resnet_v2_50", "resnet_v2_152", "vgg16_ai", "deeplab", "lstm_ai"}


def test_both_suites_are_complete() -> None:
    assert {task.name for task in TASKS.values() if task.suite == "iadeep"} == EIGHT
    assert {task.name for task in TASKS.values() if task.suite == "ai-benchmark"} == FIVE


@pytest.mark.parametrize("name", TASKS)
def test_every_size_can_be_tuned_in_powers_of_two(name: str) -> None:
    task = find(name)
    assert tuple(task.sizes) == SIZES
    assert (Path(families.__file__).parent / f"{task.family}.py").is_file()
    for size in task.sizes.values():
        for batch in (size.batch, size.smallest, size.largest, size.infer_batch or 1):
            assert batch & (batch - 1) == 0
        assert size.smallest <= size.batch <= size.largest
        assert size.wait_us >= 0
        assert size.memory_at(size.largest) > size.memory_at(size.smallest) >= size.memory > 0
        assert size.epoch <= size.steps


def test_some_tasks_mostly_wait_and_some_never_do() -> None:
    shares = [task.busy for task in TASKS.values()]
    assert min(shares) == 200
    assert max(shares) == 1000
    assert all((task.busy == 1000) == (task.sizes["tiny"].wait_us == 0) for task in TASKS.values())


def test_an_unknown_task_is_answered_with_those_there_are() -> None:
    with pytest.raises(InputError, match="no task named 'vgg'; there are vgg16, resnet50"):
        find("vgg")
    with pytest.raises(InputError, match="no size named 'huge'; there are tiny, small, full"):
        find("vgg16").at("huge")


@pytest.mark.parametrize("module", ["__main__", "generator", "registry"])
def test_listing_and_planning_never_import_jax(module: str, environ: Mapping[str, str]) -> None:
    code = f"import sys, cotenant.workloads.{module}; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environ, timeout=300).returncode == 0
