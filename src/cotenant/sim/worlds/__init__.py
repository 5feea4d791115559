# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Worlds: the true speeds of jobs, which the simulator uses and no policy may see."""

from typing import Protocol

from cotenant.core.sharing.speeds import TenantSet


class World(Protocol):
    """The speeds of workloads on a GPU type, alone and next to others."""

    def alone(self, gpu_type: str, workload: str | None) -> float:
        """Speed alone, relative to the speed at which the trace's durations were taken."""
        ...

    def speeds(self, company: TenantSet) -> tuple[float, ...]:
        """Speed of each tenant, relative to its speed alone on that GPU type."""
        ...
