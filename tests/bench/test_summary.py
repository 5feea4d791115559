# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The summary of a test run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.summary import MOST_LINES, Result, lines

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="needs a key")
def test_skips(): pass

@pytest.fixture
def broken(): raise OSError

def test_without_its_fixture(broken): pass

@pytest.mark.slow
def test_is_left_out(): pass
"""


def plain(line: str) -> str:
    return " ".join(line.split())


def test_each_folder_has_a_line_with_what_ran_in_it() -> None:
    results = {
        "tests/a/test_x.py::test_1": Result(seconds=1.2),
        "tests/a/deep/test_y.py::test_2": Result("failed", 0.4),
        "tests/b/test_z.py::test_3": Result("skipped", 0.0, why_skipped="needs a key"),
        "tests/b/test_z.py::test_4": Result("skipped", 0.0, why_skipped="needs a key"),
    }
    assert [plain(line) for line in lines(results, 7)] == [
        "folder passed failed skipped seconds",
        "tests/a 1 1 0 2",
        "tests/b 0 0 2 0",
        "all 1 1 2 2",
        "skipped, because:",
        "2 needs a key",
        "not run: 7 tests, which the options leave out; `make test` runs everything",
    ]


def test_wrong_marks_are_listed() -> None:
    results = {
        "tests/a/test_x.py::test_long": Result(seconds=3.0),
        "tests/a/test_x.py::test_marked": Result(seconds=3.0, is_slow=True),
        "tests/b/test_y.py::test_short": Result(seconds=0.1, is_slow=True),
        "tests/b/test_z.py::test_skipped": Result("skipped", is_slow=True, why_skipped="needs a key"),
    }
    text = "\n".join(lines(results, 0))
    assert "3.0  tests/a/test_x.py::test_long\nmarked `slow`" in text
    assert text.endswith("0.1  tests/b/test_y.py")


def test_a_long_list_is_cut() -> None:
    results = {f"tests/a/test_x.py::test_{number}": Result(seconds=3.0) for number in range(MOST_LINES + 4)}
    assert plain(list(lines(results, 0))[-1]) == "and 4 more"


@pytest.mark.slow
def test_a_run_of_two_processes_has_one_summary(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(TESTS)
        (tmp_path / "tests" / folder / "conftest.py").touch()  # a plugin of its own, which others do not have
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\n")
    (tmp_path / "conftest.py").write_text(
        "from tests.summary import Summary\ndef pytest_configure(config): config.pluginmanager.register(Summary())\n"
    )
    command = [sys.executable, "-P", "-m", "pytest", "-p", "xdist", "-n", "2", "-q", "-m", "not slow"]
    done = subprocess.run(
        [*command, f"--override-ini=pythonpath={ROOT}", "--import-mode=importlib", "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # each process would load all plugins of this folder
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout.partition(" summary ")[2].splitlines()
    assert [plain(line) for line in told[2:8]] == [
        "tests/a 1 1 1 0",
        "tests/b 1 1 1 0",
        "all 2 2 2 0",
        "skipped, because:",
        "2 needs a key",
        "not run: 2 tests, which the options leave out; `make test` runs everything",
    ], done.stdout + done.stderr
