# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""ResourceQuota for memory and compute of GPUs: what a namespace takes of all cards together.

Kubernetes' own count of such resources is per container and knows neither how many cards it is for nor what a percent
is of. Ours is of what the books say is taken. A quota in the words of one dialect holds for all pods on cards of that
vendor: memory is memory, whatever it was asked for as.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from cotenant.core.model import Reason
from cotenant.core.placement.checks import plain_text
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.objects import Metadata, Quantities
from cotenant.kube.codec.quantity import parse_quantity
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.state.accounts import Seat, Used
from cotenant.kube.state.books import Books
from cotenant.node.devices.vendors import Vendor

PREFIXES = ("requests.", "limits.", "")
MILLI_PER_PERCENT = 10


class QuotaSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a namespace may have."""

    hard: Quantities = {}
    scopes: tuple[str, ...] = ()
    scope_selector: Mapping[str, object] | None = None


class ResourceQuota(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A quota of a namespace."""

    metadata: Metadata = Metadata()
    spec: QuotaSpec = QuotaSpec()


QUOTAS = Kind("resourcequotas", ResourceQuota)


class Limit(NamedTuple):
    """The most of one thing."""

    quota: str
    """its name"""
    vendor: Vendor
    memory: bool
    """of memory in MiB, otherwise of compute in thousandths of a card"""
    most: int

    def of(self, used: Used) -> int:
        return used.memory if self.memory else used.compute


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
        """Whether there is any for GPUs in this namespace."""
        return namespace in self._limits

    def refusal(self, books: Books, seat: Seat) -> Reason | None:
        """Why a pod may not take this seat, None where it may; what it already takes does not count against it."""
        own = books.held(seat.uid) or books.seat_of(seat.uid)
        for limit in (one for here in self._limits.get(seat.namespace, {}).values() for one in here):
            if limit.vendor is not seat.vendor:
                continue
            used, needed = limit.of(books.used(seat.namespace, limit.vendor)), limit.of(seat.peak)
            others = used - (0 if own is None or own.vendor is not limit.vendor else limit.of(own.peak))
            if needed and others + needed > limit.most:
                what = "MiB of GPU memory" if limit.memory else "milli-GPU"
                text = f"needs {{needed}} {what}, quota {plain_text(limit.quota)} leaves its namespace {{available}}"
                return Reason("quota", text, needed, max(0, limit.most - others))
        return None


def _limits(quota: ResourceQuota, settings: Settings) -> Iterator[Limit]:
    """Of memory and compute; what is for some pods only is left to Kubernetes, which knows for which."""
    if quota.spec.scopes or quota.spec.scope_selector is not None:
        return
    for key, written in quota.spec.hard.items():
        resource = next(key.removeprefix(prefix) for prefix in PREFIXES if key.startswith(prefix))
        dialect = settings.by_resource.get(resource)
        if dialect is None or resource not in (dialect.memory, dialect.compute):
            continue
        try:
            amount = parse_quantity(written)
        except ValueError:  # the API server takes none such
            continue
        memory = resource == dialect.memory
        unit = dialect.memory_unit if memory else MILLI_PER_PERCENT
        yield Limit(quota.metadata.name, dialect.vendor, memory, int(amount * unit))
