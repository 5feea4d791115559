# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How much of each dialect's resources a node has, for `kubectl describe node`, quotas and kubelet.

Kubelet fails a pod for good if the sum of all requests exceeds a total. So a total is never below what the core may
place on the node: neither by rounding, nor for a pod that was made smaller, nor for one that another scheduler placed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from cotenant.core.footprint import compute_on, memory_on
from cotenant.core.model import ContainerKind, Gpu, Machine
from cotenant.core.units import WHOLE_GPU
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, containers_of, has_ended, resources_of
from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.assignment import Record, record_of
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.request import MOST_CONTAINERS, request_of
from cotenant.kube.codec.settings import Settings
from cotenant.node.devices.vendors import Vendor

Totals = Mapping[str, int]
"""By resource name."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one pod adds to the sums."""

    pod: Pod
    requested: Totals
    placed: bool


class NodeTotals:
    """The totals of a node whose pods come and go. Each pod is parsed once, until it or the GPUs change."""

    def __init__(self, vendor: Vendor, settings: Settings) -> None:
        self._vendor, self._settings = vendor, settings
        self._machine: Machine | None = None
        self._own: Totals = {}
        self._parts: dict[str, _Part] = {}

    def of(self, machine: Machine, pods: Iterable[Pod] = ()) -> Totals:
        """The totals of a node with these pods, which are never less than what the pods request."""
        if machine != self._machine:
            self._machine, self._own, self._parts = machine, self._without_pods(machine), {}
        self._parts = {pod.metadata.uid: self._part(pod, machine) for pod in pods if not has_ended(pod)}
        requested, not_placed = dict.fromkeys(self._own, 0), dict.fromkeys(self._own, 0)
        for part in self._parts.values():
            for name, amount in part.requested.items():
                requested[name] += amount
                not_placed[name] += 0 if part.placed else amount
        return {name: max(total + not_placed[name], requested[name]) for name, total in self._own.items()}

    def _part(self, pod: Pod, machine: Machine) -> _Part:
        known = self._parts.get(pod.metadata.uid)
        if known is not None and known.pod is pod:
            return known
        requested = kubelet_sum(pod, self._own)
        return _Part(pod, requested, placed=not requested or _is_counted(pod, machine, self._settings))

    def _without_pods(self, machine: Machine) -> Totals:
        totals: Counter[str] = Counter()
        for dialect in self._settings.dialects:
            if dialect.vendor is self._vendor:
                totals.update(dialect_totals(dialect, machine))
        return totals


def dialect_totals(dialect: Dialect, machine: Machine) -> dict[str, int]:
    """All totals but the number of devices, which the device plugin reports; an unhealthy GPU still has its tenants."""
    gpus = machine.gpus
    slots = sum(gpu.slots for gpu in gpus)
    most = {gpu.uuid: max(gpu.slots, min(MOST_CONTAINERS, slots)) for gpu in gpus}
    amounts = {
        dialect.memory: sum(gpu.memory_capacity // dialect.memory_unit for gpu in gpus),
        dialect.count if dialect.slots is not None else None: _whole_gpus(dialect, gpus),
        dialect.memory_mib: sum(gpu.memory_capacity for gpu in gpus),
        dialect.memory_percent: sum(most_percent(gpu.memory_capacity, most[gpu.uuid]) for gpu in gpus),
        dialect.compute: sum(_compute_percent(gpu, most[gpu.uuid]) for gpu in gpus),
        dialect.priority: slots,
    }
    return {name: amount for name, amount in amounts.items() if name is not None}


def _whole_gpus(dialect: Dialect, gpus: Sequence[Gpu]) -> int:
    """How many GPUs pods can request at the same time: as many as there are.

    If the memory of a GPU is not known, all of it is 0 MiB. Then compute alone bounds the containers on the GPU that
    request all of it, and compute may be oversubscribed.
    """
    if dialect.moves_count:
        return len(gpus)
    return sum(1 if gpu.memory_capacity else max(1, min(gpu.slots, gpu.compute_capacity // WHOLE_GPU)) for gpu in gpus)


def _compute_percent(gpu: Gpu, tenants: int) -> int:
    """Percents of compute. Tenants of a MIG instance may state them of the instance, which are rounded down."""
    return gpu.compute_capacity // 10 if gpu.mig is None else most_percent(gpu.compute_capacity, tenants)


def most_percent(capacity: int, tenants: int) -> int:
    """The largest sum of percents that so many tenants can have on one GPU: more than 100, since each is rounded down.

    On a GPU with C MiB, p percent take w = (C p - r) / 100 MiB, where r < 100 is what is rounded away. The w of all
    tenants add up to at most C, so their p add up to at most 100 + (sum of r) / C.
    """
    if capacity == 0:
        return 100 * tenants
    rounded_away = 100 - gcd(capacity, 100)
    return min(100 * tenants, 100 + tenants * rounded_away // capacity)


def kubelet_sum(pod: Pod, names: Iterable[str]) -> dict[str, int]:
    """A pod's request as kubelet counts it: apps and sidecars together, or an init container if that is more."""
    sums = {}
    requests = [(kind, resources_of(container)) for kind, container in containers_of(pod)]
    for name in names:
        staying = peak = 0
        for kind, request in requests:
            amount = _amount(request.get(name, 0))
            peak = max(peak, staying + amount)
            if kind is not ContainerKind.INIT:
                staying += amount
        if peak := max(peak, staying):
            sums[name] = peak
    return sums


def _amount(written: str | int) -> int:
    try:
        return max(0, int(parse_quantity(written)))
    except ValueError:  # the API server accepts no such pod
        return 0


def _is_counted(pod: Pod, machine: Machine, settings: Settings) -> bool:
    """Whether the core counts as much as kubelet does: the pod was placed, and has no less than it requested."""
    try:
        record = record_of(pod)
        return record is not None and _meets_request(pod, record, machine, settings)
    except InputError:
        return False


def _meets_request(pod: Pod, record: Record, machine: Machine, settings: Settings) -> bool:
    gpus = {gpu.uuid: gpu for gpu in machine.gpus}
    for one in request_of(pod, settings).containers:
        wanted, shares = one.amounts.container, record.held_by(one.number)
        if len(shares) != wanted.gpus or any(share.gpu not in gpus for share in shares):
            return False
        needed = [(memory_on(wanted, gpus[share.gpu]), compute_on(wanted, gpus[share.gpu])) for share in shares]
        if any(
            share.memory < memory or share.compute < compute
            for share, (memory, compute) in zip(shares, needed, strict=True)
        ):
            return False
    return True
