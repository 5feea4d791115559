# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The slots of a node worth rating.

One GPU: one of each set of equal ones. Several: all sets that differ in something, where these are few; else the
tightest, the roomiest and the best linked, on the whole node and on each NUMA node: the best of
thousands of sets is nearly always one of these.
"""

from itertools import combinations
from math import comb

from cotenant.core.cluster import Node
from cotenant.core.model import MACHINE_TYPE_LABEL, Demand, Gpus, Reason
from cotenant.core.placement import topology
from cotenant.core.placement.checks import CHECKS, Check, by_numa, eligible_gpus, linked_slot, type_allowed
from cotenant.core.placement.seating import seating_refusal, seatings

_ALONE: tuple[Gpus, ...] = tuple((i,) for i in range(64))
"""slots of one GPU, made once: millions of them are remembered"""
MOST_SETS = 70
"""as many as 4 of 8 GPUs"""


def candidate_slots(demand: Demand, node: Node, checks: tuple[Check, ...] = CHECKS) -> list[Gpus]:
    """Slots on which the demand fits, none where it does not; `refusal` says why not."""
    if checks is CHECKS and demand.plain:
        return _plain_slots(demand, node)
    if demand.containers:
        return seatings(demand, node, checks)
    eligible = eligible_gpus(demand, node, checks)
    if isinstance(eligible, Reason):
        return []
    if demand.gpus == 1:
        distinct = eligible if demand.by_name else [i for i in eligible if i in node.distinct] or eligible
        return [(i,) for i in distinct]
    return _several(demand, node, eligible)


def refusal(demand: Demand, node: Node, checks: tuple[Check, ...] = CHECKS) -> Reason | None:
    """Why the demand does not fit on the node; None where it does."""
    if demand.containers:
        return seating_refusal(demand, node, checks)
    eligible = eligible_gpus(demand, node, checks)
    return eligible if isinstance(eligible, Reason) else None


def _plain_slots(demand: Demand, node: Node) -> list[Gpus]:
    """The same answer as the checks give, for demands where amounts and types are all that matters."""
    if node.cpu is not None and demand.cpu > node.cpu:
        return []
    if node.host_memory is not None and demand.host_memory > node.host_memory:
        return []
    if demand.use_types and demand.gpus and node.machine.card is not None:
        if not type_allowed(node.machine.card.type, demand.use_types, ()):
            return []
        mixed = False
    else:
        mixed = bool(demand.use_types and demand.gpus)
    compute, memory, slots = node.compute, node.memory, node.slots
    need, need_memory = demand.compute, demand.memory
    if demand.gpus == 1:
        fits = [i for i in node.distinct if compute[i] >= need and memory[i] >= need_memory and slots[i] > 0]
    else:
        fits = [i for i, free in enumerate(compute) if free >= need and memory[i] >= need_memory and slots[i] > 0]
    if mixed:
        cards = node.machine.gpus
        fits = [i for i in fits if type_allowed(cards[i].type, demand.use_types, ())]
    if len(fits) < demand.gpus:
        return []
    return [_ALONE[i] if i < len(_ALONE) else (i,) for i in fits] if demand.gpus == 1 else _several(demand, node, fits)


def _every_set(node: Node, eligible: list[int], size: int) -> list[Gpus] | None:
    """All sets of so many GPUs, one of each kind; None where they would be too many."""
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
    if size == 0:
        return [()]
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
