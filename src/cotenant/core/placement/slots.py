# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The candidate slots of a node, which are scored: sets of the GPUs that the checks leave.

For one GPU: one of each set of GPUs that nothing tells apart. For several: all sets that differ in something, if these
are few; else the tightest, the roomiest and the best linked set, on the whole node and on each NUMA node. The best of
thousands of sets is nearly always one of these.
"""

from itertools import combinations
from math import comb

from cotenant.core.cluster import Node
from cotenant.core.model import MACHINE_TYPE_LABEL, Demand, Gpus, Reason
from cotenant.core.placement import topology
from cotenant.core.placement.checks import by_numa, linked_slot
from cotenant.core.placement.containers import container_refusal, container_slots
from cotenant.core.placement.feasibility import Feasibility

_ALONE: tuple[Gpus, ...] = tuple((i,) for i in range(64))
"""slots of one GPU, made once: millions of them are remembered"""
MOST_SETS = 70
"""as many as 4 of 8 GPUs"""


def alone(gpu: int) -> Gpus:
    """The slot of this GPU."""
    return _ALONE[gpu] if gpu < len(_ALONE) else (gpu,)


def slots_of(feasible: Feasibility, node: Node) -> list[Gpus]:
    """The candidate slots of a node, empty if the demand does not fit; `refusal_of` says why not."""
    demand = feasible.demand
    if demand.gpus == 1 and not demand.containers:
        if feasible.interchangeable:  # only one GPU of each kind is checked
            fitting = feasible.fitting(node, node.distinct)
        else:
            fitting = feasible.fitting(node, range(len(node.compute)))
            if fitting and not feasible.by_name:
                fitting = [i for i in fitting if i in node.distinct] or fitting
        return [] if fitting is None else [alone(i) for i in fitting]
    if demand.containers:
        return container_slots(feasible, node)
    if demand.gpus == 0:
        return [] if feasible.fitting(node, ()) is None else [()]
    fitting = feasible.fitting(node, range(len(node.compute)))
    return _several(demand, node, fitting) if fitting else []


def refusal_of(feasible: Feasibility, node: Node) -> Reason | None:
    """Why the demand does not fit on the node; None if it fits."""
    if feasible.demand.containers:
        return container_refusal(feasible, node)
    eligible = feasible.eligible(node)
    return eligible if isinstance(eligible, Reason) else None


def _every_set(node: Node, eligible: list[int], size: int) -> list[Gpus] | None:
    """All sets of this many GPUs, one of each kind; None if they would be too many."""
    distinct = [i for i in eligible if i in node.distinct]
    if node.machine.uniform and len(distinct) == 1 and not node.grouped:
        return [tuple(eligible[:size])]
    if comb(len(eligible), size) > MOST_SETS:
        return None
    if not node.machine.uniform or node.grouped:
        return list(combinations(eligible, size))
    kinds: dict[tuple[object, ...], Gpus] = {}
    for slot in combinations(eligible, size):
        kinds.setdefault(tuple(sorted((node.compute[i], node.memory[i], node.slots[i]) for i in slot)), slot)
    return list(kinds.values())


def _several(demand: Demand, node: Node, eligible: list[int]) -> list[Gpus]:
    """Candidate sets of several GPUs: tightest and roomiest in each scope, and the best linked."""
    size = demand.gpus
    links = node.machine.links
    if demand.link is not None and size > 1:
        slot = linked_slot(demand, node, eligible)
        return [slot] if slot is not None else []
    table = topology.STATIC_TABLES.get(node.machine.labels.get(MACHINE_TYPE_LABEL, ""))
    every = _every_set(node, eligible, size)
    if every is not None:
        return [slot for slot in every if not demand.one_numa or len({node.machine.gpus[i].numa for i in slot}) == 1]
    numa = list(by_numa(node, eligible).values())
    scopes = numa if demand.one_numa else [eligible, *(numa if len(numa) > 1 else [])]
    found: dict[Gpus, None] = {}
    for scope in scopes:
        if len(scope) < size:
            continue
        tight = sorted(scope, key=lambda i: (node.room[i], i))
        found[tuple(sorted(tight[:size]))] = None
        if node.room[tight[0]] != node.room[tight[-1]]:
            roomy = sorted(scope, key=lambda i: (-node.room[i], i))
            found[tuple(sorted(roomy[:size]))] = None
        found[tuple(scope[:size])] = None
        if table is not None and (listed := topology.static_or_best(table, links or (), scope, size)) is not None:
            found[listed] = None
        if links is not None and (best := topology.best_linked(links, scope, size)) is not None:
            found[best] = None
    return list(found)
