# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Kills the MPS control daemon of a GPU again and again under jobs, over the stand-ins of the driver and of MPS."""

import statistics
from collections.abc import Iterator

from bench.harness import Figure, at_most, benchmark
from tests.local.daemon import until
from tests.local.mps_machine import DEFAULT, modes, mps_machine, survive
from tests.local.standin_machine import output, submit_probe
from tests.native import kit

KILLS, TENANTS = 20, 8
OVER_THE_LIMIT = 2
"""what the driver answers to an allocation beyond the limit"""


@benchmark("mps-restarts")
def mps_restarts() -> Iterator[Figure]:
    """The seconds until all jobs use the GPU again, and what was not as before."""
    how = f"{KILLS} kills, {TENANTS} jobs; stand-ins, no real GPU"
    wrong = 0
    with mps_machine() as daemon:
        jobs = [submit_probe(daemon, "100", "600000", memory="256MiB", isolation="mps") for _ in range(TENANTS)]
        took = []
        for _ in range(KILLS):
            took += survive(daemon, jobs, 1)
            beyond = submit_probe(daemon, "300", "10", memory="256MiB", isolation="mps")
            daemon.ended(beyond.id)
            wrong += kit.values(output(daemon, beyond.id))["allocated"] != OVER_THE_LIMIT
        daemon.clear()
        until(lambda: modes(daemon) == [DEFAULT, DEFAULT])
    yield at_most("limits that did not hold after a restart", wrong, "", limit=0, note=how)
    note = f"{how}; median {statistics.median(took):.1f}; they are stopped, and started after MPS has restarted"
    yield at_most("until all jobs use the GPU again, at most", max(took), "s", limit=60, note=note)
