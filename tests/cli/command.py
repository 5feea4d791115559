# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The command as a user runs it: a process of its own, with streams, signals and an exit code."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import cotenant

# Whoever runs the tests in the background may have told its children to ignore Ctrl-C and the end of the terminal;
# these are to heed them.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); from cotenant.cli.main import main; main()"
)
START = [sys.executable, "-c", PROGRAM]
SOURCE = str(Path(cotenant.__file__).parents[1])


def environment(**changes: str) -> dict[str, str]:
    """What a plain terminal would set, and these changes; no public data unless asked for."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "SYSTEMROOT")}
    return {**kept, "PYTHONPATH": SOURCE, "PYTHONWARNINGS": "error", **changes}


def run(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """The finished command with what it said; never a traceback."""
    done = subprocess.run(
        [*START, *map(str, words)],
        cwd=cwd,
        env=environment() if env is None else env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done


def refusal(*words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """The one line in which the command refuses its input, with exit code 2."""
    done = run(*words, cwd=cwd, env=env)
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("cotenant: ")


def wait_until(true: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
