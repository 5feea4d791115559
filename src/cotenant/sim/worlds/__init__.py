# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Worlds: the truth about how fast jobs run, which the simulator knows and no policy may see."""

from typing import Protocol

from cotenant.core.sharing.speeds import Company


class World(Protocol):
    """How fast workloads run on a card, alone and beside others."""

    def alone(self, card: str, workload: str | None) -> float:
        """Of the speed at which the trace's durations were taken."""
        ...

    def speeds(self, company: Company) -> tuple[float, ...]:
        """Of each tenant's speed alone on that card."""
        ...
