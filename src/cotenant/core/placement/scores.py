# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Orders: each gives the candidate slots of one node a number; larger is better.

An order sees a demand, a node and slots; never the cluster, a clock or a job's identity. So a score stays valid for a
demand and a version of a node. Orders are compared left to right, separately for the GPUs of a node and for nodes
(`policies.py`).

The baselines of FGD's evaluation (best-fit, dot-product, clustering, packing) are the published integer scores; their
128 cores and 8 GPUs are the published normalisation, not a limit.
"""

from collections.abc import Callable

from cotenant.core.cluster import Node
from cotenant.core.model import MACHINE_TYPE_LABEL, Demand, Gpus
from cotenant.core.placement import topology
from cotenant.core.units import WHOLE_GPU

Order = Callable[[Demand, Node, list[Gpus]], list[float]]
Score = tuple[float, ...]
"""The numbers that all orders of a policy give one slot; compared from left to right."""

_CPU_SCALE = 128_000.0
_GPU_SCALE = 8_000.0


def binpack(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The least room on the chosen GPUs: nearly full GPUs are filled first."""
    room = node.room
    if demand.gpus == 1 and not demand.containers:
        return [-room[slot[0]] for slot in slots]
    return [-sum([room[i] for i in slot]) for slot in slots]


def spread(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The most room on the chosen GPUs."""
    return [sum([node.room[i] for i in slot]) for slot in slots]


def most_compute(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The most free compute on the chosen GPUs."""
    return [sum([node.compute[i] for i in slot]) for slot in slots]


def fewest_tenants(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The fewest tenants on the chosen GPUs."""
    gpus = node.machine.gpus
    return [-sum([gpus[i].slots - node.slots[i] for i in slot]) for slot in slots]


def node_binpack(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The node with the least room."""
    return [-sum(node.room)] * len(slots)


def node_spread(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The node with the most room."""
    return [sum(node.room)] * len(slots)


def most_used(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The node that is used most: the used parts of its share slots, its compute and its memory, added up.

    This is how HAMi compares nodes, so a half-used node counts the same whether it has 2 GPUs or 8.
    """
    machine = node.machine
    usable = [i for i in range(len(machine.gpus)) if i not in machine.unusable]
    used = 0.0
    for totals, free in (
        ([gpu.slots for gpu in machine.gpus], node.slots),
        (machine.compute_capacities, node.compute),
        (machine.memory_capacities, node.memory),
    ):
        total = sum([totals[i] for i in usable])
        used += (total - sum([free[i] for i in usable])) / total if total else 0.0
    return [used] * len(slots)


def least_used(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The node that is used least, as HAMi compares nodes."""
    return [-used for used in most_used(demand, node, slots)]


def exclusive_first(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """Unused GPUs before GPUs to share."""
    fresh = [1 if node.slots[i] == gpu.slots else 0 for i, gpu in enumerate(node.machine.gpus)]
    return [sum(fresh[i] for i in slot) for slot in slots]


def one_numa(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """GPUs on as few NUMA nodes as possible."""
    gpus = node.machine.gpus
    return [-len({gpus[i].numa for i in slot}) for slot in slots]


def anything(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """No preference; ties are broken by name and index, or at random by a random policy."""
    return [0.0] * len(slots)


def best_fit(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The node with least CPU and GPU left afterwards, weighed half and half."""
    needed = demand.total_compute
    left = 0.0
    left += (float(node.cpu or 0) - demand.cpu) / _CPU_SCALE * 0.5
    left += (float(sum(node.room)) - needed) / _GPU_SCALE * 0.5
    return [int((1.0 - left) * 100.0)] * len(slots)


def dot_product(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The node whose free resources point least the same way as the demand."""
    needed = demand.total_compute
    product = ((node.cpu or 0) / _CPU_SCALE) * (demand.cpu / _CPU_SCALE)
    product += (sum(node.room) / _GPU_SCALE) * (needed / _GPU_SCALE)
    return [int(100.0 * (1 - product / 2.0))] * len(slots)


def clustering(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """Like with like: shares beside shares, k-GPU jobs beside k-GPU jobs."""
    if demand.total_compute == 0:
        return [0.0] * len(slots)
    base = 25 * (8000 - sum(node.room)) // 8000
    kinds = {_kind(tenant.demand) for tenant in node.tenants if tenant.gpus}
    if _kind(demand) in kinds:
        bonus = 75 if len(kinds) == 1 else 50
    else:
        bonus = 0 if kinds else 25
    return [base + bonus] * len(slots)


def packing(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """Used GPUs before free ones, free ones of a used node before a fresh node."""
    rooms = node.sorted_room
    if demand.gpus == 0 or not rooms:  # containers may need no GPU either
        return [0.0] * len(slots)
    if rooms[0] == 1000:
        return [max(33 - len(rooms), len(rooms))] * len(slots)
    needed = demand.steady
    used = [room for room in rooms if room >= needed.compute][: needed.gpus]
    fresh = used.count(1000)
    if fresh:
        return [max(50 - fresh, 33)] * len(slots)
    left = sum(room * 100 // 1000 for room in used)
    return [max(100 - left // 10, 50)] * len(slots)


def linked(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The best linked GPUs: the sum of their pair scores."""
    links = node.machine.links
    return [0.0 if links is None else topology.total_link(links, slot) for slot in slots]


def linked_for_later(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """Well-linked GPUs that leave well-linked ones to later jobs, before others by the sum of their pair scores.

    This holds for whole GPUs. For shares the sum alone counts, so that the next order can put a share on a used GPU.
    """
    links, totals = node.machine.links, linked(demand, node, slots)
    if links is None or demand.containers or demand.steady.compute < WHOLE_GPU:
        return totals
    choice = topology.choose(links, _free(slots), demand.gpus)
    return [max(totals) + 1 if slot == choice else total for slot, total in zip(slots, totals, strict=True)]


def listed(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """Sets that the machine's static table lists, in its order; then sets inside a listed one; then the best linked."""
    table = topology.STATIC_TABLES.get(node.machine.labels.get(MACHINE_TYPE_LABEL, ""))
    if table is None:
        return linked(demand, node, slots)
    sets = table.get(demand.gpus, ())
    choice = topology.static_or_best(table, node.machine.links or (), _free(slots), demand.gpus)
    return [2.0 if slot in sets else 1.0 if slot == choice else 0.0 for slot in slots]


def lowest_index(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The lowest GPU indices that are free."""
    return [-sum(slot) for slot in slots]


def _kind(demand: Demand) -> int:
    """0 for a share, else the number of whole GPUs."""
    needed = demand.steady
    return 0 if needed.compute < 1000 else needed.gpus


def _free(slots: list[Gpus]) -> list[int]:
    return sorted({i for slot in slots for i in slot})
