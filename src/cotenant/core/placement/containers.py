# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Slots for pods whose containers have different demands: which container gets which GPUs of a node."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from cotenant.core.cluster import Node
from cotenant.core.footprint import NOTHING, claims, compute_on, larger_of, memory_on
from cotenant.core.model import Claim, Container, ContainerKind, Demand, Gpu, Gpus, Reason
from cotenant.core.placement.checks import by_numa, linked_slot
from cotenant.core.placement.feasibility import Feasibility
from cotenant.core.placement.mig import instances, may_use
from cotenant.core.units import MiB, MilliGpu

_STEPS = 300
"""assignments of containers to GPUs that are tried if the greedy ones fail"""


class _Load(NamedTuple):
    """What the containers that are placed so far take of one GPU: the rule of `footprint`, one container at a time,
    since thousands of assignments are tried."""

    peak: Claim = NOTHING
    """of init containers and sidecars"""
    sidecars: Claim = NOTHING
    apps: Claim = NOTHING

    def beside(self, container: Container, gpu: Gpu) -> "_Load":
        own = Claim(memory_on(container, gpu), compute_on(container, gpu), 1)
        if container.kind is ContainerKind.APP:
            return _Load(self.peak, self.sidecars, _sum(self.apps, own))
        running = _sum(self.sidecars, own)
        return _Load(
            larger_of(self.peak, running),
            running if container.kind is ContainerKind.SIDECAR else self.sidecars,
            self.apps,
        )

    @property
    def claim(self) -> Claim:
        return larger_of(self.peak, _sum(self.sidecars, self.apps))


_Loads = Mapping[int, _Load]
_EMPTY = _Load()


def container_slots(feasible: Feasibility, node: Node) -> list[Gpus]:
    """Slots for a pod: each container on the tightest, or the roomiest, GPUs that can take it; else any slot."""
    demand, pools = feasible.demand, _pools(feasible, node)
    if isinstance(pools, Reason):
        return []
    outcomes = [_greedy_slot(demand, node, pool, sign) for pool in pools for sign in (1, -1)]
    found = [slot for slot in outcomes if not isinstance(slot, Reason)]
    return list(dict.fromkeys(found)) or _searched_slots(demand, node, pools)


def container_refusal(feasible: Feasibility, node: Node) -> Reason | None:
    demand, pools = feasible.demand, _pools(feasible, node)
    if isinstance(pools, Reason):
        return pools
    outcomes = [_greedy_slot(demand, node, pool, sign) for pool in pools for sign in (1, -1)]
    reasons = [one for one in outcomes if isinstance(one, Reason)]
    return reasons[0] if len(reasons) == len(outcomes) and not _searched_slots(demand, node, pools) else None


def _searched_slots(demand: Demand, node: Node, pools: list[list[int]]) -> list[Gpus]:
    """The first slot for all containers, for pods that no greedy pass can place."""
    steps = iter(range(_STEPS))
    found = (_place_rest(demand, node, pool, (), {}, steps) for pool in pools if _could_fit(demand, node, pool))
    return [slot for slot in found if slot is not None][:1]


def _could_fit(demand: Demand, node: Node, pool: list[int]) -> bool:
    """Whether each container fits alone, and those that stay fit in sum: a quick test that spares most searches."""
    needed, there = NOTHING, NOTHING
    for container in demand.containers:
        fits = [i for i in pool if _takes(demand, node, {}, container, i)]
        if len(fits) < container.gpus:
            return False
        if container.kind is not ContainerKind.INIT and container.gpus:
            least = min(memory_on(container, node.machine.gpus[i]) for i in fits)
            compute = min(compute_on(container, node.machine.gpus[i]) for i in fits)
            for _ in range(container.gpus):
                needed = _sum(needed, Claim(least, compute, 1))
    for i in pool:
        there = _sum(there, node.free(i))
    return _within(needed, there)


def _place_rest(
    demand: Demand, node: Node, pool: list[int], placed: tuple[Gpus, ...], loads: _Loads, steps: Iterator[int]
) -> Gpus | None:
    """Depth first: the containers that are not placed yet, beside those that are."""
    if len(placed) == len(demand.containers):
        return tuple(gpu for own in placed for gpu in own)
    container = demand.containers[len(placed)]
    fits = [i for i in pool if _takes(demand, node, loads, container, i)]
    for own in combinations(fits, container.gpus):
        if next(steps, None) is None:
            return None
        if not _linked_enough(demand, node, own):
            continue
        found = _place_rest(demand, node, pool, (*placed, own), _loaded(loads, node, container, own), steps)
        if found is not None:
            return found
    return None


def _linked_enough(demand: Demand, node: Node, own: Gpus) -> bool:
    links = node.machine.links
    if demand.link is None or len(own) < 2:
        return True
    return links is not None and all(min(links[a][b], links[b][a]) >= demand.link for a, b in combinations(own, 2))


def _pools(feasible: Feasibility, node: Node) -> list[list[int]] | Reason:
    """The GPUs that the pod as a whole may use, by NUMA node if it must stay on one.

    Checks of amounts and of sets do not apply to pods with containers: this module decides these.
    """
    eligible = feasible.eligible(node)
    if isinstance(eligible, Reason):
        return eligible
    return list(by_numa(node, eligible).values()) or [[]] if feasible.demand.one_numa else [eligible]


def _greedy_slot(demand: Demand, node: Node, pool: list[int], sign: int) -> Gpus | Reason:
    """One greedy pass: tightest first (sign 1) or roomiest first (sign -1), init containers' before all."""
    chosen: Gpus = ()
    loads: _Loads = {}
    free_again: set[int] = set()
    sizes = node.machine.instance_sizes
    for position, container in enumerate(demand.containers):
        fits = [i for i in pool if _takes(demand, node, loads, container, i)]
        if len(fits) < container.gpus:
            return _refusal(demand, node, pool, loads, position, len(fits))
        if demand.link is not None and container.gpus > 1:
            own = linked_slot(replace(demand, gpus=container.gpus), node, fits)
            if own is None:
                text = f"container {position} needs {{gpus}} linked as requested; the node has no such set"
                return Reason("link", text, container.gpus, 0)
        else:
            ranked = sorted(fits, key=lambda i: (i not in free_again, sizes[i], sign * node.room[i], i))
            own = tuple(sorted(ranked[: container.gpus]))
        chosen += own
        loads = _loaded(loads, node, container, own)
        if container.kind is ContainerKind.INIT:
            free_again.update(own)
    return chosen


def _refusal(demand: Demand, node: Node, pool: list[int], loads: _Loads, position: int, fitting: int) -> Reason:
    """Why too few GPUs can take a container: if it needs one, by how much the best of them falls short."""
    container = demand.containers[position]
    name = f"container {position} ({container.kind})"
    gpus = node.machine.gpus
    there, pool = len(pool), [i for i in pool if may_use(container, gpus[i].mig, demand.exclusive)]
    if len(pool) < min(there, container.gpus):
        kind = (
            "{gpus} without MIG" if container.mig is None else f"{{needed}} {instances(container.mig, container.gpus)}"
        )
        return Reason("mig", f"{name} needs {kind}; the node has {{available}}", container.gpus, len(pool))
    if container.use_uuids:
        there, pool = len(pool), [i for i in pool if gpus[i].uuid in container.use_uuids]
        if len(pool) < min(there, container.gpus):
            text = f"{name} needs {{needed}} of the GPUs that it selects; the node has {{available}}"
            return Reason("uuid", text, container.gpus, len(pool))
    needs = {i: Claim(memory_on(container, gpus[i]), compute_on(container, gpus[i]), 1) for i in pool}
    left = {i: _left_for(needs[i], _claim(demand, node, loads, container, i), node.free(i)) for i in pool}
    if container.gpus == 1 and pool:
        freest = max(pool, key=lambda i: left[i].memory - needs[i].memory)
        if left[freest].memory < needs[freest].memory:
            text = f"{name} needs {{needed}} MiB on one GPU; the freest has {{available}} MiB free for it"
            return Reason("container", text, needs[freest].memory, max(0, left[freest].memory))
        freest = max(pool, key=lambda i: left[i].compute - needs[i].compute)
        if container.mig is not None and left[freest].compute < needs[freest].compute:
            text = f"{name} needs {{needed}} free {instances(container.mig, 1)}; the node has {{available}}"
            return Reason("container", text, 1, 0)
        if left[freest].compute < container.compute:
            text = f"{name} needs {{needed_percent}} % of one GPU; the freest has {{available_percent}} % free for it"
            return Reason("container", text, container.compute, max(0, left[freest].compute))
    memory = (
        f"{container.memory} MiB" if container.memory_percent is None else f"{container.memory_percent} % of its memory"
    )
    amounts = f"each with {memory} and {container.compute / 10:g} % of its compute free for it"
    return Reason("container", f"{name} needs {{gpus}}, {amounts}; the node has {{available}}", container.gpus, fitting)


def _left_for(own: Claim, claim: Claim, free: Claim) -> Claim:
    """What a GPU has free for a container beside the other containers of its pod, whose claim includes its own."""
    return Claim(
        MiB(free.memory - claim.memory + own.memory), MilliGpu(free.compute - claim.compute + own.compute), free.slots
    )


def _loaded(loads: _Loads, node: Node, container: Container, own: Gpus) -> _Loads:
    gpus = node.machine.gpus
    return {**loads, **{i: loads.get(i, _EMPTY).beside(container, gpus[i]) for i in own}}


def _takes(demand: Demand, node: Node, loads: _Loads, container: Container, gpu: int) -> bool:
    """Whether a container fits on that GPU beside the ones that are placed."""
    one = node.machine.gpus[gpu]
    if not may_use(container, one.mig, demand.exclusive) or (
        container.use_uuids and one.uuid not in container.use_uuids
    ):
        return False
    return _within(_claim(demand, node, loads, container, gpu), node.free(gpu))


def _claim(demand: Demand, node: Node, loads: _Loads, container: Container, gpu: int) -> Claim:
    """What the pod takes of that GPU at its peak, with this container."""
    one = node.machine.gpus[gpu]
    claim = loads.get(gpu, _EMPTY).beside(container, one).claim
    return claim._replace(slots=one.slots) if demand.exclusive else claim


def _sum(a: Claim, b: Claim) -> Claim:
    return Claim(MiB(a.memory + b.memory), MilliGpu(a.compute + b.compute), a.slots + b.slots)


def amounts_fit(demand: Demand, node: Node, gpus: Gpus, counted: Collection[int]) -> bool:
    """Whether the `counted` GPUs of a slot have what the demand takes of them."""
    needed = claims(demand, gpus, node.machine.gpus)
    return all(_within(claim, node.free(i)) for i, claim in needed.items() if i in counted)


def _within(claim: Claim, free: Claim) -> bool:
    return claim.memory <= free.memory and claim.compute <= free.compute and claim.slots <= free.slots
