# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is sampled, of what: the one table of kinds of entities and their quantities.

A sample is stored as the numbers of its kind in this order, so a new quantity is appended to its kind, and none is ever
removed or moved.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GPU: Final = "gpu"
TENANT: Final = "tenant"
QUEUE: Final = "queue"

QUANTITIES: Mapping[str, Mapping[str, str]] = {
    GPU: {
        "memory_allocated_mib": "memory that placed jobs were promised, in MiB",
        "memory_used_mib": "memory in use, in MiB",
        "memory_mib": "memory that it has, in MiB",
        "compute_allocated": "compute that placed jobs were promised, as a part of the whole GPU from 0 to 1",
        "utilisation": "percent of the time in which it computed",
        "tenants": "number of jobs or pods on it",
    },
    TENANT: {
        "memory_used_mib": "memory in use, summed over its GPUs, in MiB",
        "memory_limit_mib": "most memory that it may use, summed over its GPUs, in MiB",
        "device_share": "percent of its GPUs' time that it used",
        "speed": "throughput divided by its throughput alone on the GPU",
        "batch": "batch size",
        "predicted_speed": "the speed that was predicted beside its neighbours",
    },
    QUEUE: {
        "waiting": "number of jobs or pods that wait",
        "running": "number of jobs or pods that have a slot",
        "gpus": "GPUs that there are",
        "gpus_occupied": "GPUs with tenants; of one namespace, each divided by the number of its tenants",
        "gpus_shared": "GPUs with at least two tenants",
        "gpus_of_tenants": "GPUs, each counted once for each of its tenants",
        "gpus_measured": "GPUs whose utilisation is known",
        "gpus_busy": "time in which these GPUs computed: 1 is one GPU all the time",
        "memory_mib": "memory of the GPUs whose memory in use is known, in MiB",
        "memory_used_mib": "memory in use of these GPUs, in MiB",
    },
}
"""the meaning of each quantity, by kind of entity"""


@dataclass(frozen=True, slots=True)
class Entity:
    """A GPU, a tenant or a queue whose quantities are sampled."""

    kind: str
    name: str
    """unique among its kind: UUID of a GPU, ID of a job, NAMESPACE/POD"""
    node: str = ""
    """the machine; empty: the only one"""
    owner: str = ""
    """the user or namespace that it belongs to; empty: the owner of the daemon"""


@dataclass(frozen=True, slots=True)
class Sample:
    """The quantities of an entity at one time; those that are not known are left out."""

    entity: Entity
    values: Mapping[str, float | None]


def pack(kind: str, values: Mapping[str, float | None]) -> bytes:
    """The stored form: 32-bit numbers in the order of the table; NaN for what is not known."""
    names = QUANTITIES[kind]
    if not values.keys() <= names.keys():
        raise ValueError(f"{kind} has no quantity {', '.join(sorted(values.keys() - names.keys()))}")
    numbers = [math.nan if (value := values.get(name)) is None else value for name in names]
    return struct.pack(f"<{len(numbers)}f", *(min(max(one, -3e38), 3e38) if one == one else one for one in numbers))


def unpack(content: bytes) -> tuple[float, ...]:
    """The numbers of a stored sample; an older version stored fewer, a newer one more."""
    count = len(content) // 4
    return struct.unpack(f"<{count}f", content[: 4 * count])


def index_of(kind: str, quantity: str) -> int:
    """The place of a quantity among the stored numbers; ValueError if its kind has none of that name."""
    names = list(QUANTITIES.get(kind, ()))
    if quantity not in names:
        raise ValueError(f"{kind} has no quantity {quantity}; expected one of {', '.join(names) or 'none'}")
    return names.index(quantity)
