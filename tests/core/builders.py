# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Short ways to say a machine, a job and a cluster in a test."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Gpu, Gpus, Job, Machine, Placement, Slot, Tenant
from cotenant.core.sharing.speeds import Predicted, tenant_set_of
from cotenant.core.units import MiB, MilliGpu, Seconds


def machine(name: str = "a", gpus: int = 1, memory: int = 16000, **host: Any) -> Machine:
    """A machine of equal cards."""
    cards = tuple(Gpu(uuid=f"{name}-{i}", memory=MiB(memory)) for i in range(gpus))
    return Machine(name=name, gpus=cards, **host)


def machine_of(name: str, *cards: Gpu, **host: Any) -> Machine:
    """A machine of these cards, each with a UUID of its own."""
    return Machine(name=name, gpus=tuple(replace(card, uuid=f"{name}-{i}") for i, card in enumerate(cards)), **host)


def card(memory: int = 16000, **properties: Any) -> Gpu:
    return Gpu(uuid="", memory=MiB(memory), **properties)


def share(memory: int = 0, compute: int = 0, **wishes: Any) -> Demand:
    """A demand for part of a GPU; it claims no compute unless told."""
    return Demand(memory=MiB(memory), compute=MilliGpu(compute), **wishes)


def job(name: str, demand: Demand | None = None, **properties: Any) -> Job:
    if "submitted" in properties:
        properties["submitted"] = Seconds(properties["submitted"])
    return Job(id=name, demand=Demand() if demand is None else demand, **properties)


def placed(name: str, demand: Demand, node: str, *gpus: int) -> Placement:
    return Placement(job(name, demand), Slot(node, gpus))


def node(of: Machine, *tenants: tuple[Demand, Gpus]) -> Node:
    return Node.of(of, [Tenant(f"tenant-{i}", demand, gpus) for i, (demand, gpus) in enumerate(tenants)])


def with_free_memory(free: Sequence[int], each: int = 16276, name: str = "a") -> Node:
    """A node whose GPUs have just so much memory left."""
    taken = [(share(each - left), (i,)) for i, left in enumerate(free) if left < each]
    return node(machine(name, len(free), each), *taken)


def one_bad_pair() -> Predicted:
    """A pair was measured that gains nothing."""
    belief = Predicted()
    belief.observe(tenant_set_of("gpu", ("x", "y")), [0.5, 0.5])
    return belief


def cluster_with(machines: Sequence[Machine], *placements: Placement) -> Cluster:
    cluster = Cluster.of(machines)
    for one in placements:
        cluster = cluster.place(one)
    return cluster
