# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a check is: a rule that keeps some GPUs of a node for a demand, or refuses with a reason.

The rules themselves are in `checks.py`. A check with a name and a function is right everywhere, unless it reads labels
(`labels`) or judges sets of GPUs (`of_sets`); the other fields only make it fast.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from functools import reduce
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cotenant.core.cluster import Node
from cotenant.core.model import Demand, Machine, Reason

NO_FLOOR = -(1 << 62)
"""less than can ever be free"""

Amounts = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Reads(Flag):
    """The parts of a node that a check looks at. What it does not read cannot change its answer."""

    TYPE = auto()
    """the type of each GPU"""
    HARDWARE = auto()
    """all else in which two machines of one kind agree: memory, health, NUMA nodes, links, labels (`Machine.kind`)"""
    AMOUNTS = auto()
    """what is free on the node and on each GPU"""
    TENANTS = auto()
    """the tenants of each GPU"""
    NAMES = auto()
    """UUIDs and the name of the node"""
    EVERYTHING = TYPE | HARDWARE | AMOUNTS | TENANTS | NAMES


class GpuColumns(Protocol):
    """The GPUs of many nodes as arrays: a row for each GPU index, a column for each node (`gpu_arrays.py`).

    Arrays of nodes have one dimension, so they broadcast over the rows of GPUs.
    """

    @property
    def compute(self) -> Amounts:
        """Free milli-GPU of each GPU."""

    @property
    def compute_capacity(self) -> Amounts:
        """Milli-GPU that each GPU has in all."""

    @property
    def memory(self) -> Amounts:
        """Free MiB of each GPU."""

    @property
    def memory_capacity(self) -> Amounts:
        """MiB that each GPU has in all."""

    @property
    def slots(self) -> Amounts:
        """Free share slots of each GPU."""

    @property
    def slot_capacity(self) -> Amounts:
        """Share slots that each GPU has in all."""

    @property
    def usable(self) -> Mask:
        """Whether each GPU is healthy and not cordoned."""

    @property
    def type(self) -> Amounts:
        """Index of the type of each GPU in `type_names`; -1 if the node has no such GPU."""

    @property
    def type_names(self) -> Sequence[str]:
        """All GPU types that were seen."""

    @property
    def profile(self) -> Amounts:
        """Index of the MIG profile of each GPU in `profiles`; -1 if the node has no such GPU."""

    @property
    def profiles(self) -> Sequence[str | None]:
        """All MIG profiles that were seen; the first is None, of GPUs that are no MIG instance."""

    @property
    def cpu(self) -> Amounts:
        """Free milli-CPU of each node, very large if it is not counted."""

    @property
    def host_memory(self) -> Amounts:
        """Free MiB of host memory of each node, very large if it is not counted."""

    @property
    def machines(self) -> Sequence[Machine]:
        """The machine of each node."""


class Floors(NamedTuple):
    """The least amounts that must be free: on the node for the host's, on each GPU for the others."""

    cpu: int = NO_FLOOR
    host_memory: int = NO_FLOOR
    compute: int = NO_FLOOR
    memory: int = NO_FLOOR
    slots: int = NO_FLOOR

    def masks(self, gpus: GpuColumns) -> Iterator[Mask]:
        """For each amount with a floor: whether each GPU has it, or each node if it is the host's."""
        for name, floor in zip(self._fields, self, strict=True):
            if floor > NO_FLOOR:
                yield getattr(gpus, name) >= floor

    def mask(self, gpus: GpuColumns) -> Mask:
        """All of them together."""
        met = list(self.masks(gpus))
        return reduce(np.logical_and, met) if met else gpus.type >= 0


Narrow = Callable[[Demand, Node, list[int]], list[int] | Reason]


def always(demand: Demand) -> bool:
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """One rule of feasibility: its name, the demands that it applies to, and how it narrows the GPUs of a node."""

    name: str
    """of the `Reason` that it gives"""
    narrow: Narrow
    """From a demand, a node and the GPUs that earlier checks kept: those that it keeps too, in the same order, or a
    Reason if they are fewer than `demand.gpus`. It judges each GPU, or the node, for itself (but see `of_sets`). If the
    demand needs no GPU, the list may be empty."""
    applies: Callable[[Demand], bool] = always
    """Whether it can refuse such a demand anything; if not, it is left out."""
    reads: Reads = Reads.EVERYTHING
    """What it looks at. The less it reads, the more nodes and GPUs share one answer."""
    labels: tuple[str, ...] = ()
    """Labels of nodes that it reads. Every engine knows a node by these alone (`NODE_LABELS`)."""
    of_sets: bool = False
    """It asks for a set of GPUs with some property, as links and NUMA nodes do. Such checks come last: an earlier one
    could otherwise leave enough GPUs and break the set."""
    floors: Callable[[Demand], Floors | None] | None = None
    """The same rule as least amounts, if it is nothing else for that demand. All floors are compared in one pass."""
    mask: Callable[[Demand, GpuColumns], Mask] | None = None
    """The same rule for all nodes at once: whether it keeps each GPU (two dimensions), or each node (one). Floors need
    none. A check with neither is right, and slow: nodes are checked one by one for all demands that it applies to."""
    nearness: Callable[[GpuColumns], Amounts] | None = None
    """In arrays, the amount that says which refused node is nearest to fitting: of each node, or of each GPU (used if
    one GPU is needed). None: the number of GPUs that it keeps."""

    def mask_of(self, demand: Demand, gpus: GpuColumns) -> Mask | None:
        """The rule in arrays; None if it has no such form for the demand."""
        floors = None if self.floors is None else self.floors(demand)
        if floors is not None:
            return floors.mask(gpus)
        return None if self.mask is None else self.mask(demand, gpus)


def enough(demand: Demand, left: list[int], check: str, text: str) -> list[int] | Reason:
    """These GPUs if they are as many as the demand needs, else a Reason with both numbers."""
    return left if len(left) >= demand.gpus else Reason(check, text, demand.gpus, len(left))


def plain_text(name: str) -> str:
    """A name that a user chose, safe inside a format string."""
    return name.replace("{", "{{").replace("}", "}}")
