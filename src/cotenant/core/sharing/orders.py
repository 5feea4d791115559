# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Orders and checks for jobs that share a GPU, from the predicted speeds of its tenants.

Speeds are relative to running alone, so two tenants at 0.7 do the work of 1.4 GPUs. The gain of a newcomer is what it
adds to that sum: 1 on an idle GPU, less beside others, negative if it costs them more than it does itself.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations

from cotenant.core.cluster import Node
from cotenant.core.interference import Speed
from cotenant.core.model import Demand, Gpus, Reason, Tenant
from cotenant.core.placement.check import Check, Reads, enough
from cotenant.core.placement.scores import Order
from cotenant.core.sharing.speeds import Basis, Belief, TenantSet, tenant_set_of

DOMINANT, FELT, MOST_SHARING_SCORE = 0.6, 0.8, 2
"""Lucid's three kinds of jobs by their mean speed beside others, and the largest sum of scores on one GPU; the two
speeds are our choice, because Lucid published none for Gavel's workloads"""

WHOLE = 100
"""percent of a GPU's compute; if more than this is assigned, compute shares are not guaranteed"""


def tenants_on(node: Node, gpu: int) -> list[Tenant]:
    return [tenant for tenant in node.tenants if gpu in tenant.gpus]


def demands_on(node: Node, gpu: int) -> list[Demand]:
    """The demands of the tenants of a GPU."""
    return [tenant.demand for tenant in node.tenants if gpu in tenant.gpus]


def taken(node: Node) -> set[int]:
    """The GPUs with a tenant."""
    return {gpu for tenant in node.tenants for gpu in tenant.gpus}


def company(node: Node, gpu: int, demands: Iterable[Demand]) -> TenantSet:
    return tenant_set_of(node.machine.gpus[gpu].type, [one.workload for one in demands])


def has_share(demand: Demand) -> bool:
    """Whether a job requests a compute share; a job without GPUs needs none."""
    if demand.containers:
        return any(one.gpus and one.compute for one in demand.containers)
    return demand.gpus == 0 or demand.compute > 0


def gain(belief: Belief, of: Callable[[Speed], float], demand: Demand, node: Node, gpu: int) -> float:
    """What a newcomer adds to the work of a GPU."""
    there = demands_on(node, gpu)
    if not there:
        return 1.0
    before = _work(belief, of, node, gpu, there) if len(there) > 1 else 1.0
    return _work(belief, of, node, gpu, [*there, demand]) - before


def _work(belief: Belief, of: Callable[[Speed], float], node: Node, gpu: int, demands: list[Demand]) -> float:
    """The sum of the speeds of the tenants of a GPU."""
    if _shares_hold(node, gpu, demands):
        return sum(_speeds_with_shares(belief, of, company(node, gpu, demands)))
    return sum([of(speed) for speed in belief.speeds(company(node, gpu, demands))])


def _shares_hold(node: Node, gpu: int, demands: list[Demand]) -> bool:
    """Whether every tenant has a compute share, and no more than the whole GPU is given out."""
    return all(has_share(one) for one in demands) and node.machine.gpus[gpu].compute_scaling <= WHOLE


def _speeds_with_shares(belief: Belief, of: Callable[[Speed], float], tenants: TenantSet) -> list[float]:
    """The speed of each tenant if all have compute shares, relative to its speed alone with that share."""
    # Predictions follow from pairs without shares, in which each job takes what the other leaves idle. They do not
    # apply here, so only pairs that were measured themselves count.
    speeds = [1.0] * len(tenants.workloads)
    for i, j in combinations(range(len(speeds)), 2):
        pair = TenantSet(tenants.gpu_type, (tenants.workloads[i], tenants.workloads[j]))
        if belief.basis(pair) is Basis.MEASURED:
            one, other = belief.speeds(pair)
            speeds[i] *= of(one)
            speeds[j] *= of(other)
    return speeds


def by_gain(belief: Belief, of: Callable[[Speed], float]) -> Order:
    """The most gain; on several GPUs, that of the worst."""

    def order(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
        if len(slots) == 1 and len(slots[0]) == 1:
            return [gain(belief, of, demand, node, slots[0][0])]
        gains = {i: gain(belief, of, demand, node, i) for i in {i for slot in slots for i in slot}}
        return [min((gains[i] for i in slot), default=1.0) for slot in slots]

    return order


def by_slowdown(belief: Belief) -> Order:
    """The least sum of slowdowns of all tenants, relative to running alone: IADeep's measure of interference."""

    def slowdown(demand: Demand, node: Node, gpu: int) -> float:
        there = demands_on(node, gpu)
        if not there:
            return 0.0
        return sum(1 / speed.mean - 1 for speed in belief.speeds(company(node, gpu, [*there, demand])))

    def order(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
        return [-sum(slowdown(demand, node, i) for i in slot) for slot in slots]

    return order


def idle(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """GPUs without a tenant."""
    others = taken(node)
    return [float(others.isdisjoint(slot)) for slot in slots]


def unhindered(belief: Belief) -> Order:
    """GPUs without a tenant, and GPUs on which all tenants and the newcomer have compute shares and none is expected to
    become slower."""

    def free(demand: Demand, node: Node, gpu: int) -> bool:
        there = demands_on(node, gpu)
        if not there:
            return True
        return _shares_hold(node, gpu, [*there, demand]) and gain(belief, mean, demand, node, gpu) >= 1.0

    def order(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
        return [float(all(free(demand, node, i) for i in slot)) for slot in slots]

    return order


def untried(belief: Belief) -> Order:
    """GPUs with one tenant beside which the newcomer should be measured, because little is known yet."""

    def teaches(demand: Demand, node: Node, gpu: int) -> bool:
        there = demands_on(node, gpu)
        return len(there) == 1 and belief.basis(company(node, gpu, [*there, demand])) is Basis.UNTRIED

    def order(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
        return [float(len(slot) == 1 and teaches(demand, node, slot[0])) for slot in slots]

    return order


def shared(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """GPUs with a tenant."""
    return [1.0 - one for one in idle(demand, node, slots)]


def mean(speed: Speed) -> float:
    return speed.mean


def low(speed: Speed) -> float:
    return speed.low


def memory_apart(belief: Belief, demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """Leaves out GPUs whose tenants and the newcomer are known not to fit into its memory together."""
    if not belief.knows_memory:
        return eligible
    left = [
        i
        for i in eligible
        if not (there := demands_on(node, i)) or not belief.apart(company(node, i, [*there, demand]))
    ]
    text = "needs {gpus} with tenants that were measured to leave it enough memory; the node has {available}"
    return enough(demand, left, "measured-memory", text)


def promises(belief: Belief, demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """Keeps GPUs on which no tenant falls below its promised speed, by the lower bound of the prediction."""
    if demand.least_speed is None and all(tenant.demand.least_speed is None for tenant in node.tenants):
        return eligible
    left = [i for i in eligible if _kept(belief, demand, node, i)]
    text = "needs {gpus} on which it and all tenants keep the speed they were promised; the node has {available}"
    return enough(demand, left, "least-speed", text)


def _kept(belief: Belief, demand: Demand, node: Node, gpu: int) -> bool:
    there = demands_on(node, gpu)
    everyone = sorted([*there, demand], key=lambda one: str(one.workload))
    if not there or all(one.least_speed is None for one in everyone):
        return True
    speeds = belief.speeds(company(node, gpu, everyone))
    return all(100 * speed.low >= (one.least_speed or 0) for one, speed in zip(everyone, speeds, strict=True))


def alone(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """Keeps GPUs without a tenant."""
    others = taken(node)
    left = [i for i in eligible if i not in others]
    return enough(demand, left, "alone", "needs {gpus} without tenants; the node has {available}")


def meek(belief: Belief, demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """Lucid's packing: only with tenants whose sharing scores and the newcomer's add up to little."""
    left = [
        i
        for i in eligible
        if not (there := demands_on(node, i))
        or sum(sharing_score(belief, node.machine.gpus[i].type, one) for one in (*there, demand)) <= MOST_SHARING_SCORE
    ]
    text = "needs {gpus} without tenants, or with tenants that interfere little; the node has {available}"
    return enough(demand, left, "sharing-score", text)


def sharing_score(belief: Belief, gpu_type: str, demand: Demand) -> int:
    """0: hardly interferes, 1: interferes, 2: dominates; by its mean speed beside itself and others."""
    mildness = belief.mildness(gpu_type, demand.workload)
    return 2 if mildness < DOMINANT else 1 if mildness < FELT else 0


ALONE_CHECK = Check("alone", alone, reads=Reads.TENANTS)
_SHARING = Reads.TYPE | Reads.TENANTS


def memory_check(belief: Belief) -> Check:
    return Check("measured-memory", partial(memory_apart, belief), reads=_SHARING)


def speed_check(belief: Belief) -> Check:
    return Check("least-speed", partial(promises, belief), reads=_SHARING)


def score_check(belief: Belief) -> Check:
    return Check("sharing-score", partial(meek, belief), reads=_SHARING)
