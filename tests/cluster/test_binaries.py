# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Where the programs of a cluster cannot be had, the tests say why instead of failing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.kit import ROOT


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"PATH": "nowhere"}, "there is no Go (1.25 or later) to build Kubernetes with"),
        ({"COTENANT_KUBERNETES": "latest"}, "COTENANT_KUBERNETES is 'latest', not a version such as 1.34.4"),
    ],
    ids=["without Go", "without a version"],
)
def test_what_cannot_be_built_is_told_in_one_line(tmp_path: Path, settings: dict[str, str], why: str) -> None:
    command = [sys.executable, "-m", "tests.cluster.binaries"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)} | settings
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"needs the cluster: {why}\n"
