# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The ten cases of ai-benchmark, as 4paradigm's vGPU scheduler reports them, and the measurement of one case."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from cotenant.workloads.registry import find

MOST_ERROR = 200
"""characters"""


class Setting(StrEnum):
    """How a case uses the GPU."""

    NATIVE = "native"
    """without the vGPU library, or without limits"""
    VGPU = "vgpu"
    """in a slice of the GPU"""
    VIRTUAL = "virtual"
    """in a slice with host memory behind the GPU's"""


class Case(msgspec.Struct, frozen=True):
    """A task in one mode."""

    number: str
    task: str
    mode: str
    batch: int
    """of size `full`; other sizes have the batch size of their task"""


CASES = tuple(
    Case(f"{group}.{1 + (mode == 'train')}", task, mode, batch)
    for group, (task, infer, train) in enumerate(
        (
            ("resnet_v2_50", 50, 20),
            ("resnet_v2_152", 10, 10),
            ("vgg16_ai", 20, 2),
            ("deeplab", 2, 1),
            ("lstm_ai", 100, 10),
        ),
        start=1,
    )
    for mode, batch in (("infer", infer), ("train", train))
)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What one case did under one setting."""

    case: str
    model: str
    mode: str
    size: str
    batch: int | None
    setting: Setting
    device: str | None = None
    """what JAX ran on: the name of a GPU, or `cpu`, on which limits of GPU memory have no effect"""
    samples_per_s: float | None = None
    error: str | None = None


def command_of(case: Case, size: str, seconds: float) -> list[str]:
    """The command that runs a case."""
    batch = ["--batch", str(case.batch)] if size == "full" else []
    options = ["--mode", case.mode, "--size", size, "--seconds", f"{seconds:g}", "--input-wait", "0", *batch]
    return [sys.executable, "-P", "-m", "cotenant.workloads", case.task, *options]


def measure(
    case: Case,
    size: str,
    seconds: float,
    setting: Setting,
    before: Sequence[str],
    env: Mapping[str, str],
    timeout: float,
) -> Measurement:
    """Runs a case once; `before` is the beginning of the command that puts it into a slice."""
    command = [*before, *command_of(case, size, seconds)]
    about = Measurement(
        case=case.number, model=find(case.task).title, mode=case.mode, size=size, batch=None, setting=setting
    )
    try:
        done = _run(command, env, timeout)
    except subprocess.TimeoutExpired:
        return msgspec.structs.replace(about, error=f"did not end within {timeout:g} s; raise --timeout")
    try:
        result = json.loads(done.stdout.splitlines()[-1])
        return msgspec.structs.replace(
            about, batch=result["batch"], device=result["device"], samples_per_s=float(result["samples_per_s"])
        )
    except (IndexError, KeyError, TypeError, ValueError):
        said = " ".join(done.stderr.split())[-MOST_ERROR:]
        return msgspec.structs.replace(about, error=f"exit code {done.returncode}: {said or 'no output'}")


def _run(command: Sequence[str], env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs a command; if it does not end in time or the user interrupts, it is killed with all that it has started."""
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        command, env=dict(env), stdin=none, stdout=pipe, stderr=pipe, text=True, errors="replace", process_group=0
    ) as child:
        try:
            output, errors = child.communicate(timeout=timeout)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, child.returncode, output, errors)
