# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Cancellations that the journal cannot record yet, because the disk is full.

They are stored in a file whose space was reserved when the daemon started, so they survive a kill of the daemon. The
file is overwritten in place, which needs no space. It is not mapped into memory: a page that cannot be written, for
example because the file was truncated, would end the daemon with SIGBUS instead of an error.
"""

import fcntl
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cotenant.local.journal_schema import JournalError

SIZE = 8192
PLACE = 32
"""bytes of one job ID, its line end and padding"""
_STORED = re.compile(rb"(j-\d{6,18})\n\0*")
FS_IOC_SETFLAGS, FS_NOCOW_FL = 0x40086602, 0x00800000


class UnrecordedCancels:
    """The IDs of cancelled jobs, each at a place of its own in a file of fixed size."""

    def __init__(self, path: Path) -> None:
        self._file = _reserved(path)
        self._places: dict[str, int | None] = dict(_stored(self._file))
        """None: the job is remembered only in memory"""
        self._recorded = dict[str, int]()
        """the places of jobs that the journal has recorded, but that are still in the file"""

    def __contains__(self, job: str) -> bool:
        return job in self._places

    def jobs(self) -> list[str]:
        """The cancelled jobs that the journal has not recorded."""
        return list(self._places)

    def store(self, job: str) -> bool:
        """Stores a cancellation durably; False: it cannot be stored, and is not known afterwards."""
        if job in self._recorded:
            self._places[job] = self._recorded.pop(job)
        if self._places.get(job) is not None:
            return True
        free = next((place for place in range(SIZE // PLACE) if place not in self._places.values()), None)
        if free is None or self._file is None:
            return False
        try:
            _write(self._file, free, f"{job}\n".encode())
        except OSError:
            with suppress(OSError):  # it may have been written and not synced: a restart must not find it
                _write(self._file, free, b"")
            return False
        self._places[job] = free
        self._recorded = {other: place for other, place in self._recorded.items() if place != free}
        return True

    def remember(self, job: str) -> None:
        """Remembers a cancellation until this process ends, for a job that can be stopped without a record."""
        self._places.setdefault(job, None)

    def remove(self, job: str) -> None:
        """Forgets a cancellation that the journal has recorded. JournalError if it would be found after a restart: it
        could cancel a later attempt of the job, so there must be none before another call succeeds."""
        if (place := self._places.pop(job, None)) is not None:
            self._recorded[job] = place
        try:
            if job in self._recorded and self._file is not None:
                _write(self._file, self._recorded[job], b"")
        except OSError as error:
            raise JournalError(f"the recorded cancellation of {job} cannot be removed: {error.strerror}") from None
        self._recorded.pop(job, None)


def _write(file: int, place: int, content: bytes) -> None:
    os.pwrite(file, content.ljust(PLACE, b"\0"), place * PLACE)  # within one block, so never a part of it
    os.fdatasync(file)


def _stored(file: int | None) -> Iterator[tuple[str, int]]:
    """Each stored job and its place. A place that was not completely written is empty."""
    content = b"" if file is None else os.pread(file, SIZE, 0)
    for place in range(len(content) // PLACE):
        stored = _STORED.fullmatch(content[place * PLACE : (place + 1) * PLACE])
        if stored is not None:
            yield stored[1].decode(), place


def _reserved(path: Path) -> int | None:
    """The open file; None if it cannot be created, for example because the disk is full already."""
    with suppress(OSError):
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(file).st_size
            if size == 0:
                # btrfs would write each change to another place, which needs space. Only an empty file can be changed.
                with suppress(OSError):
                    fcntl.ioctl(file, FS_IOC_SETFLAGS, struct.pack("i", FS_NOCOW_FL))
            if size < SIZE:  # zeros are written, because a file with a hole would need space later
                os.pwrite(file, bytes(SIZE - size), size)
                os.fsync(file)
            if os.fstat(file).st_size >= SIZE:
                return file
        except OSError:
            os.close(file)
            raise
        os.close(file)
    return None
