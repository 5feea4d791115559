# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the vGPU library, and builds the LD_PRELOAD that loads it into programs that can use it.

The loader replaces $LIB by the folder in which libraries of a program's architecture are. So the library is staged in a
folder that has all of these: those of 64-bit programs contain it, those of 32-bit programs an empty library. musl does
not know $LIB, finds nothing and prints nothing. The staged copy is named after its content and never changed, so that
an upgrade touches no file that a running program has mapped.
"""

import functools
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import cotenant
from cotenant.errors import CotenantError, InputError
from cotenant.node.ownership import problem_of_file, problem_of_folder

NAME = "libcotenant.so"
SMI = "cotenant-smi"
"""The program that shows a slice from inside; it is beside the library, if it was built."""
NONE_BUILT = "built without a C compiler: limits on real GPUs are not enforced"
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_WIDE = {"x86_64": ("lib/x86_64-linux-gnu", "lib64"), "aarch64": ("lib/aarch64-linux-gnu", "lib64")}
"""values of $LIB for 64-bit programs"""
_386, _ARM, _X86_64 = 3, 40, 62
_NARROW = {
    "x86_64": {
        "lib/i386-linux-gnu": _386,
        "lib32": _386,
        "lib": _386,
        "lib/x86_64-linux-gnux32": _X86_64,
        "libx32": _X86_64,
    },
    "aarch64": {"lib/arm-linux-gnueabihf": _ARM, "lib/arm-linux-gnueabi": _ARM, "lib": _ARM},
}
"""values of $LIB for 32-bit programs, with the ELF number of their machine"""


def find_library() -> Path | None:
    """The vGPU library that $COTENANT_LIBRARY names, or that of this installation; None if it has none."""
    named = os.environ.get("COTENANT_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise InputError(f"COTENANT_LIBRARY={named[:200]}: no such file; expected the vGPU library")
        return Path(named)
    built = Path(cotenant.__file__).parent / "_native" / platform.machine()
    return next(iter(sorted(built.glob("libcotenant-*.so"))), None)


def stage(library: Path, base: Path | None = None) -> Path:
    """The folder with a copy of the library for each architecture, and cotenant-smi; it is made once for each
    content."""
    content, smi = library.read_bytes(), library.with_name(SMI)
    program = smi.read_bytes() if smi.is_file() else b""
    name = f"libcotenant-{hashlib.sha256(content + program).hexdigest()[:16]}"
    folder = (base or _base()) / name
    if folder.is_dir():
        _refuse_foreign(folder, content)
        return folder
    try:
        folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _refuse(folder.parent, problem_of_folder(folder.parent))
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder.parent))
        try:
            _fill(fresh, content, program)
            os.rename(fresh, folder)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            if not folder.is_dir():
                raise
            _refuse_foreign(folder, content)  # another process has made the same folder meanwhile
    except OSError as error:
        raise CotenantError(f"{folder}: the vGPU library cannot be written there: {error.strerror}") from None
    return folder


def _refuse_foreign(folder: Path, content: bytes) -> None:
    """CotenantError if another user could have made or changed a staged folder: programs would run their code."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            _refuse(path, None if path.resolve() == staged_library(folder).resolve() else "leads out of its folder")
        else:
            _refuse(path, problem_of_folder(path) if path.is_dir() else problem_of_file(path))
    _refuse(folder, None if staged_library(folder).read_bytes() == content else "does not contain the library")


def _refuse(path: Path, problem: str | None) -> None:
    if problem is not None:
        raise CotenantError(f"{path} {problem}; it is not loaded into programs: remove it")


def staged_library(folder: Path) -> Path:
    """The staged copy of the library."""
    return folder / NAME


def preload(folder: Path, before: str | None = None) -> str:
    """The value of LD_PRELOAD with the library of a staged folder in front of `before`, the user's own value."""
    own = f"{folder}/$LIB/{NAME}"
    return f"{own}:{before}" if before else own


def _fill(folder: Path, content: bytes, program: bytes) -> None:
    folder.chmod(0o755)
    for name, its_content in ((NAME, content), (SMI, program)):
        if its_content:
            _write(folder / name, its_content)
    machine = platform.machine()
    wide = {*_WIDE.get(machine, ()), *_own_lib(machine)}
    for name in sorted(wide):
        (folder / name).mkdir(parents=True)
        (folder / name / NAME).symlink_to(os.path.relpath(folder / NAME, folder / name))
    for name, number in _NARROW.get(machine, {}).items():
        if name not in wide:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / NAME).write_bytes(empty_library(number))


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), 0o755)
        os.fsync(file.fileno())  # a folder of this name is never written again, also after a power loss


def _own_lib(machine: str) -> Iterator[str]:
    """The value of $LIB on this machine, which glibc's loader prints since 2.33; on some machines it is `lib`."""
    try:
        command = [_LOADERS.get(machine, ""), "--list-diagnostics"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return
    for line in said.splitlines():
        name, _, value = line.partition("=")
        if name == "dl_dst_lib" and ".." not in value:
            yield value.strip('"/')


def _base() -> Path:
    """The first folder that only this user can write to, is not mounted noexec, and can be named in LD_PRELOAD."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cotenant"
    named, runtime = os.environ.get("COTENANT_RUNTIME"), os.environ.get("XDG_RUNTIME_DIR")
    places = [
        *([Path(named).absolute() / "lib"] if named else []),
        *([Path("/usr/local/lib/cotenant")] if os.geteuid() == 0 else []),
        cache / "lib",
        *([Path(runtime) / "cotenant" / "lib"] if runtime else []),
    ]
    for place in places:
        if _is_fit(place):
            return place
    raise CotenantError(
        f"the vGPU library cannot be written to any of {', '.join(map(str, places))}: expected a folder that is "
        "writable for this user only, not mounted noexec, and without spaces or colons in its path; XDG_CACHE_HOME "
        "names another"
    )


def _is_fit(place: Path) -> bool:
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    if there == place and problem_of_folder(place) is not None:
        return False
    runs = not os.statvfs(there).f_flag & os.ST_NOEXEC
    return os.access(there, os.W_OK | os.X_OK) and runs and not set(" :\t\n$") & set(str(place))


@functools.cache
def empty_library(machine: int) -> bytes:
    """A 32-bit shared library without content, which keeps the loader of 32-bit programs from printing an error."""
    header, entry, section = 52, 32, 8
    dynamic_at = header + 3 * entry
    tags = 6
    hash_at = dynamic_at + tags * section
    symbols_at = hash_at + 4 * 4  # one bucket, one chain, both empty
    names_at = symbols_at + 16  # the symbol that every table begins with
    size = names_at + 1
    hash_, strtab, symtab, strsz, syment = 4, 5, 6, 10, 11
    flags = 0x5000400 if machine == _ARM else 0
    read_write = 6
    load, dynamic, stack = 1, 2, 0x6474E551
    return b"".join(
        (
            b"\x7fELF\x01\x01\x01".ljust(16, b"\0"),
            struct.pack("<HHIIIIIHHHHHH", 3, machine, 1, 0, header, 0, flags, header, entry, 3, 40, 0, 0),
            struct.pack("<IIIIIIII", load, 0, 0, 0, size, size, read_write, 0x1000),
            struct.pack("<IIIIIIII", dynamic, *[dynamic_at] * 3, *[tags * section] * 2, read_write, 4),
            struct.pack("<IIIIIIII", stack, 0, 0, 0, 0, 0, read_write, 16),  # or the stack would be executable
            struct.pack("<10I", hash_, hash_at, strtab, names_at, symtab, symbols_at, strsz, 1, syment, 16),
            struct.pack("<II", 0, 0),
            struct.pack("<IIII", 1, 1, 0, 0),
            bytes(16 + 1),
        )
    )
