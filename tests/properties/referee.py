# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An independent judge of placements: it counts afresh from the tenants and shares no arithmetic with the core."""

from collections import Counter
from itertools import combinations

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Container, ContainerKind, Demand, Gpu, Gpus, Slot, Tenant
from cotenant.core.placement.ranking import Fit, Policy, rate

Seat = tuple[Container, Gpus]


def seats(demand: Demand, gpus: Gpus) -> list[Seat]:
    """Each container with its own GPUs; a demand without containers is one app container."""
    if not demand.containers:
        whole = Container(
            gpus=demand.gpus,
            memory=demand.memory,
            memory_percent=demand.memory_percent,
            compute=demand.compute,
            mig=demand.mig,
        )
        return [(whole, gpus)]
    waiting = list(gpus)
    return [(one, tuple(waiting.pop(0) for _ in range(one.gpus))) for one in demand.containers]


def moments(seated: list[Seat]) -> list[list[Seat]]:
    """Who runs at the same time, from a pod's first start to its steady state."""
    running: list[Seat] = []
    seen = []
    for seat in seated:
        if seat[0].kind is ContainerKind.APP:
            continue
        seen.append([*running, seat])
        if seat[0].kind is ContainerKind.SIDECAR:
            running.append(seat)
    return [*seen, [*running, *(seat for seat in seated if seat[0].kind is ContainerKind.APP)]]


def memory_asked(container: Container, card: Gpu) -> int:
    handed_out = card.memory * card.memory_scaling // 100
    if container.memory_percent is None:
        return container.memory
    return handed_out * container.memory_percent // 100


def compute_asked(container: Container, card: Gpu) -> int:
    return container.compute if container.mig is None else (capacity(card) * container.compute) // 1000


def capacity(card: Gpu) -> int:
    return card.part * card.compute_scaling // 100


def belongs(container: Container, card: Gpu, exclusive: bool) -> bool:
    """Whether a card is of the kind that was asked for: an instance of the profile, or no instance unless the request
    is for an amount on one card."""
    if container.mig is not None or card.mig is None:
        return container.mig == card.mig
    return container.gpus < 2 and container.compute < 1000 and container.memory_percent is None and not exclusive


def peak(demand: Demand, gpus: Gpus, gpu: int, card: Gpu) -> tuple[int, int, int]:
    """The most memory, compute and slots that the tenant ever has on that GPU."""
    here = [[one for one, own in moment if gpu in own] for moment in moments(seats(demand, gpus))]
    slots = max(len(running) for running in here)
    return (
        max(sum(memory_asked(one, card) for one in running) for running in here),
        max(sum(compute_asked(one, card) for one in running) for running in here),
        card.slots if demand.exclusive and slots else slots,
    )


def overfull(cluster: Cluster) -> list[str]:
    """What is promised twice, or shared against someone's wish."""
    return [fault for node in cluster for fault in _overfull(node)]


def _overfull(node: Node) -> list[str]:
    faults = []
    for i, card in enumerate(node.machine.gpus):
        here = [one for one in node.tenants if i in one.gpus]
        peaks = [peak(one.demand, one.gpus, i, card) for one in here]
        limits = (card.memory * card.memory_scaling // 100, capacity(card), card.slots)
        for what, limit, asked in zip(("memory", "compute", "slots"), limits, zip(*peaks, strict=True), strict=False):
            if sum(asked) > limit:
                faults.append(f"{node.name}/{i}: {sum(asked)} {what} of {limit}")
        if len(here) > 1 and any(one.demand.exclusive for one in here):
            faults.append(f"{node.name}/{i}: exclusive but shared")
        apart = Counter(one.demand.anti_affinity for one in here if one.demand.anti_affinity is not None)
        faults += [f"{node.name}/{i}: two of anti-affinity group {group}" for group, n in apart.items() if n > 1]
    machine = node.machine
    if machine.cpu is not None and sum(one.demand.cpu for one in node.tenants) > machine.cpu:
        faults.append(f"{node.name}: more CPU promised than there is")
    if machine.host_memory is not None and sum(one.demand.host_memory for one in node.tenants) > machine.host_memory:
        faults.append(f"{node.name}: more host memory promised than there is")
    return faults


def host_fits(demand: Demand, node: Node) -> bool:
    return (node.cpu is None or demand.cpu <= node.cpu) and (
        node.host_memory is None or demand.host_memory <= node.host_memory
    )


def broken_constraints(demand: Demand, node: Node, gpus: Gpus) -> list[str]:
    """Which of the demand's wishes, other than amounts, these GPUs do not meet."""
    cards = [node.machine.gpus[i] for i in gpus]
    others = [set(one.gpus) for one in node.tenants if one.demand.affinity == demand.affinity]
    rivals = {i for one in node.tenants if one.demand.anti_affinity == demand.anti_affinity for i in one.gpus}
    links = node.machine.links
    wishes = {
        "count": len(gpus) == (sum(one.gpus for one in demand.containers) if demand.containers else demand.gpus),
        "distinct": all(len(set(own)) == len(own) for _, own in seats(demand, gpus)),
        "usable": all(card.healthy and not card.cordoned for card in cards),
        "use type": not demand.use_types or all(card.type in demand.use_types for card in cards),
        "avoid type": not any(card.type in demand.avoid_types for card in cards),
        "use uuid": not demand.use_uuids or all(card.uuid in demand.use_uuids for card in cards),
        "avoid uuid": not any(card.uuid in demand.avoid_uuids for card in cards),
        "mig": all(
            belongs(one, node.machine.gpus[i], demand.exclusive) for one, own in seats(demand, gpus) for i in own
        ),
        "numa": not demand.one_numa or len({card.numa for card in cards}) <= 1,
        "exclusive": not demand.exclusive or not any(set(one.gpus) & set(gpus) for one in node.tenants),
        "affinity": demand.affinity is None or all(set(gpus) <= where for where in others),
        "anti-affinity": demand.anti_affinity is None or not rivals & set(gpus),
        "link": demand.link is None
        or all(
            links is not None and links[a][b] >= demand.link
            for _, own in seats(demand, gpus)
            for a, b in combinations(own, 2)
        ),
    }
    return [wish for wish, met in wishes.items() if not met]


def freshly_ranked(policy: Policy, demand: Demand, cluster: Cluster) -> list[Fit]:
    """The best slot of every node, rated from scratch, best first, ties by name."""
    home = group_nodes(demand, cluster)
    rated = [(node.name, rate(policy, demand, node)) for node in cluster if not home or node.name in home]
    fits = [Fit(found[0], Slot(name, found[1])) for name, found in rated if found is not None]
    return sorted(fits, key=lambda fit: ([-part for part in fit.score], fit.slot.node))


def group_nodes(demand: Demand, cluster: Cluster) -> set[str]:
    """The nodes on which the demand's affinity group sits."""
    if demand.affinity is None:
        return set()
    return {node.name for node in cluster if any(one.demand.affinity == demand.affinity for one in node.tenants)}


def tenants_of(cluster: Cluster) -> list[tuple[str, Tenant]]:
    return [(node.name, one) for node in cluster for one in node.tenants]
