# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How much of each resource a node has in the words of the dialects, for `kubectl describe node`, quotas and kubelet.

Kubelet fails a pod for good where the sum of what pods ask for is more than a total. So a total is never below what the
core may place there: not by a rounding, and not for a pod that was made smaller, or that nobody placed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd

from cotenant.core.footprint import memory_on
from cotenant.core.model import ContainerKind, Gpu, Machine
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, containers_of, has_ended, resources_of
from cotenant.kube.codec.assignment import Record, record_of
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.quantity import parse_quantity
from cotenant.kube.codec.request import MOST_CONTAINERS, asked_of
from cotenant.kube.codec.settings import Settings
from cotenant.node.devices.vendors import Vendor

Totals = Mapping[str, int]
"""by resource name"""


@dataclass(frozen=True, slots=True)
class _Part:
    """What a pod is of the sums."""

    pod: Pod
    asked: Totals
    placed: bool


class NodeTotals:
    """The totals of a node whose pods come and go: each is understood once, as long as it and the cards stay."""

    def __init__(self, vendor: Vendor, settings: Settings) -> None:
        self._vendor, self._settings = vendor, settings
        self._machine: Machine | None = None
        self._own: Totals = {}
        self._parts: dict[str, _Part] = {}

    def of(self, machine: Machine, pods: Iterable[Pod] = ()) -> Totals:
        """What a node has with these pods, and never less than what they ask for."""
        if machine != self._machine:
            self._machine, self._own, self._parts = machine, self._without_pods(machine), {}
        self._parts = {pod.metadata.uid: self._part(pod, machine) for pod in pods if not has_ended(pod)}
        asked, not_placed = dict.fromkeys(self._own, 0), dict.fromkeys(self._own, 0)
        for part in self._parts.values():
            for name, amount in part.asked.items():
                asked[name] += amount
                not_placed[name] += 0 if part.placed else amount
        return {name: max(total + not_placed[name], asked[name]) for name, total in self._own.items()}

    def _part(self, pod: Pod, machine: Machine) -> _Part:
        known = self._parts.get(pod.metadata.uid)
        if known is not None and known.pod is pod:
            return known
        asked = kubelet_sum(pod, self._own)
        return _Part(pod, asked, placed=not asked or _is_counted(pod, machine, self._settings))

    def _without_pods(self, machine: Machine) -> Totals:
        totals: Counter[str] = Counter()
        for dialect in self._settings.dialects:
            if dialect.vendor is self._vendor:
                totals.update(dialect_totals(dialect, machine))
        return totals


def dialect_totals(dialect: Dialect, machine: Machine) -> dict[str, int]:
    """All but the count of cards, which the device plugin tells itself; unhealthy cards still have their tenants."""
    cards = machine.gpus
    slots = sum(card.slots for card in cards)
    amounts = {
        dialect.memory: sum(card.memory_capacity // dialect.memory_unit for card in cards),
        dialect.memory_percent: sum(most_percent(card, max(card.slots, min(MOST_CONTAINERS, slots))) for card in cards),
        dialect.compute: sum(card.compute_capacity // 10 for card in cards),
        dialect.priority: slots,
    }
    return {name: amount for name, amount in amounts.items() if name is not None}


def most_percent(card: Gpu, tenants: int) -> int:
    """No so many tenants can ask for more percent of a card, each rounded down to MiB: a little over 100 on small ones.

    With C MiB, p percent take w = (C p - r) / 100 MiB, where r < 100 is what is rounded away. The w of all tenants
    come to at most C, so their p come to at most 100 + (sum of r) / C.
    """
    capacity = card.memory_capacity
    if capacity == 0:
        return 100 * tenants
    rounded_away = 100 - gcd(capacity, 100)
    return min(100 * tenants, 100 + tenants * rounded_away // capacity)


def kubelet_sum(pod: Pod, names: Iterable[str]) -> dict[str, int]:
    """What a pod asks for as kubelet counts it: apps and sidecars together, or an init container where that is more."""
    sums = {}
    for name in names:
        staying = peak = 0
        for kind, container in containers_of(pod):
            amount = _amount(resources_of(container).get(name, 0))
            peak = max(peak, staying + amount)
            if kind is not ContainerKind.INIT:
                staying += amount
        if peak := max(peak, staying):
            sums[name] = peak
    return sums


def _amount(written: str | int) -> int:
    try:
        return max(0, int(parse_quantity(written)))
    except ValueError:  # no API server lets it in
        return 0


def _is_counted(pod: Pod, machine: Machine, settings: Settings) -> bool:
    """Whether the core counts all that kubelet counts of it: it was placed, and is not smaller now than it asked."""
    try:
        record = record_of(pod)
        return record is not None and _is_as_asked(pod, record, machine, settings)
    except InputError:
        return False


def _is_as_asked(pod: Pod, record: Record, machine: Machine, settings: Settings) -> bool:
    cards = {gpu.uuid: gpu for gpu in machine.gpus}
    for one in asked_of(pod, settings).containers:
        asked, shares = one.amounts.asked, record.held_by(one.number)
        if len(shares) != asked.gpus or any(share.gpu not in cards for share in shares):
            return False
        if any(share.memory < memory_on(asked, cards[share.gpu]) or share.compute < asked.compute for share in shares):
            return False
    return True
