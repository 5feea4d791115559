# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The usage region: a shared file in which the processes of a slice record their use. Made here, and read from outside.

native/lib/region.h defines the layout and the ownership of its parts; a test compares it with the one here. The tenant
writes it, so its content is copied first and every value is checked.
"""

import contextlib
import errno
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
from cotenant.node.kernel import OFD_GETLK

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
"""in the order of the library; docs/reference/vgpu.md says what each means"""
LARGEST_COUNT = (1 << 63) - 1
"""upper bound of every number that is read: larger ones cannot be true, and not every reader accepts them"""

HEADER = struct.Struct("<QIIIIIIQ16Q768s256x128x2776x")
"""magic, version, header_bytes, slot_bytes, slots, devices, high, created, faults, uuid, bucket, spilled, reserved"""
SLOT = struct.Struct("<IIQQQ16Q16Q16Q16Q16Q16Q16Q16Q16I4Q")
"""state, pid, pid_space, started, beat, faults, memory, host, peak, refused, launches, busy, waited, wanted (32 bits),
reserved"""
SIZE = HEADER.size + SLOTS * SLOT.size
UNFINISHED = ".new"
"""end of the name of a region that is being made"""
_FLOCK = struct.Struct("hhqqi4x")
_UUID_CHARACTERS = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-/:._")


class GpuUse(NamedTuple):
    """What one process, or a whole slice, uses of one GPU."""

    memory_bytes: int = 0
    host_bytes: int = 0
    """managed memory beyond the quota"""
    peak_bytes: int = 0
    """largest sum of both"""
    refused: int = 0
    """allocations"""
    launches: int = 0
    busy_ns: int = 0
    """device time"""
    waited_ns: int = 0
    """time that launches were held back"""
    wanted_mib: int = 0
    """for which allocations wait until more memory is granted"""


class ProcessIdentity(NamedTuple):
    """Identifies a process for ever: a pid is used again, and is unique only in its namespace."""

    pid: int
    pid_space: int
    started: int
    """start time of the process, in clock ticks since boot"""


@dataclass(frozen=True, slots=True)
class Process:
    """One slot of the region."""

    slot: int
    identity: ProcessIdentity
    live: bool
    """False: the process has ended, and these are its last numbers"""
    faults: tuple[int, ...]
    gpus: tuple[GpuUse, ...]
    """by the number of the GPU in the region"""


@dataclass(frozen=True, slots=True)
class Region:
    """A region as it was at one moment."""

    uuids: tuple[str | None, ...]
    """None: the field is not a valid UUID"""
    created_s: float
    faults: tuple[int, ...]
    """of processes without a slot"""
    processes: tuple[Process, ...]


def make_region(path: Path, uuids: Sequence[str] = (), *, mode: int = 0o600) -> None:
    """Writes an empty region for these GPUs and replaces an existing one. By default only its owner can write to it."""
    named = b"".join(uuid.encode().ljust(UUID_BYTES, b"\0") for uuid in uuids)
    header = HEADER.pack(MAGIC, VERSION, HEADER.size, SLOT.size, SLOTS, len(uuids), 0, time.time_ns(), *[0] * 16, named)
    fresh = path.with_name(f"{path.name}{UNFINISHED}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        os.posix_fallocate(descriptor, 0, SIZE)  # a write to a hole would kill the process if the disk is full then
        file.write(header)
        os.fchmod(descriptor, mode)
    os.replace(fresh, path)


def open_region(path: Path) -> int:
    """Opens a region for writing, whatever its tenant has done to it; raises OSError.

    Root in a container may have changed the owner, the mode or the access list of the file, and does so again while
    this runs. Access is restored through a descriptor, so that the tenant cannot lead this process to another file; for
    that, CAP_FOWNER is enough. If the tenant has a lease on the file, it can be opened when the kernel has ended that.
    """
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW)
    except PermissionError:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            itself = f"/proc/self/fd/{place}"
            with contextlib.suppress(OSError):  # there is none, or the file system has none
                os.removexattr(itself, "system.posix_acl_access")
            os.chmod(itself, 0o666)
            descriptor = os.open(itself, flags)
        finally:
            os.close(place)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def cut_region(descriptor: int) -> bool:
    """Cuts off what a tenant has added to its region; True if there was something to cut. Raises OSError.

    The descriptor is open for writing, so the mode of the file and leases on it do not matter.
    """
    seen = os.fstat(descriptor)
    # There may also be more behind its end, which only its blocks show.
    if seen.st_size <= SIZE and seen.st_blocks * 512 <= 2 * SIZE:
        return False
    os.ftruncate(descriptor, SIZE)
    return True


def read_region(path: Path) -> Region:
    """Reads a region; raises OSError if there is none, InputError if the file is not a region."""
    with _opened(path) as descriptor:
        header = os.pread(descriptor, HEADER.size, 0).ljust(HEADER.size, b"\0")  # it may be truncated meanwhile
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
        processes=tuple(one for one in found if one.identity.pid),
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    # The tenant may have replaced the file by a link elsewhere, or by a pipe that would block this process.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size != SIZE:
            raise InputError(f"{path}: not a region, which is a file of {SIZE} bytes")
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int, first: int, after: int) -> Iterator[int]:
    """The locked slots of range(first, after); costs one system call per locked range."""
    if first >= after:
        return
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCK_BASE + first, after - first, 0)
    kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(descriptor, OFD_GETLK, query))
    if kind == fcntl.F_UNLCK:
        return
    begin = max(first, start - LOCK_BASE)
    end = after if length == 0 else min(after, start + length - LOCK_BASE)  # 0: to the end of the file
    yield from _locked(descriptor, first, begin)  # the kernel returns any locked range, not the first
    yield from range(begin, end)
    yield from _locked(descriptor, end, after)


def _process(content: bytes, slot: int, devices: int, live: bool) -> Process:
    _, pid, pid_space, started, _, *words = SLOT.unpack_from(content, slot * SLOT.size)
    columns = [words[16 * (1 + field) :][:devices] for field in range(len(GpuUse._fields))]
    gpus = tuple(GpuUse(*(min(value, LARGEST_COUNT) for value in values)) for values in zip(*columns, strict=True))
    return Process(slot, ProcessIdentity(pid, pid_space, started), live, _faults(words[:16]), gpus)


def _faults(counts: Iterable[int]) -> tuple[int, ...]:
    return tuple(min(count, LARGEST_COUNT) for count in counts)[: len(FAULTS)]


def _name(field: bytes) -> str | None:
    text = field.partition(b"\0")[0]
    return text.decode() if text and _UUID_CHARACTERS.issuperset(text) and len(text) < UUID_BYTES else None
