# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How many steps the selectors of each namespace may take.

The scheduler does nothing else while it evaluates selectors, and a user can create many claims. So each namespace has
an allowance that fills up again: claims of a namespace that has used it up wait, and those of others do not.
"""

from collections.abc import Callable

MOST = 1_000_000
"""Steps at once; a step takes 1 to 3 µs."""
EACH_S = 20_000
"""Steps by which an allowance rises in a second."""
MOST_KNOWN = 1_000
"""Namespaces, before those are forgotten that have their whole allowance."""


class Allowances:
    """The allowances of all namespaces."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """what is left, and when that was"""

    def left(self, namespace: str) -> float:
        """The steps that are left; the evaluation that uses up an allowance may take more."""
        now = self._clock()
        left, then = self._left.get(namespace, (MOST, now))
        return min(MOST, left + (now - then) * EACH_S)

    def take(self, namespace: str, steps: int) -> None:
        """Selectors of a namespace took so many steps."""
        if not steps:
            return
        self._left[namespace] = self.left(namespace) - steps, self._clock()
        if len(self._left) > MOST_KNOWN:
            self._left = {name: kept for name, kept in self._left.items() if self.left(name) < MOST}
