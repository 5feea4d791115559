# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the strict front-end: a libcuda.so.1 for programs that a preloaded library cannot reach.

A static program that opens libcuda.so.1 by itself, or one that walks the loader's tables, bypasses the preload. So a
folder that the loader searches first gets a library of the driver's name with every function of the node's own driver:
our hook, or the driver's function if there is no hook. It is made from the installed driver, so it has every function
of that version. A program that opens the real file by its own path is not limited: this is resource control, not a
security boundary.
"""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from cotenant.errors import CotenantError, DeviceError, InputError
from cotenant.node.elf import AARCH64, X86_64, read_library
from cotenant.node.front_end import build_front_end

NAME = "libcuda.so.1"
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
)
"""where drivers are installed, for machines on which the loader's own list has none"""


def find_driver(environ: Mapping[str, str] | None = None) -> Path:
    """The path of the machine's own libcuda.so.1, as a program would find it; never a front-end."""
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


def make_front_end(real: Path, library: Path, folder: Path) -> Path:
    """Writes the front-end of a driver into a folder, which LD_LIBRARY_PATH must name first; returns its path."""
    driver = read_library(real)
    content = build_front_end(driver, soname=NAME, real=str(real.resolve()), library=str(library.resolve()))
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
        *_loader_paths(),
        *(Path(folder) / NAME for folder in FOLDERS),
    ):
        if path.exists():
            yield path


def _loader_paths() -> list[Path]:
    """The paths of the driver in the loader's list, best first."""
    for ldconfig in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
        except OSError:
            continue
        lines = (line.split(" => ") for line in listed.splitlines() if line.strip().startswith(f"{NAME} "))
        return [Path(parts[-1].strip()) for parts in lines]
    return []
