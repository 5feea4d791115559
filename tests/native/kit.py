# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of the vGPU library stand on: things built once and kept, slices, and programs run inside them.

Everything is built by native/build.py into the user's cache, under a name made from the contents of its sources: a
second test run finds it there, and a change never meets a stale copy.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cotenant.core.units import MilliGpu
from cotenant.node.limits import ComputePolicy, GpuLimit, Limits, Priority, limits_text, write_read_only
from cotenant.node.region import GpuUse, Region, make_region, read_region

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
MIB = 1 << 20
GIB = 1 << 30
SANITIZE = os.environ.get("COTENANT_SANITIZE")
"""test_sanitizers.py runs tests again with this: programs are then linked with the library, and both are checked"""
UNUSED_DAYS = 7
"""after which something built is thrown away"""


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cotenant"


def made(kind: str, ingredients: Iterable[str | Path], make: Callable[[Path], object]) -> Path:
    """The folder that `make` fills, made once for the same ingredients: words, and files by their contents."""
    digest = hashlib.sha256(kind.encode())
    for part in ingredients:
        content = part.read_bytes() if isinstance(part, Path) else part.encode()
        digest.update(b"%d:" % len(content) + content)
    folder = cache() / f"native-{kind}-{digest.hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:  # two test processes want the same thing at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _throw_away_unused(folder.parent)
            fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
            try:
                make(fresh)
                os.replace(fresh, folder)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        os.utime(folder)
    return folder


def _throw_away_unused(parent: Path) -> None:
    for old in parent.glob("native-*"):
        with contextlib.suppress(FileNotFoundError):  # another process puts what it has built in its place
            if time.time() - old.lstat().st_mtime > UNUSED_DAYS * 86400:
                shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink()


@functools.cache
def clients() -> Path:
    """An environment with the programs of requirements/clients.txt; its Python is `bin/python`."""
    return environment("clients")


@functools.cache
def environment(name: str) -> Path:
    """An environment with the packages of requirements/NAME.txt; skips the test if they cannot be installed."""
    lock = ROOT / "requirements" / f"{name}.txt"
    uv = Path(sys.executable).with_name("uv")

    def make(folder: Path) -> None:
        trust = {"UV_SYSTEM_CERTS": "1"} if Path("/etc/ssl/certs/ca-certificates.crt").exists() else {}
        python = str(folder / "bin" / "python")
        for command in (
            ["venv", "--relocatable", "--allow-existing", "--python", sys.executable, str(folder)],
            ["pip", "sync", "--python", python, "--require-hashes", str(lock)],
        ):
            done = subprocess.run([uv, "--quiet", *command], capture_output=True, text=True, env=os.environ | trust)
            if done.returncode:
                pytest.skip(f"needs the clients: uv could not install {lock.name}: {done.stderr.strip()[-300:]}")

    if not uv.exists():
        pytest.skip(f"needs the clients: there is no {uv} to install them with; `make test` brings it")
    return made(name, [lock, sys.version], make)


@functools.cache
def headers(major: int = 12) -> Path:
    """One folder with the vendor's headers of that CUDA version: the driver's and NVML's."""
    packages = next((clients() / "lib").glob("python*/site-packages/nvidia"))
    names = {12: ["cuda_runtime", "nvml_dev"], 13: ["cu13"]}[major]

    def make(folder: Path) -> None:
        for name in names:
            for header in (packages / name / "include").iterdir():
                (folder / header.name).symlink_to(header)

    return made(f"headers{major}", [str(packages)], make)


def tool(name: str) -> str:
    """The path of a tool of the machine; skips the test without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs the tool {name}")
    return found


def build(what: str, *arguments: str | Path, out: Path) -> Path:
    """What native/build.py makes of it: the path that it prints."""
    command = [sys.executable, NATIVE / "build.py", what, *arguments, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"native/build.py {what} failed:\n{done.stdout}{done.stderr}")
    return Path(done.stdout.splitlines()[-1])


def _sources(*folders: str) -> list[Path]:
    files = [NATIVE / "build.py"]
    for folder in folders:
        files += sorted(path for path in (NATIVE / folder).iterdir() if path.suffix != ".md" and path.is_file())
    return files


def _options(sanitize: str | None, cc: str | None, defines: Sequence[str]) -> list[str]:
    chosen = [*(["--cc", tool(cc)] if cc else []), *(["--sanitize", sanitize] if sanitize else [])]
    return chosen + [f"--define={define}" for define in defines]


@functools.cache
def library(*, sanitize: str | None = None, cc: str | None = None, defines: tuple[str, ...] = ()) -> Path:
    """libcotenant.so."""
    options = _options(sanitize, cc, defines)
    folder = made("library", [*_sources("lib"), *options], lambda out: build("library", *options, out=out))
    return folder / "libcotenant.so"


@functools.cache
def smi() -> Path:
    """The program cotenant-smi."""
    folder = made("smi", _sources("smi", "lib"), lambda out: build("smi", out=out))
    return folder / "cotenant-smi"


@functools.cache
def standin(major: int = 12) -> Path:
    """The folder with the stand-in's libcuda.so.1 and libnvidia-ml.so.1."""
    options = ["--headers", str(headers(major))]
    return made("standin", [*_sources("standin"), *options], lambda out: build("standin", *options, out=out))


@functools.cache
def mps() -> Path:
    """The folder with the stand-in's nvidia-cuda-mps-control."""
    source = NATIVE / "standin" / "mps_control.py"

    def make(folder: Path) -> None:
        # Not by a first line with the interpreter, whose path may be too long for the kernel.
        command = folder / "nvidia-cuda-mps-control"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{source}" "$@"\n')
        command.chmod(0o755)

    return made("mps", [str(source), sys.executable], make)


@functools.cache
def program(
    name: str,
    *,
    linked: bool = True,
    static: bool = False,
    sanitize: str | None = None,
    cc: str | None = None,
    defines: tuple[str, ...] = (),
) -> Path:
    """native/programs/NAME.c, linked with the stand-in unless it finds the driver by itself."""
    options = _options(sanitize or SANITIZE, cc, defines)
    options += ["--library", str(library(sanitize=SANITIZE))] if SANITIZE else []
    options += (["--standin", str(standin())] if linked else []) + (["--static"] if static else [])
    sources = [NATIVE / "programs" / f"{name}.c", *sorted((NATIVE / "programs").glob("*.h")), *_sources("lib")]
    folder = made("program", [name, *sources, *options], lambda out: build("program", name, *options, out=out))
    return folder / name


@functools.cache
def fuzzer(name: str) -> Path:
    """A libFuzzer target."""
    tool("clang-14")
    sources = _sources("lib", "fuzz", "programs")
    folder = made("fuzz", [name, *sources], lambda out: build("fuzz", name, out=out))
    return folder / name


def gpu(number: int = 1) -> str:
    """The UUID of the stand-in's GPU of that number; they count from 1."""
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


@dataclass(frozen=True, slots=True)
class Slice:
    """Limits and a region in a folder, and the environment of a process that is held to them."""

    folder: Path

    @property
    def limits(self) -> Path:
        return self.folder / "limits"

    @property
    def usage(self) -> Path:
        return self.folder / "usage"

    @property
    def processes(self) -> Path:
        """The list of its processes, which no test has unless it writes one."""
        return self.folder / "processes"

    def write(
        self,
        *,
        memory: int | None = None,
        host: int = 0,
        compute: int = 1000,
        policy: str = "conserving",
        priority: str = "high",
        paused: bool = False,
        overhead: bool = True,
        gpus: Sequence[str] = (gpu(),),
    ) -> "Slice":
        """Puts these limits in force on each of the GPUs; `memory` in bytes, `compute` in thousandths."""
        each = [GpuLimit(uuid, memory, MilliGpu(compute), host, paused) for uuid in gpus]
        limits = Limits(
            gpus=tuple(each),
            region=self.usage,
            policy=ComputePolicy(policy),
            priority=Priority(priority),
            overhead=overhead,
            processes=self.processes,
        )
        write_read_only(self.limits, limits_text(limits))
        if not self.usage.exists():
            make_region(self.usage, gpus)
        return self

    def env(self, **settings: str | int) -> dict[str, str]:
        """Of a process in this slice; settings are the stand-in's: `devices=2`, `clock="virtual"`."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "CUDA_", "STANDIN_"))}
        return own | {
            "LD_LIBRARY_PATH": str(standin()),
            "LD_PRELOAD": "" if SANITIZE else str(library()),
            "COTENANT_LIMITS": str(self.limits),
            "STANDIN_STATE": str(self.folder / "state"),
            **{f"STANDIN_{name.upper()}": str(value) for name, value in settings.items()},
        }

    def region(self) -> Region:
        """What the monitor reads."""
        return read_region(self.usage)

    def use(self, number: int = 0) -> GpuUse:
        """What the live processes of the slice use of one of its GPUs, all together."""
        each = [process.gpus[number] for process in self.region().processes if process.live]
        return GpuUse(*map(sum, zip(*each, strict=True))) if each else GpuUse()


def run(
    place: Slice,
    argv: Sequence[str | Path],
    *,
    timeout: float = 300,
    env: dict[str, str] | None = None,
    **settings: str | int,
) -> "subprocess.CompletedProcess[str]":
    """Runs a program in the slice; `env` adds to what the slice gives it."""
    return subprocess.run(
        argv, env=place.env(**settings) | (env or {}), capture_output=True, text=True, timeout=timeout, check=False
    )


def values(text: str) -> dict[str, int]:
    """What a test program printed: lines of a name and a number."""
    return {name: int(value, 0) for name, value in (line.split() for line in text.splitlines())}
