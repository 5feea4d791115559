# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The region in which the processes of a slice write down what they use: made here, and read from outside.

native/lib/region.h has the layout and says who owns what; a test compares it with the one here. The tenant writes it,
so whatever stands in it is believed to be nothing but numbers: it is copied out first and cannot do harm.
"""

import contextlib
import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cotenant.errors import InputError

MAGIC = 0x31544E4E45544F43
VERSION = 1
DEVICES = 16
SLOTS = 256
UUID_BYTES = 48
LOCK_BASE = 1 << 40
FAULTS = (
    "limits_missing",
    "limits_bad",
    "limits_version",
    "limits_changing",
    "region",
    "slots",
    "nvml",
    "driver",
    "memory",
    "unknown_device",
    "events",
    "closed",
)
"""as the library counts them, in its order; docs/vgpu.md says what each means"""
MOST = (1 << 63) - 1
"""what larger numbers are shown as: they cannot be true, and not every reader takes them"""

HEADER = struct.Struct("<QIIIIIIQ16Q768s256x2904x")
"""magic, version, header_bytes, slot_bytes, slots, devices, high, created, faults, uuid, bucket, reserved"""
SLOT = struct.Struct("<IIQQQ16Q16Q16Q16Q16Q16Q16Q16Q12Q")
"""state, pid, pid_space, started, beat, faults, memory, host, peak, refused, launches, busy, waited, reserved"""
SIZE = HEADER.size + SLOTS * SLOT.size
_FLOCK = struct.Struct("hhqqi4x")
_NAMED = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-/:._")


class GpuUse(NamedTuple):
    """What one process, or a whole slice, uses of one GPU."""

    memory_bytes: int = 0
    host_bytes: int = 0
    """beyond the quota, in host memory"""
    peak_bytes: int = 0
    """most of both together"""
    refused: int = 0
    launches: int = 0
    busy_ns: int = 0
    waited_ns: int = 0


class Who(NamedTuple):
    """One process for good: pids are used again, and mean something only in their namespace."""

    pid: int
    pid_space: int
    started: int


@dataclass(frozen=True, slots=True)
class Process:
    """One slot of the region."""

    slot: int
    who: Who
    live: bool
    """False: it has ended, and this is what it left"""
    faults: tuple[int, ...]
    gpus: tuple[GpuUse, ...]
    """by the number of the GPU in the region"""


@dataclass(frozen=True, slots=True)
class Region:
    """A region as it was at one moment."""

    uuids: tuple[str | None, ...]
    """None: nothing that could be a name"""
    created_s: float
    faults: tuple[int, ...]
    """of processes that found no slot"""
    processes: tuple[Process, ...]


def make_region(path: Path, uuids: Sequence[str] = (), *, mode: int = 0o600) -> None:
    """An empty region for these GPUs, which only its owner can write unless the mode says more. Replaces another."""
    named = b"".join(uuid.encode().ljust(UUID_BYTES, b"\0") for uuid in uuids)
    header = HEADER.pack(MAGIC, VERSION, HEADER.size, SLOT.size, SLOTS, len(uuids), 0, time.time_ns(), *[0] * 16, named)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        os.posix_fallocate(descriptor, 0, SIZE)  # a disk that is full later must not kill who writes to it
        file.write(header)
        os.fchmod(descriptor, mode)
    os.replace(fresh, path)


def read_region(path: Path) -> Region:
    """What stands in a region now; OSError where there is none, InputError where it is something else."""
    with _opened(path) as descriptor:
        header = os.pread(descriptor, HEADER.size, 0).ljust(HEADER.size, b"\0")  # it may be cut short meanwhile
        magic, version, header_bytes, slot_bytes, slots, devices, high, created, *faults, names = HEADER.unpack(header)
        if (magic, version, header_bytes, slot_bytes, slots) != (MAGIC, VERSION, HEADER.size, SLOT.size, SLOTS):
            raise InputError(f"{path}: not a region of version {VERSION}")
        used = min(high, SLOTS)
        content = os.pread(descriptor, used * SLOT.size, HEADER.size).ljust(used * SLOT.size, b"\0")
        living = frozenset(_locked(descriptor, 0, used))
    count = min(devices, DEVICES)
    found = (_process(content, slot, count, slot in living) for slot in range(used))
    return Region(
        uuids=tuple(_name(names[UUID_BYTES * i : UUID_BYTES * (i + 1)]) for i in range(count)),
        created_s=created / 1e9,
        faults=_faults(faults),
        processes=tuple(one for one in found if one.who.pid),
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    # A tenant may have put something else there: a link elsewhere, or a pipe that would hold us up.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size != SIZE:
            raise InputError(f"{path}: not a region, which is a file of {SIZE} bytes")
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int, first: int, after: int) -> Iterator[int]:
    """The slots from `first` on and before `after` that somebody holds; costs little where they are few."""
    if first >= after:
        return
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCK_BASE + first, after - first, 0)
    kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    if kind == fcntl.F_UNLCK:
        return
    begin = max(first, start - LOCK_BASE)
    end = after if length == 0 else min(after, start + length - LOCK_BASE)  # 0: to the end of the file
    yield from _locked(descriptor, first, begin)  # it is any of those that are there, not the first
    yield from range(begin, end)
    yield from _locked(descriptor, end, after)


def _process(content: bytes, slot: int, devices: int, live: bool) -> Process:
    _, pid, pid_space, started, _, *words = SLOT.unpack_from(content, slot * SLOT.size)
    columns = [words[16 * (1 + field) :][:devices] for field in range(len(GpuUse._fields))]
    gpus = tuple(GpuUse(*(min(value, MOST) for value in values)) for values in zip(*columns, strict=True))
    return Process(slot, Who(pid, pid_space, started), live, _faults(words[:16]), gpus)


def _faults(counts: Iterable[int]) -> tuple[int, ...]:
    return tuple(min(count, MOST) for count in counts)[: len(FAULTS)]


def _name(field: bytes) -> str | None:
    text = field.partition(b"\0")[0]
    return text.decode() if text and _NAMED.issuperset(text) and len(text) < UUID_BYTES else None
