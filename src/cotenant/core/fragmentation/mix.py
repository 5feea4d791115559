# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The mix of demands that a cluster serves: what the fragmentation policies weigh free room against."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cotenant.core.model import Card, Demand, Machine
from cotenant.core.sharing.speeds import Belief, Predicted
from cotenant.core.units import MiB, MilliCpu, MilliGpu


class Spec(NamedTuple):
    """The part of a demand that decides on how many nodes it would fit."""

    cpu: MilliCpu
    compute: MilliGpu
    gpus: int
    types: tuple[str, ...]
    memory: MiB

    def size_on(self, card: Card) -> int:
        """Thousandths of one such card that it takes, by compute or by memory, whichever is more."""
        compute = self.compute if card.compute == 1000 else -(-1000 * self.compute // card.compute)
        if not self.memory or not card.memory:
            return compute
        return max(compute, -(-1000 * self.memory // card.memory))


Mix = Mapping[Spec, int]
"""how often each was seen"""


class MachineKind(NamedTuple):
    """What a machine offers when nobody is on it, as far as fragmentation goes."""

    card: Card
    gpus: int
    cpu: MilliCpu | None


Inventory = Mapping[MachineKind, int]
"""how many machines of each kind there are"""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What some policies are built from: the mix of demands, the machines there are, and who goes with whom."""

    mix: Mix = field(default_factory=dict)
    inventory: Inventory = field(default_factory=dict)
    belief: Belief = field(default_factory=Predicted)
    """of what tenants of one card do to each other"""


def spec_of(demand: Demand) -> Spec:
    """The spec of a demand; a pod with containers counts as what stays of it."""
    asked = demand.steady if demand.containers else demand
    compute = MilliGpu(1000) if demand.exclusive else asked.compute
    return Spec(demand.cpu, compute if asked.gpus else MilliGpu(0), asked.gpus, demand.use_types, asked.memory)


def mix_of(demands: Iterable[Demand]) -> Mix:
    return Counter(spec_of(demand) for demand in demands)


def inventory_of(machines: Iterable[Machine]) -> Inventory:
    """Machines by kind; one with different cards counts once for each kind of card it has."""
    kinds: Counter[MachineKind] = Counter()
    for machine in machines:
        cards = Counter(gpu.card for gpu in machine.gpus)
        for card, gpus in cards.items():
            kinds[MachineKind(card, gpus, machine.cpu)] += 1
    return kinds
