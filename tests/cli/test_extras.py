# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Commands that need an optional package say which extra of cotenant installs it."""

import subprocess
import sys

import pytest

from tests.cli.command import environment

WITHOUT = "import sys\nfor name in sys.argv.pop(1).split(','): sys.modules[name] = None\n"
WITHOUT += "from cotenant.cli.main import main\nmain()"


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (("kube", "agent", "--node", "n", "--simulate", "1"), "grpc,h11,uvloop,httptools", "kube"),
        (("generate", "--jobs", "1"), "jax,jaxlib", "workloads"),
        (("kube", "scheduler"), "grpc,h11,uvloop,httptools", "kube"),
    ],
)
def test_a_missing_package_is_one_line_with_the_extra(words: tuple[str, ...], missing: str, extra: str) -> None:
    command = [sys.executable, "-c", WITHOUT, missing, *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, f"pip install 'cotenant[{extra}]'" in line) == (1, True), line
