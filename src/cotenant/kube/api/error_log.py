# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, said without flooding the log: each kind of trouble in one line, and again only after a while."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb

from cotenant.wire.text import printable

LONGEST_LINE = 500
MOST_KINDS = 1000
"""that are told apart; whoever invents more is told of as one"""
OTHER = "other trouble"


def in_words(error: BaseException) -> str:
    """An error that nobody expected: its kind, and where it came from."""
    places = extract_tb(error.__traceback__)
    where = f" ({Path(places[-1].filename).name} line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {error}{where}"


def to_stderr(line: str) -> None:
    """Where a container's log is read from."""
    print(f"cotenant: {line}", file=sys.stderr, flush=True)


class Troubles:
    """Says a kind of trouble at most once in a while, with how often it came in between."""

    def __init__(
        self,
        say: Callable[[str], object] = to_stderr,
        *,
        every_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        """all of it, by kind"""
        self._say, self._every_s, self._clock = say, every_s, clock
        self._said: dict[str, tuple[float, int]] = {}

    def tell(self, kind: str, text: str) -> None:
        """It happened (again)."""
        if kind not in self.counts and len(self.counts) >= MOST_KINDS:
            kind = OTHER
        self.counts[kind] += 1
        now = self._clock()
        when, count = self._said.get(kind, (float("-inf"), 0))
        if now - when < self._every_s:
            return
        since = self.counts[kind] - count
        self._said[kind] = (now, self.counts[kind])
        often = f" ({since} times since it was last said)" if since > 1 else ""
        self._say(f"{kind}: {printable(text)[:LONGEST_LINE]}{often}")
