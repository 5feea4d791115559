# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Compares plans of MIG layouts with those that ParvaGPU (SC'24) has published for A100s.

Its repository has a deployment for each of six scenarios: how many instances of which size, on how many GPUs. Which
sizes a scenario needs follows from its measurements of models, and is taken as given here; how few GPUs hold them is
what the search in `core` decides. The tables are counts from github.com/MunQ-Lee/ParvaGPU_SC24, `deployment/`.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

from bench.harness import Figure, benchmark
from cotenant.core.model import Demand, Gpu, Machine
from cotenant.core.placement.repartition import repartition
from cotenant.core.units import MiB

A100 = "NVIDIA A100-SXM4-80GB"
PROFILES = {7: "7g.80gb", 4: "4g.40gb", 3: "3g.40gb", 2: "2g.20gb", 1: "1g.10gb"}
SLICES, SPARE = 7, 4


class Deployment(NamedTuple):
    """A published one."""

    instances: dict[int, int]
    """by slices of compute"""
    gpus: int

    @property
    def slices(self) -> int:
        return sum(size * count for size, count in self.instances.items())


PUBLISHED = {
    "S1": Deployment({3: 1, 2: 2, 1: 3}, 2),
    "S2": Deployment({3: 1, 2: 7, 1: 3}, 3),
    "S3": Deployment({3: 5, 2: 5, 1: 8}, 5),
    "S4": Deployment({3: 7, 2: 8, 1: 11}, 7),
    "S5": Deployment({3: 12, 2: 13, 1: 28}, 13),
    "S6": Deployment({7: 2, 4: 2, 3: 14, 2: 4, 1: 40}, 16),
}


@benchmark("mig-packing")
def mig_packing() -> Iterator[Figure]:
    """How many GPUs a plan needs for the instances of each scenario, beside the published number."""
    for name, published in PUBLISHED.items():
        gpus, seconds = planned(published)
        least = -(-published.slices // SLICES)
        yield Figure(
            name=f"GPUs for scenario {name}",
            figure=gpus,
            unit="GPUs",
            baseline=f"ParvaGPU {published.gpus}",
            target=f"<= {published.gpus}",
            met=gpus <= published.gpus,
            note=f"{sum(published.instances.values())} instances, {published.slices} slices: {least} GPUs at least; "
            f"planned in {1000 * seconds:.0f} ms; its layouts, not its measurements, are compared",
        )


def planned(deployment: Deployment) -> tuple[int, float]:
    """The number of GPUs that a plan partitions, of some more than were published, and how long it took."""
    machine = Machine(
        name="here",
        gpus=tuple(Gpu(uuid=f"GPU-{i}", type=A100, memory=MiB(81_920)) for i in range(deployment.gpus + SPARE)),
    )
    sizes = [size for size, count in sorted(deployment.instances.items(), reverse=True) for _ in range(count)]
    requests = [(f"{size}-{i}", Demand(mig=PROFILES[size])) for i, size in enumerate(sizes)]
    began = time.perf_counter()
    plan = repartition(machine, [], requests)
    assert not plan.unserved, plan.unserved
    return len(plan.changes), time.perf_counter() - began
