# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The table of checks: which GPUs of a node are feasible for a demand, and if too few are, which check refused.

This is the only place where feasibility is decided. To add a check, write a function and give it a row in the table
(`Check` in `check.py` explains the fields). `feasibility.py` compiles every fast path from the table.
"""

from fnmatch import fnmatchcase
from functools import lru_cache

import numpy as np

from cotenant.core.cluster import Node
from cotenant.core.footprint import compute_of, memory_of
from cotenant.core.isolation import ONE_GPU, uses_mps
from cotenant.core.model import MACHINE_TYPE_LABEL, Demand, Reason
from cotenant.core.placement import topology
from cotenant.core.placement.check import Check, Floors, GpuColumns, Mask, Reads, enough, plain_text
from cotenant.core.placement.mig import PROFILE_CHECK, instances
from cotenant.core.units import WHOLE_GPU

# The host


def host_cpu(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if node.cpu is None or demand.cpu <= node.cpu:
        return eligible
    return Reason("cpu", "needs {needed_cpus}; the node has {available_cpus} free", demand.cpu, node.cpu)


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


def names_gpus(demand: Demand) -> bool:
    """Also if only a container names GPUs: `containers.py` compares them."""
    return bool(demand.use_uuids or demand.avoid_uuids or any(one.use_uuids for one in demand.containers))


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


def isolation(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """GPUs that have the rung of the demand. A GPU under MPS takes tenants of one rung only.

    The most that any MPS client of a GPU may have is set once for all of them, and those that the driver holds need all
    of its memory there.
    """
    gpus, rung, tenants = node.machine.gpus, demand.rung, node.tenants
    if uses_mps(rung) and demand.gpus > 1:
        return Reason("isolation", f"needs isolation {rung} for {{gpus}}; {ONE_GPU}", demand.gpus, 1)
    left = [i for i in eligible if rung in gpus[i].rungs]
    if len(left) < demand.gpus:
        return enough(demand, left, "isolation", f"needs {{gpus}} with isolation {rung}; the node has {{available}}")
    under_mps = [i for one in tenants if uses_mps(one.demand.rung) for i in one.gpus]
    if not uses_mps(rung):
        taken = {*under_mps, *(i for i in left if gpus[i].under_mps)}
        text = f"needs {{gpus}} for isolation {rung}, and GPUs under MPS take no such job; the node has {{available}}"
        return enough(demand, [i for i in left if i not in taken], "isolation", text)
    others = {i for one in tenants if one.demand.rung is not rung for i in one.gpus}
    left = [i for i in left if i not in others]
    if len(left) < demand.gpus:
        text = f"needs {{gpus}} that no job of another isolation than {rung} uses; the node has {{available}}"
        return enough(demand, left, "isolation", text)
    left = [i for i in left if under_mps.count(i) < gpus[i].mps_clients]
    return enough(
        demand, left, "isolation", "needs {gpus} with a free place for an MPS client; the node has {available}"
    )


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
    if demand.mig is not None:
        return instance_compute(demand, node, eligible)
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


def instance_compute(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """The same for a demand that names a MIG profile: it needs a share of the instance."""
    sizes = node.machine.compute_capacities
    left = [i for i in eligible if node.compute[i] >= compute_of(demand, sizes[i])]
    free = "free" if demand.compute == WHOLE_GPU else f"with {demand.compute / 10:g} % of their compute free"
    text = f"needs {{needed}} free {instances(demand.mig or '', demand.gpus)}; the node has {{available}} {free}"
    return enough(demand, left, "compute", text)


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
    PROFILE_CHECK,
    Check("uuid", named_gpu, names_gpus),
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
    Check("isolation", isolation, lambda demand: demand.rung is not None, Reads.HARDWARE | Reads.TENANTS),
    Check("slots", share_slots, needs_gpus, Reads.AMOUNTS, floors=lambda demand: Floors(slots=1)),
    Check(
        "compute",
        gpu_compute,
        needs_amounts,
        Reads.AMOUNTS | Reads.HARDWARE,
        floors=lambda demand: Floors(compute=demand.compute) if demand.mig is None else None,
        mask=lambda demand, gpus: gpus.compute >= compute_of(demand, gpus.compute_capacity),
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
