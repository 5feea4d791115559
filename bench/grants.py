# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures requests below limits over the stand-in driver: tenants race for what the others leave free."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Figure, at_most, benchmark
from cotenant.node.grants import POLL_S
from tests.native.probe import Probe
from tests.node.granting import Allocation, Tenants, race

TENANTS, ROUNDS, RECLAIMS = 8, 500, 5


@benchmark("reclaim")
def reclaim() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="ct") as folder:
        seen = race(Path(folder), TENANTS, ROUNDS)
    of = f"{TENANTS} tenants, requests fill the GPU, limits above, {ROUNDS} rounds each"
    yield at_most("refused within a request", 0, "times", limit=0, note=f"{of}; else this benchmark fails")
    yield Figure(name="rounds above a request", figure=seen["above"], unit="rounds", note=of)
    yield Figure(name="evictions", figure=seen["evicted"], unit="tenants", note=f"{of}; an evicted one begins again")
    yield at_most("longest wait within a request", seen["longest_s"], "s", limit=2, note=of)
    yield at_most(
        "time to reclaim",
        max(_hoarded() for _ in range(RECLAIMS)),
        "s",
        limit=2,
        note="a tenant that frees "
        f"nothing holds half of the other's request and is killed for it; the longest of {RECLAIMS}",
    )


def _hoarded() -> float:
    """Seconds until an allocation within a request is served, while another tenant holds that memory and is evicted."""
    with tempfile.TemporaryDirectory(prefix="ct") as folder:
        gpu = Tenants(Path(folder), 8192)
        owner, other = gpu.add("owner", 4096, 8000), gpu.add("other", 4096, 8000)
        with gpu.probe(owner) as one, gpu.probe(other) as two:
            _serve(gpu, Allocation(two, 0, 6144), two)
            began = time.monotonic()
            _serve(gpu, Allocation(one, 0, 4000), two)
            return time.monotonic() - began


def _serve(gpu: Tenants, allocation: Allocation, hoarder: Probe) -> None:
    while not allocation.answers:
        if gpu.round():
            hoarder.process.kill()
        time.sleep(POLL_S)
    if allocation.answers != [0]:
        raise AssertionError(f"refused within the request: {allocation.answers}")
