# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""ResourceQuota for GPUs, their memory and their compute: what a namespace uses of all GPUs together.

Kubernetes itself counts such resources per container, without the number of GPUs and without the capacity that a
percentage refers to. This module counts what the state of the cluster says is in use. A quota for the resource of one
dialect limits all pods on GPUs of that vendor, whichever dialect they use. Kubernetes enforces a quota of `requests.`
for a number of GPUs itself, unless the webhook moves the number to a resource of ours. It ignores one of `limits.`,
which HAMi's users write.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from cotenant.core.model import Reason
from cotenant.core.placement.check import plain_text
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.objects import Metadata, Quantities
from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.state.allocation import Allocation, Used
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor

REQUESTS, LIMITS = "requests.", "limits."
PREFIXES = (REQUESTS, LIMITS, "")
MILLI_PER_PERCENT = 10
NAMES = {"memory": "MiB of GPU memory", "compute": "milli-GPU", "gpus": "GPUs"}


class QuotaSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The limits of a namespace."""

    hard: Quantities = {}
    scopes: tuple[str, ...] = ()
    scope_selector: Mapping[str, object] | None = None


class ResourceQuota(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A quota of a namespace."""

    metadata: Metadata = Metadata()
    spec: QuotaSpec = QuotaSpec()


QUOTAS = Kind("resourcequotas", ResourceQuota)


class Limit(NamedTuple):
    """The most that a namespace may use of one vendor's GPUs, memory or compute."""

    quota: str
    """name of the ResourceQuota"""
    vendor: Vendor
    field: Literal["memory", "compute", "gpus"]
    """field of `Used` that it limits: MiB, thousandths of a GPU, or GPUs"""
    most: int

    def of(self, used: Used) -> int:
        """The amount that this limit is about."""
        return int(getattr(used, self.field))

    def counts(self, allocation: Allocation, namespace: str) -> bool:
        """Whether an allocation counts against this limit of a namespace."""
        return allocation.vendor is self.vendor and allocation.namespace == namespace


class Shortfall(NamedTuple):
    """A limit that refuses some amount."""

    limit: Limit
    needed: int
    used: int
    """what others of the namespace use"""

    @property
    def available(self) -> int:
        """What the limit leaves."""
        return max(0, self.limit.most - self.used)

    @property
    def enough(self) -> int:
        """The limit that would allow it."""
        return self.used + self.needed


class Quotas:
    """Follows the quotas of all namespaces."""

    def __init__(self, settings: Settings = DEFAULTS) -> None:
        self._settings = settings
        self._limits: dict[str, dict[str, tuple[Limit, ...]]] = {}

    def quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        """Handler of the reflector of resourcequotas."""
        some = new or old
        assert some is not None
        here = self._limits.setdefault(some.metadata.namespace, {})
        here[some.metadata.name] = () if new is None else tuple(_limits(new, self._settings))
        if not here[some.metadata.name]:
            del here[some.metadata.name]
        if not here:
            del self._limits[some.metadata.namespace]

    def limits(self, namespace: str) -> bool:
        """Whether the namespace has any quota for GPUs."""
        return namespace in self._limits

    def refusal(
        self, state: ClusterState, allocations: Sequence[Allocation], ended: Iterable[str] = ()
    ) -> Reason | None:
        """Why pods of one namespace may not have these allocations together; None if they may.

        What they use already does not count against them, nor what the pods with the UIDs `ended` use: they will have
        ended by then.
        """

        def needed(limit: Limit) -> int:
            return sum(limit.of(state.added_by(one).peak) for one in allocations if one.vendor is limit.vendor)

        leaving = {*ended, *(one.uid for one in allocations)}
        found = next(self.shortfalls(state, allocations[0].namespace, needed, leaving), None)
        if found is None:
            return None
        limit, what = found.limit, NAMES[found.limit.field]
        who = "needs" if len(allocations) == 1 else f"its {len(allocations)} pods together need"
        text = f"{who} {{needed}} {what}, quota {plain_text(limit.quota)} leaves its namespace {{available}}"
        return Reason("quota", text, found.needed, found.available)

    def shortfalls(
        self, state: ClusterState, namespace: str, needed: Callable[[Limit], int], leaving: Collection[str]
    ) -> Iterator[Shortfall]:
        """The limits of a namespace that refuse what is needed of each, if the pods with the UIDs `leaving` use
        nothing any more."""
        for limit in (one for here in self._limits.get(namespace, {}).values() for one in here):
            amount = needed(limit)
            if not amount:
                continue
            gone = (state.held(uid) or state.bound(uid) for uid in leaving)
            freed = sum(limit.of(state.added_by(one).peak) for one in gone if one and limit.counts(one, namespace))
            others = limit.of(state.used(namespace, limit.vendor)) - freed
            if others + amount > limit.most:
                yield Shortfall(limit, amount, others)


def _limits(quota: ResourceQuota, settings: Settings) -> Iterator[Limit]:
    """The limits of memory, compute and GPUs. A quota with scopes is left to Kubernetes, which knows its pods."""
    if quota.spec.scopes or quota.spec.scope_selector is not None:
        return
    for key, written in quota.spec.hard.items():
        resource = next(key.removeprefix(prefix) for prefix in PREFIXES if key.startswith(prefix))
        dialect = settings.by_resource.get(resource)
        if dialect is None:
            continue
        units: dict[str | None, tuple[Literal["memory", "compute", "gpus"], int]] = {
            dialect.memory: ("memory", dialect.memory_unit),
            dialect.compute: ("compute", MILLI_PER_PERCENT),
        }
        if key.startswith(LIMITS) or (key.startswith(REQUESTS) and dialect.moves_count):
            units[dialect.count] = "gpus", 1
        if resource not in units:
            continue
        try:
            amount = parse_quantity(written)
        except ValueError:  # the API server accepts no such quantity
            continue
        field, unit = units[resource]
        yield Limit(quota.metadata.name, dialect.vendor, field, int(amount * unit))
