# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""GPU-seconds of the last seven days, counted in periods of six hours."""

from collections.abc import Mapping
from math import floor

PERIOD_S = 6 * 3600.0
PERIODS = 28


class Week:
    """GPU-seconds of each of the last periods. The oldest period is dropped as a whole, so each GPU-second counts for
    between 6 days 18 hours and 7 days."""

    def __init__(self, periods: Mapping[int, float] | None = None) -> None:
        """`periods`: an earlier result of the method `periods`."""
        self._periods = dict(periods or {})

    def add(self, gpus: float, since: float, until: float) -> None:
        """Adds the use of this number of GPUs from one time to another. A negative number takes back earlier use."""
        since = max(since, until - PERIODS * PERIOD_S)
        while since < until:
            number = floor(since / PERIOD_S)
            end = min(until, (number + 1) * PERIOD_S)
            self._periods[number] = self._periods.get(number, 0.0) + gpus * (end - since)
            since = end

    def periods(self, now: float) -> dict[int, float]:
        """GPU-seconds of each period that still counts."""
        first = floor(now / PERIOD_S) - PERIODS + 1
        self._periods = {number: used for number, used in self._periods.items() if number >= first}
        return self._periods

    def used(self, now: float) -> float:
        """GPU-seconds of all periods that still count."""
        return sum(self.periods(now).values())
