# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The slots of a node worth rating: few, and among them the best one for every order we ship.

One GPU: one of each set of equal ones. Several: the tightest, the roomiest and the best linked, on the whole node and
on each NUMA node. Enumerating all subsets would rate thousands to find one of these.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import combinations

from cotenant.core import topology
from cotenant.core.cluster import Node
from cotenant.core.filters import CHECKS, Check, by_numa, eligible_gpus, linked_slot, type_allowed
from cotenant.core.footprint import claims
from cotenant.core.model import MACHINE_TYPE_LABEL, Claim, Container, ContainerKind, Demand, Gpus, Reason
from cotenant.core.units import MiB, MilliGpu

_SEATING_STEPS = 300
"""how many ways to seat a pod's containers are tried where the obvious ones fail"""


def candidate_slots(demand: Demand, node: Node, checks: tuple[Check, ...] = CHECKS) -> list[Gpus]:
    """Slots on which the demand fits, none where it does not; `refusal` says why not."""
    if checks is CHECKS and demand.plain:
        return _plain_slots(demand, node)
    if demand.containers:
        return _container_slots(demand, node)
    eligible = eligible_gpus(demand, node, checks)
    if isinstance(eligible, Reason):
        return []
    if demand.gpus == 1:
        distinct = eligible if _by_identity(demand) else [i for i in eligible if i in node.distinct] or eligible
        return [(i,) for i in distinct]
    return _several(demand, node, eligible)


def refusal(demand: Demand, node: Node, checks: tuple[Check, ...] = CHECKS) -> Reason | None:
    """Why the demand does not fit on the node; None where it does."""
    if demand.containers:
        return _container_refusal(demand, node)
    eligible = eligible_gpus(demand, node, checks)
    return eligible if isinstance(eligible, Reason) else None


def slot_fits(demand: Demand, node: Node, gpus: Gpus) -> bool:
    """Whether the demand fits on exactly these GPUs, by amounts."""
    return host_fits(demand, node) and amounts_fit(demand, node, gpus, gpus)


def host_fits(demand: Demand, node: Node) -> bool:
    return (node.cpu is None or demand.cpu <= node.cpu) and (
        node.host_memory is None or demand.host_memory <= node.host_memory
    )


def amounts_fit(demand: Demand, node: Node, gpus: Gpus, counted: Collection[int]) -> bool:
    """Whether those GPUs of a slot that count have what the demand takes of them."""
    asked = claims(demand, gpus, node.machine.gpus)
    return all(_within(claim, node.free(i)) for i, claim in asked.items() if i in counted)


def _within(claim: Claim, free: Claim) -> bool:
    return claim.memory <= free.memory and claim.compute <= free.compute and claim.slots <= free.slots


def _by_identity(demand: Demand) -> bool:
    return bool(demand.use_uuids or demand.avoid_uuids)


def _plain_slots(demand: Demand, node: Node) -> list[Gpus]:
    """The same answer as the checks give, for demands where amounts and types are all that matters."""
    if node.cpu is not None and demand.cpu > node.cpu:
        return []
    if node.host_memory is not None and demand.host_memory > node.host_memory:
        return []
    compute, memory, slots = node.compute, node.memory, node.slots
    need, need_memory = demand.compute, demand.memory
    if demand.gpus == 1:
        if max(compute, default=-1) < need:
            return []
        fits = [i for i in node.distinct if compute[i] >= need and memory[i] >= need_memory and slots[i] > 0]
    else:
        fits = [i for i, free in enumerate(compute) if free >= need and memory[i] >= need_memory and slots[i] > 0]
    if demand.use_types and fits:
        fits = _of_type(demand, node, fits)
    if len(fits) < demand.gpus:
        return []
    return [(i,) for i in fits] if demand.gpus == 1 else _several(demand, node, fits)


def _of_type(demand: Demand, node: Node, gpus: list[int]) -> list[int]:
    cards, types = node.machine.gpus, node.machine.types
    if len(types) == 1:
        return gpus if type_allowed(cards[0].type, demand.use_types, ()) else []
    return [i for i in gpus if type_allowed(cards[i].type, demand.use_types, ())]


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


def _container_slots(demand: Demand, node: Node) -> list[Gpus]:
    """Container by container onto the tightest, or the roomiest, GPUs that still take it; else any way there is."""
    pools = _container_pools(demand, node)
    if isinstance(pools, Reason):
        return []
    outcomes = [_seat_containers(demand, node, pool, sign) for pool in pools for sign in (1, -1)]
    found = [slot for slot in outcomes if not isinstance(slot, Reason)]
    return list(dict.fromkeys(found)) or _seated_somehow(demand, node, pools)


def _container_refusal(demand: Demand, node: Node) -> Reason | None:
    pools = _container_pools(demand, node)
    if isinstance(pools, Reason):
        return pools
    outcomes = [_seat_containers(demand, node, pool, sign) for pool in pools for sign in (1, -1)]
    reasons = [one for one in outcomes if isinstance(one, Reason)]
    return reasons[0] if len(reasons) == len(outcomes) and not _seated_somehow(demand, node, pools) else None


def _seated_somehow(demand: Demand, node: Node, pools: list[list[int]]) -> list[Gpus]:
    """The first way to seat all containers, for pods that no greedy pass can seat."""
    steps = iter(range(_SEATING_STEPS))
    found = (_seat_rest(demand, node, pool, 0, (), steps) for pool in pools)
    return [slot for slot in found if slot is not None][:1]


def _seat_rest(
    demand: Demand, node: Node, pool: list[int], position: int, chosen: Gpus, steps: Iterator[int]
) -> Gpus | None:
    """Depth first: the containers from this position on, beside those that are seated."""
    if position == len(demand.containers):
        return chosen
    container = demand.containers[position]
    fits = [i for i in pool if _takes(demand, node, demand.containers[: position + 1], chosen, i)]
    for own in combinations(fits, container.gpus):
        if next(steps, None) is None:
            return None
        if not _linked_enough(demand, node, own):
            continue
        found = _seat_rest(demand, node, pool, position + 1, chosen + own, steps)
        if found is not None:
            return found
    return None


def _linked_enough(demand: Demand, node: Node, own: Gpus) -> bool:
    links = node.machine.links
    if demand.link is None or len(own) < 2:
        return True
    return links is not None and all(min(links[a][b], links[b][a]) >= demand.link for a, b in combinations(own, 2))


def _container_pools(demand: Demand, node: Node) -> list[list[int]] | Reason:
    """The GPUs that the pod as a whole may use, by NUMA node where it must stay on one."""
    anywhere = replace(demand, containers=(), gpus=1, memory=MiB(0), memory_percent=None, compute=MilliGpu(0))
    eligible = eligible_gpus(replace(anywhere, one_numa=False, link=None), node)
    if isinstance(eligible, Reason):
        return eligible
    return list(by_numa(node, eligible).values()) if demand.one_numa else [eligible]


def _seat_containers(demand: Demand, node: Node, pool: list[int], sign: int) -> Gpus | Reason:
    """One greedy pass: tightest first (sign 1) or roomiest first (sign -1), init containers' before all."""
    chosen: Gpus = ()
    free_again: set[int] = set()
    for position, container in enumerate(demand.containers):
        earlier = demand.containers[:position]
        fits = [i for i in pool if _takes(demand, node, (*earlier, container), chosen, i)]
        if len(fits) < container.gpus:
            text = f"container {position} ({container.kind}) needs {{needed}} GPUs, {{available}} take it"
            return Reason("container", text, container.gpus, len(fits))
        if demand.link is not None and container.gpus > 1:
            own = linked_slot(replace(demand, gpus=container.gpus), node, fits)
            if own is None:
                return Reason("link", f"container {position} needs {{needed}} linked GPUs", container.gpus, 0)
        else:
            ranked = sorted(fits, key=lambda i: (i not in free_again, sign * node.room[i], i))
            own = tuple(sorted(ranked[: container.gpus]))
        chosen += own
        if container.kind is ContainerKind.INIT:
            free_again.update(own)
    return chosen


def _takes(demand: Demand, node: Node, containers: tuple[Container, ...], chosen: Gpus, gpu: int) -> bool:
    """Whether the last of these containers fits on that GPU beside the ones before it."""
    partial = replace(demand, containers=(*containers[:-1], replace(containers[-1], gpus=1)))
    claim = claims(partial, (*chosen, gpu), node.machine.gpus)[gpu]
    return _within(claim, node.free(gpu))
