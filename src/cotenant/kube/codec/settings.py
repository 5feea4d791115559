# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The dialects of a cluster, and the defaults for what a pod does not state."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from cotenant.core.isolation import Granted, Refused, Rung
from cotenant.core.units import MiB, Percent
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.amd import AMD
from cotenant.kube.codec.cambricon import CAMBRICON, CAMBRICON_SMLU
from cotenant.kube.codec.claimed import Claimed
from cotenant.kube.codec.dialect import VENDORS, Dialect
from cotenant.kube.codec.gpushare import GPUSHARE, IADEEP
from cotenant.kube.codec.isolation import Isolation
from cotenant.kube.codec.keys import is_key
from cotenant.kube.codec.topology import TOPOLOGY
from cotenant.kube.codec.vgpu import VGPU
from cotenant.wire.text import printable

DIALECTS = (VGPU, GPUSHARE, TOPOLOGY, IADEEP, CAMBRICON, CAMBRICON_SMLU, AMD)
MOST_GPUS = 1024
"""Of one pod."""
MOST_MEMORY = MiB((1 << 20) - 1)
"""On one GPU: less than 1 TiB, so that an amount in bytes is refused."""


class Unmeasured(StrEnum):
    """What a pod gets whose memory its profile is to say, if there is no profile and the pod states no amount."""

    WHOLE = "whole"
    """The whole GPU, so that a profile can be measured."""
    REFUSE = "refuse"
    """Nothing: it waits until there is a profile."""


class MeasuredMemory(NamedTuple):
    """The memory that a workload needs by its profiles."""

    memory: MiB
    all_of: str | None = None
    """The type of GPU that has no more than this, though the peak and the margin are more; None: they fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How requests are read; for other names of resources, replace a dialect: `replace(VGPU, count=...)`."""

    dialects: tuple[Dialect, ...] = DIALECTS
    default_gpus: int = 1
    """Number of GPUs if memory or compute is requested and no number."""
    default_memory: MiB | None = None
    """On each GPU, if none is requested; None: all that the GPU has."""
    default_compute: Percent = Percent(0)
    """Of each GPU, if only a part of its memory is requested; 0 claims nothing and is not limited."""
    one_numa: bool = False
    """Whether all GPUs of a pod are on one NUMA node unless it says otherwise."""
    count_overhead: bool = True
    """Whether memory that the driver takes for itself (contexts, modules) counts against the memory of a container."""
    isolation: Isolation = Isolation.ENFORCED
    """Whether limits are enforced, in namespaces that `isolation_by_namespace` does not name."""
    isolation_by_namespace: Mapping[str, Isolation] = field(default_factory=dict, hash=False)
    unmeasured: Unmeasured = Unmeasured.WHOLE
    measured_memory: Callable[[str], MeasuredMemory | None] | None = field(default=None, compare=False)
    """Returns the memory that a workload needs by its profiles, None if there is no profile. None: profiles are not
    known here, as in the webhook and the agents."""

    granted_rung: Callable[[Rung | None, int], Granted | Refused | None] | None = field(default=None, compare=False)
    """Returns what holds a pod to its limits that wishes for a rung, or for none, and has at most so many GPUs in one
    container; None if no GPU of the cluster leaves a choice. None: the GPUs of the cluster are not known here."""

    claimed: Callable[[Pod], Claimed] | None = field(default=None, compare=False)
    """Returns what the containers of a pod request by ResourceClaims, by their names; InputError if a claim is missing
    or invalid. None: claims are not known here, as in the webhook and the agents."""

    known_amounts: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What `amounts_of` read before, by what it depends on."""

    by_resource: Mapping[str, Dialect] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The dialect of each resource."""

    def __post_init__(self) -> None:
        if len({dialect.name for dialect in self.dialects}) != len(self.dialects):
            raise InputError("two dialects have the same name")
        names = [name for dialect in self.dialects for name in dialect.resources]
        for name in names:
            if "/" not in name or not is_key(name):
                raise InputError(f"resource {printable(name[:80])!r}: expected a name such as example.com/gpu")
            if names.count(name) > 1:
                raise InputError(f"resource {name}: two dialects use it; each needs names of its own")
        for dialect in self.dialects:
            if dialect.name not in VENDORS:
                raise InputError(f"dialect {dialect.name}: no row of the table of vendors names it")
        owners = {name: dialect for dialect in self.dialects for name in dialect.resources}
        object.__setattr__(self, "by_resource", owners)
        _within("default GPUs", self.default_gpus, 1, MOST_GPUS)
        _within("default memory in MiB", 1 if self.default_memory is None else self.default_memory, 1, MOST_MEMORY)
        _within("default compute in percent", self.default_compute, 0, 100)


def isolation_in(namespace: str, settings: Settings) -> Isolation:
    """Who decides in a namespace whether limits are enforced."""
    return settings.isolation_by_namespace.get(namespace, settings.isolation)


def _within(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{what}: {value}, expected {least} to {most}")


DEFAULTS = Settings()
