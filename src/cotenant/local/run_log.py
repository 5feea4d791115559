# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The output of a run on disk."""

import os
from contextlib import suppress

from cotenant.local.run_files import NEW_FILE


class Log:
    """The job's output on disk, bounded by rotation. On a full disk output is dropped; the job continues."""

    def __init__(self, path: str, file_bytes: int, files: int) -> None:
        self.dropped = 0
        self._path, self._file_bytes, self._files = path, file_bytes, files
        self._file = -1
        self._size = 0
        self._begins = 0  # bytes of output in earlier files
        self._unreported = 0

    def write(self, output: bytes) -> None:
        """Appends output, or drops and counts it."""
        try:
            if self._unreported:
                self._append(b"\n[cotenant: %d bytes of output dropped: no room on the disk]\n" % self._unreported)
                self._unreported = 0
            while output:
                output = output[self._append(output) :]
        except OSError:
            self.dropped += len(output)
            self._unreported += len(output)

    def _append(self, output: bytes) -> int:
        if self._file < 0 or self._size >= self._file_bytes:
            self._turn()
        written = os.write(self._file, output[: self._file_bytes - self._size])
        self._size += written
        return written

    def _turn(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._begins += self._size
            names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._files))]
            for older, oldest in zip(names[-2::-1], names[:0:-1], strict=True):
                with suppress(FileNotFoundError):
                    os.rename(older, oldest)
            with suppress(FileNotFoundError):
                os.unlink(self._path)  # if only one file is kept
        if self._begins:  # written before the new `log`, so that a reader of `log` finds its offset
            with open(f"{self._path}.begins.tmp", "w") as file:
                file.write(str(self._begins))
            os.rename(f"{self._path}.begins.tmp", f"{self._path}.begins")
        self._file = os.open(self._path, NEW_FILE | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
