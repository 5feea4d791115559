# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The mix of demands that a cluster serves, by which the fragmentation policies value free room."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cotenant.core.model import Demand, GpuModel, Machine
from cotenant.core.sharing.speeds import Belief, Predicted
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Percent


class Spec(NamedTuple):
    """The part of a demand that decides on how many nodes it would fit."""

    cpu: MilliCpu
    compute: MilliGpu
    gpus: int
    types: tuple[str, ...]
    memory: MiB
    memory_percent: Percent = Percent(0)
    """of the memory of each GPU, instead of `memory`; 0: not set"""

    def size_on(self, model: GpuModel) -> int:
        """Thousandths of one such GPU that it takes, by compute or by memory, whichever is more."""
        compute = self.compute if model.compute == 1000 else -(-1000 * self.compute // model.compute)
        memory = model.memory * self.memory_percent // 100 if self.memory_percent else self.memory
        if not memory or not model.memory:
            return compute
        return max(compute, -(-1000 * memory // model.memory))


Mix = Mapping[Spec, int]
"""how often each spec was seen"""


class MachineKind(NamedTuple):
    """The part of an empty machine that matters for fragmentation."""

    model: GpuModel
    gpus: int
    cpu: MilliCpu | None


Inventory = Mapping[MachineKind, int]
"""number of machines of each kind"""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What some policies are built from: the mix of demands, the machines, and the predicted interference."""

    mix: Mix = field(default_factory=dict)
    inventory: Inventory = field(default_factory=dict)
    belief: Belief = field(default_factory=Predicted)
    """predicts how the tenants of one GPU slow each other down"""


def spec_of(demand: Demand) -> Spec:
    """The spec of a demand; of a pod with containers, without its init containers."""
    asked = demand.steady if demand.containers else demand
    compute = MilliGpu(1000) if demand.exclusive else asked.compute
    compute = compute if asked.gpus else MilliGpu(0)
    if asked.mig is not None:  # a whole instance, however little of a whole GPU it is
        return Spec(demand.cpu, MilliGpu(0), asked.gpus, (f"* MIG {asked.mig}",), MiB(0), Percent(100))
    percent = Percent(min(100, asked.memory_percent or 0))  # containers that share a GPU may add up to more
    return Spec(demand.cpu, compute, asked.gpus, demand.use_types, asked.memory, percent)


def mix_of(demands: Iterable[Demand]) -> Mix:
    return Counter(spec_of(demand) for demand in demands)


def inventory_of(machines: Iterable[Machine]) -> Inventory:
    """Machines by kind; one with different GPUs counts once for each model of GPU."""
    kinds: Counter[MachineKind] = Counter()
    for machine in machines:
        models = Counter(gpu.gpu_model for gpu in machine.gpus)
        for model, gpus in models.items():
            kinds[MachineKind(model, gpus, machine.cpu)] += 1
    return kinds
