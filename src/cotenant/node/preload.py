# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Where the vGPU library is, and the LD_PRELOAD that brings it into a program and disturbs no other.

The loader replaces $LIB by the folder that libraries of a program's kind are in. So the library is staged in a folder
that has all of these: those of 64-bit programs lead to it, those of 32-bit programs to a library with nothing in it;
musl, which knows no $LIB, finds nothing and says nothing. The staged copy is named by its content and never changed,
so that an upgrade touches no file that a running program has mapped.
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

NAME = "libcotenant.so"
NONE_BUILT = "built without a C compiler: limits on real GPUs are not enforced"
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_WIDE = {"x86_64": ("lib/x86_64-linux-gnu", "lib64"), "aarch64": ("lib/aarch64-linux-gnu", "lib64")}
"""what $LIB is to 64-bit programs"""
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
"""what it is to 32-bit programs, with the number of their machine"""


def find_library() -> Path | None:
    """The vGPU library of this installation, or the one that $COTENANT_LIBRARY names; None: there is none."""
    named = os.environ.get("COTENANT_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise InputError(f"COTENANT_LIBRARY={named[:200]}: no such file; expected the vGPU library")
        return Path(named)
    built = Path(cotenant.__file__).parent / "_native" / platform.machine()
    return next(iter(sorted(built.glob("libcotenant-*.so"))), None)


def stage(library: Path, base: Path | None = None) -> Path:
    """The folder with a copy of the library for each kind of program; made once for each content."""
    content = library.read_bytes()
    name = f"libcotenant-{hashlib.sha256(content).hexdigest()[:16]}"
    folder = (base or _base()) / name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder.parent))
        try:
            _fill(fresh, content)
            os.rename(fresh, folder)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            if not folder.is_dir():  # somebody else was quicker with the same
                raise
    except OSError as error:
        raise CotenantError(f"{folder}: the vGPU library cannot be put there: {error.strerror}") from None
    return folder


def staged_library(folder: Path) -> Path:
    """The copy itself."""
    return folder / NAME


def preload(folder: Path, before: str | None = None) -> str:
    """LD_PRELOAD with the library of a staged folder; what the user had there stays behind it."""
    own = f"{folder}/$LIB/{NAME}"
    return f"{own}:{before}" if before else own


def _fill(folder: Path, content: bytes) -> None:
    folder.chmod(0o755)
    with open(folder / NAME, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), 0o755)
        os.fsync(file.fileno())  # a folder of this name is never filled again, also after a power loss
    machine = platform.machine()
    wide = {*_WIDE.get(machine, ()), *_own_lib(machine)}
    for name in sorted(wide):
        (folder / name).mkdir(parents=True)
        (folder / name / NAME).symlink_to(os.path.relpath(folder / NAME, folder / name))
    for name, number in _NARROW.get(machine, {}).items():
        if name not in wide:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / NAME).write_bytes(empty_library(number))


def _own_lib(machine: str) -> Iterator[str]:
    """What $LIB is to 64-bit programs of this machine, as their loader says from glibc 2.33 on; on some it is `lib`."""
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
    """The first folder that can be written to, from which programs may be run, and that LD_PRELOAD can name."""
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
        f"the vGPU library can be put into none of {', '.join(map(str, places))}: expected a folder that can be "
        "written to, not mounted noexec, without spaces or colons in its path; XDG_CACHE_HOME names another"
    )


def _is_fit(place: Path) -> bool:
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    runs = not os.statvfs(there).f_flag & os.ST_NOEXEC
    return os.access(there, os.W_OK | os.X_OK) and runs and not set(" :\t\n$") & set(str(place))


@functools.cache
def empty_library(machine: int) -> bytes:
    """A 32-bit shared library that does nothing, for the loader of such programs to load instead of complaining."""
    header, entry, section = 52, 32, 8
    dynamic_at = header + 3 * entry
    tags = 6
    hash_at = dynamic_at + tags * section
    symbols_at = hash_at + 4 * 4  # one bucket, one chain, both empty
    names_at = symbols_at + 16  # the one symbol that every table begins with
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
