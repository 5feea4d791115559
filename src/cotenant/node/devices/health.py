# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""When a GPU that failed may take jobs again: a state machine whose events carry their time."""

from cotenant.core.units import Seconds

RECOVERY = Seconds(60.0)
"""How long a GPU must answer without a new fault before it takes jobs again."""
LONGEST_RECOVERY = Seconds(3600.0)
"""A GPU that keeps failing waits twice as long each time, up to this."""


class Health:
    """Whether one GPU may take jobs: a fault takes it out at once; after a time of answers without fault it is back."""

    def __init__(self, recovery: Seconds = RECOVERY) -> None:
        self.reason: str | None = None
        """Why it is unhealthy; None: it is healthy."""
        self._recovery = recovery
        self._wait = recovery
        self._quiet_since: Seconds | None = None
        self._healthy_since: Seconds | None = None

    @property
    def healthy(self) -> bool:
        return self.reason is None

    def fault(self, reason: str, at: Seconds) -> None:
        """Takes a fault: a lost GPU, an XID, a memory error."""
        if self.healthy and self._healthy_since is not None:
            relapsed = at - self._healthy_since < self._wait
            self._wait = min(Seconds(2 * self._wait), LONGEST_RECOVERY) if relapsed else self._recovery
        self.reason, self._quiet_since, self._healthy_since = reason, None, None

    def answered(self, at: Seconds) -> None:
        """Takes a poll in which all queries were answered."""
        if self.healthy:
            return
        if self._quiet_since is None:
            self._quiet_since = at
        if at - self._quiet_since >= self._wait:
            self.reason, self._quiet_since, self._healthy_since = None, None, at
