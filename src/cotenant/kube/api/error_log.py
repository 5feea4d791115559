# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Logs each kind of error once, and again only after a pause, so that a repeated error cannot flood the log."""

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


def describe(error: BaseException) -> str:
    """Return the type, the message and the origin of an unexpected error."""
    frames = extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def to_stderr(line: str) -> None:
    """Write a line to stderr, from which Kubernetes collects the log of a container."""
    print(f"cotenant: {line}", file=sys.stderr, flush=True)


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
