# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The library under the compilers' sanitizers, under valgrind and under a fuzzer: other tests again, with eyes open."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import kit
from tests.native.fuzzing import TARGETS, fuzz

pytestmark = pytest.mark.slow

FUZZ_RUNS = 5000
SUPPRESSED = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1", "TSAN_OPTIONS": "halt_on_error=1"}
"""what the library keeps until the end of the program is no leak; one report ends the program, and so fails its test"""
ALIKE = "siblings or two_tenants or long_launch"
"""tests with other numbers for what other tests of these files call too"""


@pytest.mark.parametrize(
    ("sanitize", "tests"),
    [
        ("address,undefined", ["memory", "pools", "vmm", "graphs", "report", "compute"]),
        ("thread", ["threads", "compute"]),
    ],
)
def test_sanitizers_have_nothing_to_say(sanitize: str, tests: list[str]) -> None:
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in tests]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-k", f"not ({ALIKE})"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    env = os.environ | SUPPRESSED | {"COTENANT_SANITIZE": sanitize, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, env=env, cwd=kit.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " skipped" not in done.stdout


def test_valgrind_has_nothing_to_say(place: kit.Slice) -> None:
    checked = [kit.tool("valgrind"), "--quiet", "--error-exitcode=9"]
    program = kit.program("bypass_lookup", linked=False)
    for way in ("dlsym", "procaddr"):
        done = kit.run(place.write(memory=256 * kit.MIB), [*checked, program, way, "128", "192"], backing="none")
        assert (done.returncode, done.stderr) == (0, "")
        assert kit.values(done.stdout)["beyond"] == 2


@pytest.mark.parametrize("target", TARGETS)
def test_a_fuzzer_finds_nothing(target: str, tmp_path: Path) -> None:
    fuzzed = fuzz(target, tmp_path, f"-runs={FUZZ_RUNS}")
    assert fuzzed.code == 0, fuzzed.said
    assert fuzzed.runs >= FUZZ_RUNS
