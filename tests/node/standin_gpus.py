# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A program run in a process of its own, beside stand-in GPUs whose state its test can change meanwhile.

A management library reads its settings once in each process, so the test's own process cannot load it twice.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.native import kit

PROGRAM = """
import json, sys
from importlib import import_module
from cotenant.node.devices.backend import Running

backend = import_module(sys.argv[1]).open_backend()
for line in sys.stdin:
    found, jobs = backend.machine(), [Running(**{**one, "gpus": tuple(one["gpus"])}) for one in json.loads(line)]
    print(json.dumps({
        "gpus": [[gpu.uuid, gpu.type, gpu.memory, gpu.numa, gpu.healthy] for gpu in found.gpus],
        "instances": [[gpu.mig, gpu.card, gpu.part] for gpu in found.gpus],
        "links": found.links,
        "notes": backend.notes,
        "vendor": backend.vendor,
        "faults": backend.faults(),
        "absent": sorted(backend.absent()),
        "usage": [
            [one.used_mib, one.utilisation, one.processes and [list(process) for process in one.processes]]
            for one in backend.usage(jobs)
        ],
    }), flush=True)
backend.close()
"""
HOLDER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, int(sys.argv[1])) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[2]) << 20)) == 0
print("held", flush=True)
sys.stdin.readline()
"""


class StandinGpus:
    """GPUs that exist in one state file."""

    def __init__(self, state: Path, **settings: str | int) -> None:
        self._env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(kit.standin()),
            "STANDIN_STATE": str(state),
            "STANDIN_BACKING": "none",
            **{f"STANDIN_{name.upper()}": str(value) for name, value in settings.items()},
        }

    @contextmanager
    def adapter(self, module: str) -> Iterator["Adapter"]:
        """The adapter of a vendor, in a process beside these GPUs."""
        with self._started([sys.executable, "-c", PROGRAM, module]) as process:
            yield Adapter(process)

    @contextmanager
    def held(self, gpu: int, mib: int, **env: str) -> Iterator[int]:
        """A process that holds memory on a GPU; its pid."""
        with self._started([sys.executable, "-c", HOLDER, str(gpu), str(mib)], **env) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process.pid

    def breaks(self, gpu: int, answer: int) -> None:
        """From now on the libraries answer this to everything about a GPU; 0: it works again."""
        code = f"import ctypes; ctypes.CDLL('libcuda.so.1').standinBreak({gpu}, {answer})"
        subprocess.run([sys.executable, "-c", code], env=self._env, check=True)

    def partition(self, gpu: int, layout: str | None) -> None:
        """Other MIG instances, as profiles with slashes between them; None: the GPU leaves MIG mode."""
        code = (
            "import ctypes, sys; ctypes.CDLL('libcuda.so.1').standinPartition(int(sys.argv[1]), sys.argv[2].encode())"
        )
        code = code if layout is not None else code.replace("sys.argv[2].encode()", "None")
        subprocess.run([sys.executable, "-c", code, str(gpu), layout or ""], env=self._env, check=True)

    @contextmanager
    def _started(self, command: list[str], **env: str) -> "Iterator[subprocess.Popen[str]]":
        with subprocess.Popen(
            command, env={**self._env, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(10)


class Adapter:
    """A running adapter."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def look(self, jobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """What it says now."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(jobs or []) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer
