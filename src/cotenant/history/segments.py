# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A log of lines of bounded size, in files of a folder or in memory: when it is full, the oldest part is deleted."""

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from cotenant.errors import CotenantError
from cotenant.node.ownership import problem_of_file, problem_of_folder

SEGMENT_BYTES = 4 * 1024 * 1024
TOTAL_BYTES = 64 * 1024 * 1024
MOST_SEGMENTS = 256
SUFFIX = ".jsonl"


class SegmentError(CotenantError):
    """The log cannot be opened or written."""


class Segments(Protocol):
    """Parts of a log. Each part begins with a line from which it can be understood without the parts before."""

    def begin(self) -> None:
        """Begins a new part, and deletes old ones if there are too many."""

    def append(self, line: bytes) -> None:
        """Writes a line to the newest part."""

    @property
    def is_full(self) -> bool:
        """Whether the newest part should be followed by a new one."""

    def read(self) -> Iterator[bytes]:
        """All lines, the oldest first."""

    def close(self) -> None: ...


class FolderSegments:
    """Parts as files of a folder that only its owner can read."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES, total_bytes: int = TOTAL_BYTES) -> None:
        self._folder, self._segment_bytes, self._total_bytes = folder, segment_bytes, total_bytes
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            problem = problem_of_folder(folder)
        except OSError as error:
            raise SegmentError(f"{folder}: cannot be used for recorded decisions: {error.strerror}") from None
        if problem is not None:
            raise SegmentError(f"{folder} {problem}; move it away")
        self._file: int | None = None
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._file is None or self._size >= self._segment_bytes

    def begin(self) -> None:
        self.close()
        files = self._files()
        # At least one part goes for the new one, so that the total never exceeds its bound.
        sizes = [file.stat().st_size for file in files]
        room = self._total_bytes - self._segment_bytes
        for file in files:
            if sum(sizes) <= room and len(sizes) < MOST_SEGMENTS:
                break
            sizes.pop(0)
            file.unlink()
        number = int(files[-1].stem) + 1 if files else 1
        path = self._folder / f"{number:09d}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._size = 0

    def append(self, line: bytes) -> None:
        if self._file is None:
            raise SegmentError("no part was begun")
        written = os.write(self._file, line)
        self._size += written
        if written < len(line):  # the disk is full: what follows belongs to a new part
            raise OSError(28, "No space left on device")

    def read(self) -> Iterator[bytes]:
        for file in self._files():
            try:
                if problem_of_file(file) is not None:
                    continue
                with file.open("rb") as opened:
                    # A part that a kill or a full disk cut off has a last line without an end.
                    yield from (line for line in opened if line.endswith(b"\n"))
            except FileNotFoundError:  # deleted since, because the log is full
                continue

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _files(self) -> list[Path]:
        return sorted(file for file in self._folder.glob(f"*{SUFFIX}") if file.stem.isdecimal())


class MemorySegments:
    """Parts in memory, for a process without a disk of its own."""

    def __init__(self, segment_bytes: int = SEGMENT_BYTES, total_bytes: int = TOTAL_BYTES // 2) -> None:
        self._segment_bytes, self._most = segment_bytes, max(2, total_bytes // segment_bytes)
        self._parts: deque[list[bytes]] = deque()
        self._size = 0

    @property
    def is_full(self) -> bool:
        return not self._parts or self._size >= self._segment_bytes

    def begin(self) -> None:
        self._parts.append([])
        self._size = 0
        while len(self._parts) > self._most:
            self._parts.popleft()

    def append(self, line: bytes) -> None:
        self._parts[-1].append(line)
        self._size += len(line)

    def read(self) -> Iterator[bytes]:
        for part in list(self._parts):
            yield from list(part)

    def close(self) -> None:
        self._parts.clear()
