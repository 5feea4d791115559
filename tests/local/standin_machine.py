# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon on NVIDIA GPUs, over the stand-in driver, and jobs that use them."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.wire.job_views import JobView
from tests.local.daemon import Daemon
from tests.native import kit


@contextmanager
def standin_machine(
    env: Mapping[str, str], *up: str, options: Sequence[str] = (), end: Callable[[Path], object] = lambda _: None
) -> Iterator[Daemon]:
    """A daemon with these variables, started with these options; `end` gets its folder after it has stopped."""
    state = Path(tempfile.mkdtemp(prefix="ct"))  # the path of a socket must be short
    one = Daemon(state, *options)
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("COTENANT_RUNTIME", str(state / "run"))
        changed.setenv("COTENANT_LIBRARY", str(kit.library()))
        for name, value in {**environment(one), **env}.items():
            changed.setenv(name, value)
        try:
            one.up(*up)
            yield one
        finally:
            one.clear()
            one.stop()
            end(state)
            shutil.rmtree(state, ignore_errors=True)


def environment(daemon: Daemon) -> dict[str, str]:
    """The variables by which a program uses the GPUs of this machine."""
    return {"LD_LIBRARY_PATH": str(kit.standin()), "STANDIN_STATE": str(daemon.state / "gpus")}


def submit_probe(daemon: Daemon, *words: str, **request: object) -> JobView:
    """A job that allocates and computes, as native/programs/run_probe.c says."""
    return daemon.submit(str(kit.program("run_probe")), *words, env=environment(daemon), **request)


def output(daemon: Daemon, job: str) -> str:
    """What a job has written so far."""
    return b"".join(daemon.client.lines(f"/v1/jobs/{job}/log?follow=0")).decode()


def values(daemon: Daemon, job: str) -> dict[str, int]:
    """The numbers that a probe has written."""
    return kit.values(output(daemon, job))
