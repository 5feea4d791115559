# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a node will do, and if too few, which check refused and the numbers.

Each check narrows the GPUs that are still eligible, or answers a `Reason`. To add one, write a function and put it into
`CHECKS`; the order is the order in which a user is told.
"""

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache

from cotenant.core.cluster import Node
from cotenant.core.footprint import memory_on
from cotenant.core.model import Demand, Reason
from cotenant.core.placement import topology

Check = Callable[[Demand, Node, list[int]], list[int] | Reason]


def host_cpu(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if node.cpu is None or demand.cpu <= node.cpu:
        return eligible
    return Reason("cpu", "needs {needed} milli-CPU, {available} are free", demand.cpu, node.cpu)


def host_memory(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if node.host_memory is None or demand.host_memory <= node.host_memory:
        return eligible
    text = "needs {needed} MiB of host memory, {available} are free"
    return Reason("host-memory", text, demand.host_memory, node.host_memory)


def installed(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if demand.gpus <= len(eligible):
        return eligible
    return Reason("count", "needs {needed} GPUs on one node, it has {available}", demand.gpus, len(eligible))


def usable(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    left = [i for i in eligible if i not in node.machine.unusable]
    text = "needs {needed} GPUs, {available} are healthy and not cordoned"
    return enough(demand, left, Reason("health", text, demand.gpus, len(left)))


def card_type(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if not demand.use_types and not demand.avoid_types:
        return eligible
    cards = node.machine.gpus
    left = [i for i in eligible if type_allowed(cards[i].type, demand.use_types, demand.avoid_types)]
    wish = plain_text(" or ".join(demand.use_types)) or "any type"
    unless = f" but {plain_text(' or '.join(demand.avoid_types))}" if demand.avoid_types else ""
    text = f"needs {{needed}} GPUs of {wish}{unless}, it has {{available}}"
    return enough(demand, left, Reason("type", text, demand.gpus, len(left)))


def named_card(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if not demand.use_uuids and not demand.avoid_uuids:
        return eligible
    cards = node.machine.gpus
    left = [
        i
        for i in eligible
        if (not demand.use_uuids or cards[i].uuid in demand.use_uuids) and cards[i].uuid not in demand.avoid_uuids
    ]
    text = "needs {needed} of the GPUs named by UUID, it has {available}"
    return enough(demand, left, Reason("uuid", text, demand.gpus, len(left)))


def companions(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """Members of an affinity group go where the others are; members of an anti-affinity group keep apart."""
    left = eligible
    if demand.affinity is not None:
        where = [set(one.gpus) for one in node.tenants if one.demand.affinity == demand.affinity]
        if where:
            left = [i for i in left if all(i in gpus for gpus in where)]
            text = f"needs {{needed}} GPUs that group {plain_text(demand.affinity)} is on, {{available}} will do"
            if len(left) < demand.gpus:
                return Reason("affinity", text, demand.gpus, len(left))
    if demand.anti_affinity is not None:
        taken = {i for one in node.tenants if one.demand.anti_affinity == demand.anti_affinity for i in one.gpus}
        left = [i for i in left if i not in taken]
        text = f"needs {{needed}} GPUs without group {plain_text(demand.anti_affinity)}, {{available}} are"
        return enough(demand, left, Reason("anti-affinity", text, demand.gpus, len(left)))
    return left


def untouched(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if not demand.exclusive:
        return eligible
    left = [i for i in eligible if node.slots[i] == node.machine.gpus[i].slots]
    text = "needs {needed} GPUs that nobody uses, {available} are"
    return enough(demand, left, Reason("exclusive", text, demand.gpus, len(left)))


def share_slots(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    left = [i for i in eligible if node.slots[i] > 0]
    text = "needs {needed} GPUs with a free share slot, {available} have one"
    return enough(demand, left, Reason("slots", text, demand.gpus, len(left)))


def gpu_memory(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    cards = node.machine.gpus
    left = [i for i in eligible if memory_on(demand, cards[i]) <= node.memory[i]]
    if len(left) >= demand.gpus:
        return left
    freest = max(eligible, key=lambda i: node.memory[i])
    needed, available = memory_on(demand, cards[freest]), node.memory[freest]
    if demand.gpus == 1:
        return Reason("memory", "needs {needed} MiB on one GPU, the freest has {available}", needed, available)
    text = f"needs {needed} MiB on each of {{needed}} GPUs, {{available}} have that"
    return Reason("memory", text, demand.gpus, len(left))


def gpu_compute(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    left = [i for i in eligible if demand.compute <= node.compute[i]]
    if len(left) >= demand.gpus:
        return left
    if demand.gpus == 1:
        text = "needs {needed} milli-GPU on one GPU, the freest has {available}"
        return Reason("compute", text, demand.compute, max(node.compute[i] for i in eligible))
    text = f"needs {demand.compute} milli-GPU on each of {{needed}} GPUs, {{available}} have that"
    return Reason("compute", text, demand.gpus, len(left))


def one_numa(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if not demand.one_numa or demand.gpus == 0:
        return eligible
    most = max(len(gpus) for gpus in by_numa(node, eligible).values())
    text = "needs {needed} GPUs on one NUMA node, at most {available} are free on one"
    left = [i for gpus in by_numa(node, eligible).values() if len(gpus) >= demand.gpus for i in gpus]
    return sorted(left) if left else Reason("numa", text, demand.gpus, most)


def linked(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    if demand.link is None or demand.gpus < 2:
        return eligible
    if linked_slot(demand, node, eligible) is not None:
        return eligible
    text = f"needs {{needed}} GPUs linked by {demand.link.name} or better, no such set among {{available}} free ones"
    return Reason("link", text, demand.gpus, len(eligible))


CHECKS: tuple[Check, ...] = (
    host_cpu,
    host_memory,
    installed,
    card_type,
    named_card,
    usable,
    companions,
    untouched,
    share_slots,
    gpu_memory,
    gpu_compute,
    one_numa,
    linked,
)


def eligible_gpus(demand: Demand, node: Node, checks: tuple[Check, ...] = CHECKS) -> list[int] | Reason:
    """The GPUs that each satisfy the demand, at least as many as it asks for; or the first refusal."""
    eligible: list[int] | Reason = list(range(len(node.compute)))
    for check in checks:
        eligible = check(demand, node, eligible)  # type: ignore[arg-type]
        if isinstance(eligible, Reason):
            return eligible
    return eligible


def by_numa(node: Node, gpus: list[int]) -> dict[int | None, list[int]]:
    """These GPUs by the NUMA node they hang on; cards that do not say are one group."""
    groups: dict[int | None, list[int]] = {}
    for i in gpus:
        groups.setdefault(node.machine.gpus[i].numa, []).append(i)
    return groups


def linked_slot(demand: Demand, node: Node, eligible: list[int]) -> tuple[int, ...] | None:
    """The best linked GPUs that satisfy the demand's least link, and its NUMA wish where it has one."""
    links = node.machine.links
    if links is None or demand.link is None:
        return None
    pools = by_numa(node, eligible).values() if demand.one_numa else [eligible]
    found = [topology.linked_at_least(links, pool, demand.gpus, demand.link) for pool in pools]
    return max((gpus for gpus in found if gpus), key=lambda gpus: topology.total_link(links, gpus), default=None)


@lru_cache(maxsize=4096)
def type_allowed(card: str, use: tuple[str, ...], avoid: tuple[str, ...]) -> bool:
    """Whether a card type matches one of `use` (or `use` is empty) and none of `avoid`; case does not matter."""
    name = card.lower()
    if any(fnmatchcase(name, pattern.lower()) for pattern in avoid):
        return False
    return not use or any(fnmatchcase(name, pattern.lower()) for pattern in use)


def enough(demand: Demand, left: list[int], reason: Reason) -> list[int] | Reason:
    """These GPUs where they are as many as asked for, else the reason."""
    return left if len(left) >= demand.gpus else reason


def plain_text(name: str) -> str:
    """A name that a user chose, safe inside a format string."""
    return name.replace("{", "{{").replace("}", "}}")
