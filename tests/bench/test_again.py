# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The second chance: for a test that was too slow once; not for a defect, not for many, not for those marked final."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.kit import ROOT

SETTINGS = "[pytest]\nmarkers = final: x\n"
UNSTABLE = """
from pathlib import Path

def test_slow_once():
    seen = Path("seen")
    was = seen.exists()
    seen.touch()
    assert was

def test_good():
    pass
"""
DEFECT = "def test_defect():\n    assert False\n"
FINAL = UNSTABLE.replace("def test_slow_once", "import pytest\n@pytest.mark.final\ndef test_slow_once")
MANY = "import pytest\n@pytest.mark.parametrize('n', range(4))\n" + DEFECT.replace("()", "(n)")
BROKEN = "import nothing_of_that_name\n"


@pytest.mark.parametrize(
    ("tests", "code", "said"),
    [
        (UNSTABLE, 0, "UNSTABLE: test_it.py::test_slow_once"),
        (DEFECT, 1, "running 1 that failed"),
        (FINAL, 1, "must never fail"),
        (MANY, 1, "4 tests failed"),
        (BROKEN, 1, "running 1 that failed"),
    ],
)
def test_a_second_chance(tmp_path: Path, tests: str, code: int, said: str) -> None:
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "test_it.py").write_text(tests)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take seconds to import

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert run("pytest", "-q", "--junitxml=report.xml").returncode != 0
    again = run("tests.again", "report.xml")
    assert again.returncode == code, again.stdout
    assert said in again.stdout


def test_a_run_that_broke_off_has_no_second_chance(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.again", str(tmp_path / "report.xml")]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 1
