# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The table of checks: which GPUs of a node are feasible for a demand, and if too few are, which check refused.

This is the only place where feasibility is decided. Every fast path is compiled from `CHECKS` for the demand at hand
(`Feasibility`), and none repeats a rule. To add a check, write a function and give it a row in the table. A row with a
name and a function is right everywhere, unless it reads labels (`labels`) or judges sets of GPUs (`of_sets`); the
other fields only make it fast.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from fnmatch import fnmatchcase
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cotenant.core.cluster import Node
from cotenant.core.footprint import memory_of
from cotenant.core.model import MACHINE_TYPE_LABEL, Demand, Machine, Reason
from cotenant.core.placement import topology
from cotenant.core.units import WHOLE_GPU

NO_FLOOR = -(1 << 62)
"""less than can ever be free"""

Amounts = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Reads(Flag):
    """The parts of a node that a check looks at. What it does not read cannot change its answer."""

    TYPE = auto()
    """the type of each GPU"""
    HARDWARE = auto()
    """all else in which two machines of one kind agree: memory, health, NUMA nodes, links, labels (`Machine.kind`)"""
    AMOUNTS = auto()
    """what is free on the node and on each GPU"""
    TENANTS = auto()
    """the tenants of each GPU"""
    NAMES = auto()
    """UUIDs and the name of the node"""
    EVERYTHING = TYPE | HARDWARE | AMOUNTS | TENANTS | NAMES


_BY_KIND = Reads.TYPE | Reads.HARDWARE
"""what is equal on all machines of one kind"""


class GpuColumns(Protocol):
    """The GPUs of many nodes as arrays: a row for each GPU index, a column for each node (`gpu_arrays.py`).

    Arrays of nodes have one dimension, so they broadcast over the rows of GPUs.
    """

    @property
    def compute(self) -> Amounts:
        """Free milli-GPU of each GPU."""

    @property
    def memory(self) -> Amounts:
        """Free MiB of each GPU."""

    @property
    def memory_capacity(self) -> Amounts:
        """MiB that each GPU has in all."""

    @property
    def slots(self) -> Amounts:
        """Free share slots of each GPU."""

    @property
    def slot_capacity(self) -> Amounts:
        """Share slots that each GPU has in all."""

    @property
    def usable(self) -> Mask:
        """Whether each GPU is healthy and not cordoned."""

    @property
    def type(self) -> Amounts:
        """Index of the type of each GPU in `type_names`; -1 if the node has no such GPU."""

    @property
    def type_names(self) -> Sequence[str]:
        """All GPU types that were seen."""

    @property
    def cpu(self) -> Amounts:
        """Free milli-CPU of each node, very large if it is not counted."""

    @property
    def host_memory(self) -> Amounts:
        """Free MiB of host memory of each node, very large if it is not counted."""

    @property
    def machines(self) -> Sequence[Machine]:
        """The machine of each node."""


class Floors(NamedTuple):
    """The least amounts that must be free: on the node for the host's, on each GPU for the others."""

    cpu: int = NO_FLOOR
    host_memory: int = NO_FLOOR
    compute: int = NO_FLOOR
    memory: int = NO_FLOOR
    slots: int = NO_FLOOR

    def masks(self, gpus: GpuColumns) -> Iterator[Mask]:
        """For each amount with a floor: whether each GPU has it, or each node if it is the host's."""
        for name, floor in zip(self._fields, self, strict=True):
            if floor > NO_FLOOR:
                yield getattr(gpus, name) >= floor

    def mask(self, gpus: GpuColumns) -> Mask:
        """All of them together."""
        met = list(self.masks(gpus))
        return reduce(np.logical_and, met) if met else gpus.type >= 0


Narrow = Callable[[Demand, Node, list[int]], list[int] | Reason]
_REFUSED: frozenset[int] = frozenset({-1})
"""Instead of a set of GPUs: a check refuses the machine. A demand that needs no GPU fits a machine that keeps none."""
Fitting = Callable[[Node, Sequence[int]], list[int] | None]


def always(demand: Demand) -> bool:
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """One rule of feasibility: its name, the demands that it applies to, and how it narrows the GPUs of a node."""

    name: str
    """of the `Reason` that it gives"""
    narrow: Narrow
    """From a demand, a node and the GPUs that earlier checks kept: those that it keeps too, in the same order, or a
    Reason if they are fewer than `demand.gpus`. It judges each GPU, or the node, for itself (but see `of_sets`). If the
    demand needs no GPU, the list may be empty."""
    applies: Callable[[Demand], bool] = always
    """Whether it can refuse such a demand anything; if not, it is left out."""
    reads: Reads = Reads.EVERYTHING
    """What it looks at. The less it reads, the more nodes and GPUs share one answer."""
    labels: tuple[str, ...] = ()
    """Labels of nodes that it reads. Every engine knows a node by these alone (`NODE_LABELS`)."""
    of_sets: bool = False
    """It asks for a set of GPUs with some property, as links and NUMA nodes do. Such checks come last: an earlier one
    could otherwise leave enough GPUs and break the set."""
    floors: Callable[[Demand], Floors | None] | None = None
    """The same rule as least amounts, if it is nothing else for that demand. All floors are compared in one pass."""
    mask: Callable[[Demand, GpuColumns], Mask] | None = None
    """The same rule for all nodes at once: whether it keeps each GPU (two dimensions), or each node (one). Floors need
    none. A check with neither is right, and slow: nodes are checked one by one for all demands that it applies to."""
    nearness: Callable[[GpuColumns], Amounts] | None = None
    """In arrays, the amount that says which refused node is nearest to fitting: of each node, or of each GPU (used if
    one GPU is needed). None: the number of GPUs that it keeps."""

    def mask_of(self, demand: Demand, gpus: GpuColumns) -> Mask | None:
        """The rule in arrays; None if it has no such form for the demand."""
        floors = None if self.floors is None else self.floors(demand)
        if floors is not None:
            return floors.mask(gpus)
        return None if self.mask is None else self.mask(demand, gpus)


# The host


def host_cpu(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if node.cpu is None or demand.cpu <= node.cpu:
        return eligible
    return Reason("cpu", "needs {needed} milli-CPU; the node has {available} free", demand.cpu, node.cpu)


def host_memory(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if node.host_memory is None or demand.host_memory <= node.host_memory:
        return eligible
    text = "needs {needed} MiB of host memory; the node has {available} MiB free"
    return Reason("host-memory", text, demand.host_memory, node.host_memory)


# Which GPUs


def needs_gpus(demand: Demand) -> bool:
    return demand.gpus > 0


def installed(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    return enough(demand, eligible, "count", "needs {gpus} on one node; the node has {available}")


def gpu_type(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    machine, use, avoid = node.machine, demand.use_types, demand.avoid_types
    if machine.gpu_model is not None:  # all its GPUs are of one type
        left = eligible if type_allowed(machine.gpu_model.type, use, avoid) else []
    else:
        left = [i for i in eligible if type_allowed(machine.gpus[i].type, use, avoid)]
    return left if len(left) >= demand.gpus else Reason("type", _type_text(use, avoid), demand.gpus, len(left))


@lru_cache(maxsize=256)
def _type_text(use: tuple[str, ...], avoid: tuple[str, ...]) -> str:
    kinds = f"type {plain_text(' or '.join(use))}" if use else "any type"
    unless = f" but {plain_text(' or '.join(avoid))}" if avoid else ""
    return f"needs {{gpus}} of {kinds}{unless}; the node has {{available}}"


def has_type_constraint(demand: Demand) -> bool:
    return bool(demand.gpus or demand.containers) and bool(demand.use_types or demand.avoid_types)


def mask_type(demand: Demand, gpus: GpuColumns) -> Mask:
    allowed = [type_allowed(name, demand.use_types, demand.avoid_types) for name in gpus.type_names]
    found: Mask = np.array([*allowed, False])[gpus.type]  # the last is that of -1, of GPUs that are not there
    return found


def named_gpu(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    gpus, use, avoid = node.machine.gpus, demand.use_uuids, demand.avoid_uuids
    left = [i for i in eligible if (not use or gpus[i].uuid in use) and gpus[i].uuid not in avoid]
    return enough(demand, left, "uuid", "needs {needed} of the GPUs named by UUID; the node has {available}")


def usable(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    unusable = node.machine.unusable
    if not unusable:
        return eligible
    left = [i for i in eligible if i not in unusable]
    return enough(demand, left, "health", "needs {gpus} in good health and not cordoned; the node has {available}")


# Other tenants


def affinity(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """Members of an affinity group use the GPUs that the other members use."""
    groups = [set(one.gpus) for one in node.tenants if one.demand.affinity == demand.affinity]
    left = [i for i in eligible if all(i in gpus for gpus in groups)]
    text = f"needs {{gpus}} that group {plain_text(demand.affinity or '')} uses; the node has {{available}}"
    return enough(demand, left, "affinity", text)


def anti_affinity(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """Members of an anti-affinity group share no GPU."""
    group = demand.anti_affinity
    taken = {i for one in node.tenants if one.demand.anti_affinity == group for i in one.gpus}
    left = [i for i in eligible if i not in taken]
    text = f"needs {{gpus}} that group {plain_text(group or '')} does not use; the node has {{available}}"
    return enough(demand, left, "anti-affinity", text)


def unused(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    gpus = node.machine.gpus
    left = [i for i in eligible if node.slots[i] == gpus[i].slots]
    return enough(demand, left, "exclusive", "needs {gpus} that no other job uses; the node has {available}")


# Amounts


def share_slots(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    slots = node.slots
    left = [i for i in eligible if slots[i] > 0]
    return enough(demand, left, "slots", "needs {gpus} with a free share slot; the node has {available}")


def needs_amounts(demand: Demand) -> bool:
    """Pods with containers take the sum of what their containers take: `containers.py` has that rule."""
    return demand.gpus > 0 and not demand.containers


def gpu_memory(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    memory, needed = node.memory, demand.memory
    if demand.memory_percent is None:
        left = [i for i in eligible if memory[i] >= needed]
    else:
        sizes = node.machine.memory_capacities
        left = [i for i in eligible if memory[i] >= memory_of(demand, sizes[i])]
    if len(left) >= demand.gpus:
        return left
    if demand.gpus > 1:
        if demand.memory_percent is None:
            amount = f"{needed} MiB"
        else:
            amount = f"{demand.memory_percent} % of its memory"
        text = f"needs {{gpus}}, each with {amount} free; the node has {{available}}"
        return enough(demand, left, "memory", text)
    freest = max(eligible, key=memory.__getitem__)
    text = "needs {needed} MiB on one GPU; the freest has {available} MiB free"
    return Reason("memory", text, memory_of(demand, node.machine.memory_capacities[freest]), memory[freest])


def gpu_compute(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    compute, needed = node.compute, demand.compute
    left = [i for i in eligible if compute[i] >= needed]
    if len(left) >= demand.gpus:
        return left
    # If a GPU is not in use and still has less, it hands out less than a whole one (compute scaling below 100 %).
    sizes = node.machine.compute_capacities
    is_whole = needed == WHOLE_GPU and all(compute[i] < sizes[i] for i in eligible if i not in left)
    if demand.gpus > 1:
        if is_whole:
            text = "needs {needed} whole GPUs; the node has {available} free"
        else:
            text = f"needs {{gpus}}, each with {needed / 10:g} % of its compute free; the node has {{available}}"
        return Reason("compute", text, demand.gpus, len(left))
    if is_whole:
        text = "needs a whole GPU; every GPU is in use"
    else:
        text = "needs {needed_percent} % of one GPU; the freest has {available_percent} % free"
    return Reason("compute", text, needed, max(compute[i] for i in eligible))


# Sets of GPUs. These say whether there is such a set; `slots.py` finds the sets themselves.


def one_numa(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    groups = by_numa(node, eligible).values()
    left = [i for gpus in groups if len(gpus) >= demand.gpus for i in gpus]
    if left:
        return sorted(left)
    text = "needs {gpus} on one NUMA node; the best NUMA node has {available} free"
    return Reason("numa", text, demand.gpus, max(map(len, groups), default=0))


def linked(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if linked_slot(demand, node, eligible) is not None or demand.link is None:
        return eligible
    kind = f"linked by {demand.link.name} or better"
    text = f"needs {{needed}} GPUs {kind}; the {{available}} free GPUs have no such set"
    return Reason("link", text, demand.gpus, len(eligible))


CHECKS: tuple[Check, ...] = (
    Check(
        "cpu",
        host_cpu,
        reads=Reads.AMOUNTS,
        floors=lambda demand: Floors(cpu=demand.cpu),
        nearness=lambda gpus: gpus.cpu,
    ),
    Check(
        "host-memory",
        host_memory,
        reads=Reads.AMOUNTS,
        floors=lambda demand: Floors(host_memory=demand.host_memory),
        nearness=lambda gpus: gpus.host_memory,
    ),
    Check("count", installed, needs_gpus, Reads.HARDWARE, floors=lambda demand: Floors()),
    Check("type", gpu_type, has_type_constraint, Reads.TYPE, mask=mask_type),
    Check("uuid", named_gpu, lambda demand: bool(demand.use_uuids or demand.avoid_uuids)),
    Check("health", usable, needs_gpus, Reads.HARDWARE, mask=lambda demand, gpus: gpus.usable),
    Check("affinity", affinity, lambda demand: demand.affinity is not None, Reads.TENANTS),
    Check("anti-affinity", anti_affinity, lambda demand: demand.anti_affinity is not None, Reads.TENANTS),
    Check(
        "exclusive",
        unused,
        lambda demand: demand.exclusive,
        Reads.AMOUNTS | Reads.HARDWARE,
        mask=lambda demand, gpus: gpus.slots == gpus.slot_capacity,
    ),
    Check("slots", share_slots, needs_gpus, Reads.AMOUNTS, floors=lambda demand: Floors(slots=1)),
    Check(
        "compute",
        gpu_compute,
        needs_amounts,
        Reads.AMOUNTS,
        floors=lambda demand: Floors(compute=demand.compute),
        nearness=lambda gpus: gpus.compute,
    ),
    Check(
        "memory",
        gpu_memory,
        needs_amounts,
        Reads.AMOUNTS | Reads.HARDWARE,
        floors=lambda demand: Floors(memory=demand.memory) if demand.memory_percent is None else None,
        mask=lambda demand, gpus: gpus.memory >= memory_of(demand, gpus.memory_capacity),
        nearness=lambda gpus: gpus.memory,
    ),
    Check("numa", one_numa, lambda demand: demand.one_numa and needs_amounts(demand), Reads.HARDWARE, of_sets=True),
    Check(
        "link",
        linked,
        lambda demand: demand.link is not None and demand.gpus > 1 and needs_amounts(demand),
        Reads.HARDWARE,
        of_sets=True,
    ),
)
"""What every policy checks, in the order in which they refuse; a policy may name more (`Policy.more_checks`)."""

NODE_LABELS = frozenset({MACHINE_TYPE_LABEL}.union(*(check.labels for check in CHECKS)))
"""The labels of nodes that a check or an order reads. The others are left out, so that equal machines stay equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Feasibility:
    """The checks of a table that apply to one demand, and what follows from them for the fast paths.

    Invariant: whatever is skipped, shared or computed in arrays gives the answer that `eligible` gives node by node.
    The order of checks decides which of them refuses, never whether one does, since each judges GPUs for themselves;
    those of sets are the exception and come last.
    """

    demand: Demand
    checks: tuple[Check, ...]
    floors: Floors
    """of all checks together"""
    fitting: Fitting
    """Those of some GPUs of a node that `eligible` would keep, None if it would refuse; faster, without a reason."""
    by_name: bool
    """nodes of one kind may differ in their answer: it depends on a name or a UUID"""
    interchangeable: bool
    """GPUs with equal hardware and equal free amounts have the same answer, so that one stands for all of them"""
    in_arrays: bool
    """all checks have a form in arrays, and judge each GPU for itself"""

    def masks(self, gpus: GpuColumns) -> Iterator[Mask]:
        """All checks that have a form in arrays, the floors of each amount at once."""
        yield from self.floors.masks(gpus)
        for check in self.checks:
            if check.mask is not None and (check.floors is None or check.floors(self.demand) is None):
                yield check.mask(self.demand, gpus)

    def eligible(self, node: Node) -> list[int] | Reason:
        """The GPUs that satisfy the demand, at least as many as it needs; or the first refusal."""
        eligible = list(range(len(node.compute)))
        for check in self.checks:
            left = check.narrow(self.demand, node, eligible)
            if isinstance(left, Reason):
                return left
            eligible = left
        return eligible


def _fitting(demand: Demand, floors: Floors, of_machines: tuple[Narrow, ...], others: tuple[Narrow, ...]) -> Fitting:
    """All checks in one pass: by kind of machine, by amounts, and the others."""
    cpu, host_memory, least_compute, least_memory, least_slots = floors
    needed = demand.gpus
    known: dict[object, frozenset[int] | None] = {}

    def fitting(node: Node, gpus: Sequence[int]) -> list[int] | None:
        machine, _, compute, memory, slots, _, free_cpu, free_memory, _, _, _ = node
        if (free_cpu is not None and free_cpu < cpu) or (free_memory is not None and free_memory < host_memory):
            return None
        try:
            allowed = known[machine.kind]
        except KeyError:
            allowed = known[machine.kind] = _allowed(demand, node, of_machines)
        if allowed is not None:
            if allowed is _REFUSED:
                return None
            gpus = [i for i in gpus if i in allowed]
        left = [
            i for i in gpus if compute[i] >= least_compute and memory[i] >= least_memory and slots[i] >= least_slots
        ]
        if len(left) < needed:
            return None
        for narrow in others:
            kept = narrow(demand, node, left)
            if isinstance(kept, Reason):
                return None
            left = kept
        return left

    return fitting


def _allowed(demand: Demand, node: Node, checks: tuple[Narrow, ...]) -> frozenset[int] | None:
    """The GPUs that checks of the hardware keep on every machine of a kind; None: all. `_REFUSED`: one refuses it."""
    left = everything = list(range(len(node.compute)))
    for narrow in checks:
        kept = narrow(demand, node, left)
        if isinstance(kept, Reason):
            return _REFUSED
        left = kept
    return None if left == everything else frozenset(left)


class _Applied(NamedTuple):
    """What follows from the checks that apply to a demand, whatever the demand. Few sets of checks ever apply."""

    checks: tuple[Check, ...]
    """those of sets of GPUs last"""
    by_kind: tuple[bool, ...]
    """for each check: machines of one kind have the same answer"""
    by_name: bool
    interchangeable: bool


@lru_cache(maxsize=512)
def _applied(checks: tuple[Check, ...]) -> _Applied:
    ordered = tuple(sorted(checks, key=lambda check: check.of_sets))
    reads = reduce(or_, (check.reads for check in ordered), Reads(0))
    return _Applied(
        ordered,
        tuple(not check.of_sets and check.reads in _BY_KIND for check in ordered),
        by_name=Reads.NAMES in reads,
        interchangeable=not reads & (Reads.TENANTS | Reads.NAMES),
    )


@lru_cache(maxsize=512)
def feasibility(demand: Demand, checks: tuple[Check, ...] = CHECKS) -> Feasibility:
    """Those of the checks that apply to a demand."""
    if demand.containers:  # its GPUs are those of its containers, which may share one
        demand = replace(demand, gpus=1 if any(container.gpus for container in demand.containers) else 0)
    applied = _applied(tuple([check for check in checks if check.applies(demand)]))
    floors, of_machines, others = [Floors()], list[Narrow](), list[Narrow]()
    in_arrays = needs_amounts(demand)
    for check, by_kind in zip(applied.checks, applied.by_kind, strict=True):
        own = None if check.floors is None else check.floors(demand)
        if own is None:
            (of_machines if by_kind else others).append(check.narrow)
            in_arrays = in_arrays and check.mask is not None
        else:
            floors.append(own)
    highest = Floors(*map(max, *floors)) if len(floors) > 1 else floors[0]
    return Feasibility(
        demand,
        applied.checks,
        highest,
        _fitting(demand, highest, tuple(of_machines), tuple(others)),
        by_name=applied.by_name,
        interchangeable=applied.interchangeable,
        in_arrays=in_arrays,
    )


def eligible_gpus(demand: Demand, node: Node, checks: tuple[Check, ...] = CHECKS) -> list[int] | Reason:
    """The GPUs that satisfy the demand, at least as many as it needs; or the first refusal."""
    return feasibility(demand, checks).eligible(node)


def by_numa(node: Node, gpus: list[int]) -> dict[int | None, list[int]]:
    """These GPUs by NUMA node; those whose NUMA node is not known are one group."""
    groups: dict[int | None, list[int]] = {}
    for i in gpus:
        groups.setdefault(node.machine.gpus[i].numa, []).append(i)
    return groups


def linked_slot(demand: Demand, node: Node, eligible: list[int]) -> tuple[int, ...] | None:
    """The best linked GPUs that satisfy the demand's link constraint, on one NUMA node if it must be one."""
    links = node.machine.links
    if links is None or demand.link is None:
        return None
    pools = by_numa(node, eligible).values() if demand.one_numa else [eligible]
    found = [topology.linked_at_least(links, pool, demand.gpus, demand.link) for pool in pools]
    return max((gpus for gpus in found if gpus), key=lambda gpus: topology.total_link(links, gpus), default=None)


@lru_cache(maxsize=4096)
def type_allowed(gpu_type: str, use: tuple[str, ...], avoid: tuple[str, ...]) -> bool:
    """Whether a GPU type matches one of `use` (or `use` is empty) and none of `avoid`; case does not matter."""
    name = gpu_type.lower()
    if any(fnmatchcase(name, pattern.lower()) for pattern in avoid):
        return False
    return not use or any(fnmatchcase(name, pattern.lower()) for pattern in use)


def enough(demand: Demand, left: list[int], check: str, text: str) -> list[int] | Reason:
    """These GPUs if they are as many as the demand needs, else a Reason with both numbers."""
    return left if len(left) >= demand.gpus else Reason(check, text, demand.gpus, len(left))


def plain_text(name: str) -> str:
    """A name that a user chose, safe inside a format string."""
    return name.replace("{", "{{").replace("}", "}}")
