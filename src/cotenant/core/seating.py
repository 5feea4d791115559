# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods whose containers ask for different things: which container goes on which GPUs of a node."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import combinations

from cotenant.core.cluster import Node
from cotenant.core.filters import Check, by_numa, eligible_gpus, linked_slot
from cotenant.core.footprint import claims
from cotenant.core.model import Claim, Container, ContainerKind, Demand, Gpus, Reason
from cotenant.core.units import MiB, MilliGpu

_SEATING_STEPS = 300
"""how many ways to seat a pod's containers are tried where the obvious ones fail"""


def seatings(demand: Demand, node: Node, checks: tuple[Check, ...]) -> list[Gpus]:
    """Slots for a pod: each container on the tightest, or the roomiest, GPUs that still take it; else any way."""
    pools = _pools(demand, node, checks)
    if isinstance(pools, Reason):
        return []
    outcomes = [_seat_containers(demand, node, pool, sign) for pool in pools for sign in (1, -1)]
    found = [slot for slot in outcomes if not isinstance(slot, Reason)]
    return list(dict.fromkeys(found)) or _seated_somehow(demand, node, pools)


def seating_refusal(demand: Demand, node: Node, checks: tuple[Check, ...]) -> Reason | None:
    pools = _pools(demand, node, checks)
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


def _pools(demand: Demand, node: Node, checks: tuple[Check, ...]) -> list[list[int]] | Reason:
    """The GPUs that the pod as a whole may use, by NUMA node where it must stay on one."""
    one = 1 if any(container.gpus for container in demand.containers) else 0
    anywhere = replace(demand, containers=(), gpus=one, memory=MiB(0), memory_percent=None, compute=MilliGpu(0))
    eligible = eligible_gpus(replace(anywhere, one_numa=False, link=None), node, checks)
    if isinstance(eligible, Reason):
        return eligible
    return list(by_numa(node, eligible).values()) or [[]] if demand.one_numa else [eligible]


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
