# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a dialect is: names of resources with their units, annotations, and the variables its programs expect.

To add one, write a table in a file of its own and put it into `dialects.DIALECTS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cotenant.core.model import Gpus
from cotenant.core.units import MiB
from cotenant.node.launch import Launch

GIB = MiB(1024)


class Vendor(StrEnum):
    """Whose cards a dialect means; a pod runs on those of one vendor."""

    NVIDIA = "nvidia"
    CAMBRICON = "cambricon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What one container was given, for a dialect to say in its own words."""

    launch: Launch
    """what the one-machine engine would tell a process on the same GPUs"""
    gpus: Gpus
    """indices on the node"""
    pod_memory: MiB
    """of all containers of the pod that stay, together"""
    low: bool
    """of the lower class: it waits while others work on its GPU"""
    app: int | None = None
    """its position among the pod's app containers; None: it is an init container or a sidecar"""


Variables = Callable[["Dialect", Given], Mapping[str, str]]
Annotations = Callable[["Dialect", Sequence[Given], int], Mapping[str, str]]
"""of all containers of a pod that speak the dialect, and the time in nanoseconds since 1970"""


def nothing(dialect: "Dialect", given: Sequence[Given], moment: int) -> Mapping[str, str]:
    """No annotations at all."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One way to ask for GPUs. All amounts are on each card; names that are None cannot be asked for."""

    name: str
    vendor: Vendor = Vendor.NVIDIA
    count: str
    """resource: how many cards"""
    memory: str | None = None
    memory_unit: MiB = MiB(1)
    memory_percent: str | None = None
    compute: str | None = None
    """resource: percent of a card's compute"""
    priority: str | None = None
    """resource: 0 is high, 1 is low"""
    alone: bool = False
    """whether all of a card's compute means a card that nobody else uses, whatever memory is asked for"""
    one_share: bool = False
    """whether a pod can be given a share of one card only, since nobody could be told of more"""
    types: str = "*"
    """what the types of its cards look like"""
    use_types: str | None = None
    """annotations: parts of the names of card types, or UUIDs"""
    avoid_types: str | None = None
    use_uuids: str | None = None
    avoid_uuids: str | None = None
    one_numa: str | None = None
    variables: Variables
    """for each container"""
    annotations: Annotations = nothing
    """for the pod: what other programs look for there"""

    @property
    def resources(self) -> tuple[str, ...]:
        names = (self.count, self.memory, self.memory_percent, self.compute, self.priority)
        return tuple(name for name in names if name is not None)


def in_units(memory: MiB, unit: MiB) -> int:
    """Rounded down, so that nobody is promised more than there is; but never to nothing."""
    return max(1, memory // unit) if memory else 0
