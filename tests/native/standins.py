# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Scripts over the stand-in driver alone, without the vGPU library (see standin_client.py for what they begin with)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.native import kit

MILLISECOND = 1_000_000


def environment(folder: Path, **settings: str | int) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "CUDA_", "STANDIN_"))}
    return own | {
        "LD_LIBRARY_PATH": str(kit.standin()),
        "PYTHONPATH": str(kit.ROOT),
        "STANDIN_STATE": str(folder / "state"),
        **{name if name.isupper() else f"STANDIN_{name.upper()}": str(value) for name, value in settings.items()},
    }


@contextmanager
def started(folder: Path, script: str, **settings: str | int) -> "Iterator[subprocess.Popen[str]]":
    """A script over the stand-in, for as long as the test wants it."""
    with subprocess.Popen(
        [sys.executable, "-c", "from tests.native.standin_client import *\n" + script],
        env=environment(folder, **settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[str]") -> str:
    """The next line that it writes."""
    assert process.stdout
    return process.stdout.readline().strip()


def finish(process: "subprocess.Popen[str]", text: str | None = None) -> dict[str, int]:
    """What it tells until it ends, which it must do well."""
    output, errors = process.communicate(text, timeout=300)
    assert process.returncode == 0, errors
    return kit.values(output)


def client(folder: Path, script: str, **settings: str | int) -> dict[str, int]:
    """What a script over the stand-in tells."""
    with started(folder, script, **settings) as process:
        return finish(process)
