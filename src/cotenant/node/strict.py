# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The strict front-end: a libcuda.so.1 made on the node, for programs that a preloaded library cannot reach.

A static program that opens libcuda.so.1 by itself, or one that walks the loader's tables, never asks the preload. So a
folder that the loader searches first gets a library of the driver's name with every function of the node's own driver:
our hooks, and the driver's where we have none. It is made from the driver that is there, so no function of a newer one
is missing. Who opens the real file by its own path is not held: this is resource control, not a security boundary.
"""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from cotenant.errors import CotenantError, DeviceError, InputError
from cotenant.node.elf import AARCH64, X86_64, read_library
from cotenant.node.forwarders import front_end

NAME = "libcuda.so.1"
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
)
"""where drivers are put, should the loader's own list not name one"""


def find_driver(environ: Mapping[str, str] | None = None) -> Path:
    """The machine's own libcuda.so.1, as a program would find it; never a front-end."""
    own = {"x86_64": X86_64, "aarch64": AARCH64}.get(platform.machine())
    unfit = []
    for path in _candidates(os.environ if environ is None else environ):
        try:
            library = read_library(path)
        except InputError as error:
            unfit.append(str(error))
            continue
        if library.machine == own and not any("libcotenant" in name for name in library.needed):
            return path.resolve()
    because = f" ({unfit[0]})" if unfit else ""
    raise DeviceError(
        f"{NAME}: the NVIDIA driver is not installed here, and --strict makes its front-end from it{because}"
    )


def make(real: Path, library: Path, folder: Path) -> Path:
    """Writes the front-end of a driver into a folder, which LD_LIBRARY_PATH must name first; gives its path."""
    driver = read_library(real)
    content = front_end(driver, soname=NAME, real=str(real.resolve()), library=str(library.resolve()))
    target = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != content:
            fresh = folder / f".{NAME}.{os.getpid()}"
            fresh.write_bytes(content)
            fresh.chmod(0o755)
            os.replace(fresh, target)  # a process that has the older one mapped keeps it
    except OSError as error:
        raise CotenantError(f"{target}: the strict front-end cannot be written: {error.strerror}") from None
    return target


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    folders = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for path in (
        *(folder / NAME for folder in folders),
        *_loader_knows(),
        *(Path(folder) / NAME for folder in FOLDERS),
    ):
        if path.exists():
            yield path


def _loader_knows() -> list[Path]:
    """Paths of the name in the loader's list, best first."""
    for ldconfig in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
        except OSError:
            continue
        lines = (line.split(" => ") for line in listed.splitlines() if line.strip().startswith(f"{NAME} "))
        return [Path(parts[-1].strip()) for parts in lines]
    return []
