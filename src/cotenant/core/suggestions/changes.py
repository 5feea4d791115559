# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What can be changed in a demand so that it fits: amounts that can be lowered, and constraints that can be dropped."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from cotenant.core.cluster import Cluster
from cotenant.core.isolation import Rung
from cotenant.core.model import ANY_PROFILE, Container, Demand, Slot
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Percent, cpus_text

CONSTRAINT_SIZE = 0.25
"""how large a change is that drops a constraint, beside an amount that is lowered by such a part"""
PERCENT = 10
"""milli-GPU: compute is lowered in whole percents, as users state it"""
MEMORY, COMPUTE = " of GPU memory", " of a GPU's compute"
MOST_NAMES = 16
"""types or profiles that are tried"""


class Change(NamedTuple):
    """One thing that is different in the changed request."""

    kind: str
    """memory, compute, gpus, cpu, host-memory, type, uuid, mig, isolation, exclusive, numa, link, affinity,
    anti-affinity, end or quota"""
    text: str
    """what to request instead, or what has to end"""
    was: int = 0
    """the amount now; 0 if no amount changes"""
    now: int = 0
    """the amount with which it fits"""
    names: tuple[str, ...] = ()
    """types, profiles or rungs that would do, or the jobs that would have to end"""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Changes after which a job can be placed. It was tried before it is suggested."""

    changes: tuple[Change, ...]
    size: float
    """How large the change is: the part of an amount that is given up, 0.25 for a constraint, 0.5 for each job that
    has to end; summed over the changes."""
    demand: Demand | None = None
    """what to request; None: the request stays"""
    slots: tuple[Slot, ...] = ()
    """the slots that it would get"""
    exact: bool = True
    """No smaller change of this kind is enough. If not, the search was given up before that was known."""

    @property
    def kind(self) -> str:
        return "+".join(change.kind for change in self.changes)

    @property
    def text(self) -> str:
        """To follow "it would fit"."""
        joined = " and ".join(change.text for change in self.changes)
        return f"without {joined}" if self.kind == "end" else f"with {joined}"


class Axis(NamedTuple):
    """An amount that can be lowered."""

    kind: str
    was: int
    least: int
    """the smallest amount that still makes sense"""
    unit: int
    change: Callable[[Demand, int], Demand]
    """the demand with another amount"""
    show: Callable[[int], str]
    """an amount with its unit"""
    noun: str
    """what it is an amount of"""

    def amounts(self) -> range:
        """The amounts below the present one, smallest first."""
        return range(self.least, self.was, self.unit)

    def to(self, amount: int) -> Change:
        text = f"{self.show(amount)}{self.noun} instead of {self.show(self.was)}"
        return Change(self.kind, text, self.was, amount)

    def size(self, amount: int) -> float:
        return (self.was - amount) / self.was


class Without(NamedTuple):
    """A constraint that can be dropped or replaced."""

    kind: str
    text: str
    demand: Demand
    names: tuple[str, ...] = ()


def axes(demand: Demand) -> Iterator[Axis]:
    """The amounts of a demand that can be lowered."""
    if demand.containers:
        for i, container in enumerate(demand.containers):
            if container.gpus:
                yield from _container_axes(i, container)
    elif demand.gpus:
        if demand.memory_percent is not None:
            yield Axis("memory", demand.memory_percent, 1, 1, _with_percent, _percent, MEMORY)
        else:
            yield Axis("memory", demand.memory, 1, 1, _with_memory, _mib, MEMORY)
        yield Axis("compute", demand.compute, PERCENT, PERCENT, _with_compute, _share, COMPUTE)
        yield Axis("gpus", demand.gpus, 1, 1, _with_gpus, _gpus, "")
    yield Axis("cpu", demand.cpu, 0, 1, _with_cpu, cpus_text, "")
    yield Axis("host-memory", demand.host_memory, 0, 1, _with_host_memory, _mib, " of host memory")


def _container_axes(i: int, container: Container) -> Iterator[Axis]:
    def changed(demand: Demand, one: Container) -> Demand:
        return replace(demand, containers=(*demand.containers[:i], one, *demand.containers[i + 1 :]))

    def with_percent(demand: Demand, amount: int) -> Demand:
        return changed(demand, replace(demand.containers[i], memory_percent=Percent(amount)))

    def with_memory(demand: Demand, amount: int) -> Demand:
        return changed(demand, replace(demand.containers[i], memory=MiB(amount)))

    def with_compute(demand: Demand, amount: int) -> Demand:
        return changed(demand, replace(demand.containers[i], compute=MilliGpu(amount)))

    here = f" in container {i}"
    if container.memory_percent is not None:
        yield Axis("memory", container.memory_percent, 1, 1, with_percent, _percent, MEMORY + here)
    else:
        yield Axis("memory", container.memory, 1, 1, with_memory, _mib, MEMORY + here)
    yield Axis("compute", container.compute, PERCENT, PERCENT, with_compute, _share, COMPUTE + here)


def _with_memory(demand: Demand, amount: int) -> Demand:
    return replace(demand, memory=MiB(amount))


def _with_percent(demand: Demand, amount: int) -> Demand:
    return replace(demand, memory_percent=Percent(amount))


def _with_compute(demand: Demand, amount: int) -> Demand:
    return replace(demand, compute=MilliGpu(amount))


def _with_gpus(demand: Demand, amount: int) -> Demand:
    return replace(demand, gpus=amount)


def _with_cpu(demand: Demand, amount: int) -> Demand:
    return replace(demand, cpu=MilliCpu(amount))


def _with_host_memory(demand: Demand, amount: int) -> Demand:
    return replace(demand, host_memory=MiB(amount))


def _mib(amount: int) -> str:
    return f"{amount} MiB"


def _percent(amount: int) -> str:
    return f"{amount} %"


def _share(amount: int) -> str:
    return f"{amount / 10:g} %"


def _gpus(amount: int) -> str:
    return "1 GPU" if amount == 1 else f"{amount} GPUs"


def constraints(demand: Demand, cluster: Cluster) -> Iterator[Without]:
    """The constraints of a demand that can be dropped or replaced, each alone."""
    if demand.use_types or demand.avoid_types:
        for gpu_type in _types(cluster):
            change = replace(demand, use_types=(gpu_type,), avoid_types=())
            yield Without("type", f"GPUs of type {gpu_type}", change, (gpu_type,))
    if demand.mig is not None and demand.mig != ANY_PROFILE:
        for profile in _profiles(cluster, demand.mig):
            yield Without("mig", f"MIG profile {profile}", replace(demand, mig=profile), (profile,))
    if demand.rung is not None:
        for rung in _rungs(cluster, demand.rung):
            yield Without("isolation", f"isolation {rung}", replace(demand, rung=rung), (rung.value,))
    yield from (one for one in constraints_dropped(demand) if one.kind != "type")


def constraints_dropped(demand: Demand) -> Iterator[Without]:
    """The constraints of a demand that can be dropped, each alone."""
    if demand.use_types or demand.avoid_types:
        yield Without("type", "GPUs of any type", replace(demand, use_types=(), avoid_types=()))
    if demand.use_uuids or demand.avoid_uuids:
        change = replace(demand, use_uuids=frozenset(), avoid_uuids=frozenset())
        yield Without("uuid", "GPUs of any UUID", change)
    if demand.exclusive:
        yield Without("exclusive", "GPUs that other jobs use too", replace(demand, exclusive=False))
    if demand.one_numa:
        yield Without("numa", "GPUs on different NUMA nodes", replace(demand, one_numa=False))
    if demand.link is not None:
        yield Without("link", "GPUs with any link", replace(demand, link=None))
    if demand.affinity is not None:
        yield Without("affinity", f"no affinity to group {demand.affinity}", replace(demand, affinity=None))
    if demand.anti_affinity is not None:
        text = f"GPUs that group {demand.anti_affinity} uses"
        yield Without("anti-affinity", text, replace(demand, anti_affinity=None))


def _types(cluster: Cluster) -> list[str]:
    return sorted({one for node in cluster for one in node.machine.types})[:MOST_NAMES]


def _profiles(cluster: Cluster, but: str) -> list[str]:
    machines = (node.machine for node in cluster if node.machine.has_instances)
    found = {gpu.mig for machine in machines for gpu in machine.gpus if gpu.mig is not None}
    return sorted(found - {but})[:MOST_NAMES]


def _rungs(cluster: Cluster, but: Rung) -> list[Rung]:
    found = {rung for node in cluster for gpu in node.machine.gpus for rung in gpu.rungs}
    return [rung for rung in Rung if rung in found and rung is not but]
