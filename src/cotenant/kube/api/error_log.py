# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Logs each kind of error once, and again only after a pause, so that a repeated error cannot flood the log, and other
lines together."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb

from cotenant.wire.text import printable

LONGEST_LINE = 500
MOST_KINDS = 1000
"""Kinds of errors that are told apart. Kinds can contain text of users, so any further ones count as `OTHER`."""
OTHER = "other errors"
JOINED_S = 0.1
"""how long a line may wait for others"""


def describe(error: BaseException) -> str:
    """Return the type, the message and the origin of an unexpected error."""
    frames = extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def to_stderr(*lines: str) -> None:
    """Write lines to stderr, from which Kubernetes collects the log of a container."""
    print("\n".join(f"cotenant: {line}" for line in lines), file=sys.stderr, flush=True)


class JoinedLines:
    """Writes lines together: each write wakes the programs of the container runtime that collect the log, which takes
    more CPU time than to write the line. Use it in an event loop."""

    def __init__(self, write: Callable[..., object] = to_stderr, *, joined_s: float = JOINED_S) -> None:
        """`write` is called with all lines that waited."""
        self._write, self._joined_s = write, joined_s
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        """Write a line soon."""
        if not self._lines:
            asyncio.get_running_loop().call_later(self._joined_s, self.flush)
        self._lines.append(line)

    def flush(self) -> None:
        """Write what waits."""
        lines, self._lines = self._lines, []
        if lines:
            self._write(*lines)


class ErrorLog:
    """Writes one line per kind of error and pause, with the number of errors since the last line of that kind."""

    def __init__(
        self,
        write: Callable[[str], object] = to_stderr,
        *,
        pause_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        """Number of all errors, by kind."""
        self._write, self._pause_s, self._clock = write, pause_s, clock
        self._written: dict[str, tuple[float, int]] = {}  # kind -> (time of the last line, count at that time)

    def report(self, kind: str, text: str) -> None:
        """Count an error, and log it unless one of this kind was logged within the pause."""
        if kind not in self.counts and len(self.counts) >= MOST_KINDS:
            kind = OTHER
        self.counts[kind] += 1
        now = self._clock()
        when, count = self._written.get(kind, (float("-inf"), 0))
        if now - when < self._pause_s:
            return
        since = self.counts[kind] - count
        self._written[kind] = (now, self.counts[kind])
        repeats = f" ({since} times since it was last logged)" if since > 1 else ""
        self._write(f"{kind}: {printable(text)[:LONGEST_LINE]}{repeats}")
