# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A log of lines of bounded size, in files of a folder or in memory: when it is full, the oldest part is deleted."""

import os
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

    def begin(self, head: bytes) -> None:
        """Begins a new part with its first line, and deletes old parts if there are too many."""

    def append(self, line: bytes) -> None:
        """Writes a line to the newest part."""

    @property
    def is_full(self) -> bool:
        """Whether the newest part should be followed by a new one. Its first line does not count: it may be large."""

    def parts(self) -> list[int]:
        """The numbers of all parts, the oldest first. A number is never used twice."""

    def read(self, part: int) -> Iterator[bytes]:
        """The lines of a part; none if it was deleted since."""

    def close(self) -> None: ...


class FolderSegments:
    """Parts as files of a folder that only its owner can read."""

    def __init__(
        self,
        folder: Path,
        segment_bytes: int = SEGMENT_BYTES,
        total_bytes: int = TOTAL_BYTES,
        *,
        in_volume: bool = False,
    ) -> None:
        """`in_volume`: the folder is in a volume that no other user can reach, whatever its permissions are."""
        self._folder, self._segment_bytes, self._total_bytes = folder, segment_bytes, total_bytes
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            problem = problem_of_folder(folder, in_volume=in_volume)
        except OSError as error:
            raise SegmentError(f"{folder}: cannot be used for recorded decisions: {error.strerror}") from None
        if problem is None and not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            problem = "cannot be written to by this user"  # a volume that was kept, of a program that ran as another
        if problem is not None:
            raise SegmentError(f"{folder} {problem}; move it away")
        self._file: int | None = None
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._file is None or self._size >= self._segment_bytes

    def begin(self, head: bytes) -> None:
        self.close()
        files = self._files()
        # Old parts go until the new one has room, so that the total exceeds its bound by one line at most.
        sizes = [_size_of(file) for file in files]
        room = self._total_bytes - self._segment_bytes - len(head)
        for file in files:
            if sum(sizes) <= room and len(sizes) < MOST_SEGMENTS:
                break
            sizes.pop(0)
            file.unlink(missing_ok=True)  # a process before this one, which still ends, may have deleted it
        number = int(files[-1].stem) + 1 if files else 1
        self._file = os.open(
            self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        self.append(head)
        self._size = 0

    def append(self, line: bytes) -> None:
        if self._file is None:
            raise SegmentError("no part was begun")
        written = os.write(self._file, line)
        self._size += written
        if written < len(line):  # the disk is full: what follows belongs to a new part
            raise OSError(28, "No space left on device")

    def parts(self) -> list[int]:
        return [int(file.stem) for file in self._files()]

    def read(self, part: int) -> Iterator[bytes]:
        file = self._path(part)
        try:
            if problem_of_file(file) is not None:
                return
            with file.open("rb") as opened:
                # A kill or a full disk cuts the last line off, and a power loss can leave zeros. What follows damage
                # cannot be understood, so the part ends there.
                for line in opened:
                    if not line.startswith(b"{") or not line.endswith(b"}\n"):
                        return
                    yield line
        except FileNotFoundError:  # deleted since, because the log is full
            return

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _path(self, part: int) -> Path:
        return self._folder / f"{part:09d}{SUFFIX}"

    def _files(self) -> list[Path]:
        return sorted(file for file in self._folder.glob(f"*{SUFFIX}") if file.stem.isdecimal())


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


class MemorySegments:
    """Parts in memory, for a process without a disk of its own."""

    def __init__(self, segment_bytes: int = SEGMENT_BYTES, total_bytes: int = TOTAL_BYTES // 2) -> None:
        self._segment_bytes, self._total_bytes = segment_bytes, total_bytes
        self._parts: dict[int, list[bytes]] = {}
        self._sizes: dict[int, int] = {}
        self._newest = self._head = 0

    @property
    def is_full(self) -> bool:
        return not self._parts or self._sizes[self._newest] - self._head >= self._segment_bytes

    def begin(self, head: bytes) -> None:
        room = self._total_bytes - self._segment_bytes - len(head)
        for part in list(self._parts):
            if sum(self._sizes.values()) <= room and len(self._parts) < MOST_SEGMENTS:
                break
            del self._parts[part], self._sizes[part]
        self._newest, self._head = self._newest + 1, len(head)
        self._parts[self._newest], self._sizes[self._newest] = [head], len(head)

    def append(self, line: bytes) -> None:
        self._parts[self._newest].append(line)
        self._sizes[self._newest] += len(line)

    def parts(self) -> list[int]:
        return list(self._parts)

    def read(self, part: int) -> Iterator[bytes]:
        return iter(list(self._parts.get(part, ())))

    def close(self) -> None:
        self._parts.clear()
        self._sizes.clear()
