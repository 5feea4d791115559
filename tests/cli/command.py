# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The command as a user runs it: a process of its own, with streams, signals and an exit code."""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import cotenant
from tests.cli.forking import ForkServer

# Whoever runs the tests in the background may have told its children to ignore Ctrl-C and the end of the terminal;
# these are to heed them.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); from cotenant.cli.main import main; main()"
)
START = [sys.executable, "-c", PROGRAM]
SOURCE = str(Path(cotenant.__file__).parents[1])
LATE = ("COTENANT_", "COLUMNS", "HOME", "NO_COLOR", "PATH")
"""how variables begin that are read when they are needed"""


@functools.cache
def fork_server() -> ForkServer:
    """That of this test process."""
    return ForkServer(environment())


def environment(**changes: str) -> dict[str, str]:
    """What a plain terminal would set, and these changes; no public data unless asked for."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "SYSTEMROOT")}
    return {**kept, "PYTHONPATH": SOURCE, "PYTHONWARNINGS": "error", **changes}


def run(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """The finished command with what it said; never a traceback."""
    env = environment() if env is None else env
    command = [*START, *map(str, words)]
    if _can_fork(env) and (server := fork_server()).is_free.acquire(blocking=False):
        try:
            code, out, err = server.run(command[len(START) :], cwd, env, timeout)
        finally:
            server.is_free.release()
        done = subprocess.CompletedProcess(command, code, out, err)
    else:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done


def _can_fork(env: Mapping[str, str]) -> bool:
    """Whether no other variable than usual has to be there before the interpreter starts or a module is imported."""
    early = [{name: one[name] for name in one if not name.startswith(LATE)} for one in (env, environment())]
    return early[0] == early[1] and "COTENANT_NAMESPACE" not in env


def refusal(*words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """The one line in which the command refuses its input, with exit code 2."""
    done = run(*words, cwd=cwd, env=env)
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("cotenant: ")


def wait_until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
