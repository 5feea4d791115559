# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Cancellations that the journal cannot record yet, because the disk is full.

They are stored in a file whose space was reserved when the daemon started, so they survive a kill of the daemon. The
file is mapped into memory: its pages are overwritten in place, which needs no space.
"""

import mmap
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SIZE = 8192
PLACE = 32
"""bytes of one job ID, its line end and padding"""
_STORED = re.compile(rb"(j-\d{6,18})\n\0*")


class UnrecordedCancels:
    """The IDs of cancelled jobs, each at a place of its own in a file of fixed size."""

    def __init__(self, path: Path) -> None:
        self._map = _reserved(path)
        self._places = dict(_stored(self._map))

    def __contains__(self, job: str) -> bool:
        return job in self._places

    def jobs(self) -> list[str]:
        """The cancelled jobs that the journal has not recorded."""
        return list(self._places)

    def add(self, job: str) -> bool:
        """Stores a cancellation durably; False: there is no room for it."""
        free = next((place for place in range(SIZE // PLACE) if place not in self._places.values()), None)
        if job in self._places or free is None or self._map is None:
            return job in self._places
        self._places[job] = free
        self._write(free, f"{job}\n".encode())
        return True

    def remove(self, job: str) -> None:
        """Forgets a cancellation that the journal has recorded."""
        self._write(self._places.pop(job), b"")

    def _write(self, place: int, content: bytes) -> None:
        assert self._map is not None
        self._map[place * PLACE : (place + 1) * PLACE] = content.ljust(PLACE, b"\0")
        self._map.flush()


def _stored(content: mmap.mmap | None) -> Iterator[tuple[str, int]]:
    """Each stored job and its place. A place that was not completely written is empty."""
    for place in range(0 if content is None else SIZE // PLACE):
        stored = None if content is None else _STORED.fullmatch(content[place * PLACE : (place + 1) * PLACE])
        if stored is not None:
            yield stored[1].decode(), place


def _reserved(path: Path) -> mmap.mmap | None:
    """The mapped file; None if it cannot be created, for example because the disk is full already."""
    with suppress(OSError):
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            missing = SIZE - os.fstat(file).st_size
            if missing > 0:  # zeros are written, because a file with a hole would need space later
                os.pwrite(file, bytes(missing), SIZE - missing)
                os.fsync(file)
            if os.fstat(file).st_size >= SIZE:
                return mmap.mmap(file, SIZE)
        finally:
            os.close(file)
    return None
