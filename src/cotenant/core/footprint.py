# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a tenant takes of each GPU at its peak, counted as Kubernetes counts the containers of a pod.

peak = max(app containers + sidecars, each init container + the sidecars started before it), for each GPU apart.
"""

from collections.abc import Iterator, Mapping, Sequence

from cotenant.core.model import Claim, Container, ContainerKind, Demand, Gpu, Gpus
from cotenant.core.units import MiB, MilliGpu

NOTHING = Claim(MiB(0), MilliGpu(0), 0)


def memory_on(asked: Demand | Container, gpu: Gpu) -> MiB:
    """MiB asked on this card; a percentage is of what the card hands out, rounded down so that two halves fit."""
    if asked.memory_percent is None:
        return asked.memory
    return MiB(gpu.memory_capacity * asked.memory_percent // 100)


def claims(demand: Demand, chosen: Gpus, cards: Sequence[Gpu]) -> Mapping[int, Claim]:
    """The peak claim on each GPU of a slot; a GPU that is no longer there has nothing to claim."""
    if demand.plain:
        present = chosen if max(chosen, default=0) < len(cards) else tuple(i for i in chosen if i < len(cards))
        return dict.fromkeys(present, Claim(demand.memory, demand.compute, 1))
    if demand.containers:
        return container_claims(demand, chosen, cards)
    return {
        i: Claim(
            memory_on(demand, cards[i]),
            demand.compute,
            cards[i].slots if demand.exclusive else 1,
        )
        for i in chosen
        if i < len(cards)
    }


def by_container(demand: Demand, chosen: Gpus) -> Iterator[tuple[Container, Gpus]]:
    """A slot of a pod with containers, cut into each container's own GPUs."""
    start = 0
    for container in demand.containers:
        yield container, chosen[start : start + container.gpus]
        start += container.gpus


def container_claims(demand: Demand, chosen: Gpus, cards: Sequence[Gpu]) -> Mapping[int, Claim]:
    """Peak per GPU over the phases of a pod: its init containers one after the other, then everything that stays."""
    staying: dict[int, Claim] = {}
    peak: dict[int, Claim] = {}
    apps: list[tuple[Container, Gpus]] = []
    for container, own in by_container(demand, chosen):
        if container.kind is ContainerKind.APP:
            apps.append((container, own))
            continue
        running = _with(staying, container, own, cards)
        peak = _larger(peak, running)
        if container.kind is ContainerKind.SIDECAR:
            staying = running
    for container, own in apps:
        staying = _with(staying, container, own, cards)
    peak = _larger(peak, staying)
    if demand.exclusive:
        return {i: claim._replace(slots=cards[i].slots) for i, claim in peak.items()}
    return peak


def _with(running: dict[int, Claim], container: Container, own: Gpus, cards: Sequence[Gpu]) -> dict[int, Claim]:
    total = dict(running)
    for i in (one for one in own if one < len(cards)):
        old = total.get(i, NOTHING)
        total[i] = Claim(
            MiB(old.memory + memory_on(container, cards[i])),
            MilliGpu(old.compute + container.compute),
            old.slots + 1,
        )
    return total


def _larger(one: dict[int, Claim], other: dict[int, Claim]) -> dict[int, Claim]:
    return {i: larger_of(one.get(i, NOTHING), other.get(i, NOTHING)) for i in sorted(one.keys() | other.keys())}


def larger_of(a: Claim, b: Claim) -> Claim:
    """Of each amount the larger."""
    return Claim(max(a.memory, b.memory), max(a.compute, b.compute), max(a.slots, b.slots))
