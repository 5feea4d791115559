# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The interface to the GPUs of this machine: the same for every vendor and for simulated GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from cotenant.core.model import Gpus, Machine
from cotenant.core.units import WHOLE_GPU, MiB
from cotenant.errors import DeviceError
from cotenant.node.devices.vendors import Vendor

MACHINE = "local"
"""Name of the one machine in slots and placements."""


class NoDriverError(DeviceError):
    """The vendor's library is not installed: most machines have GPUs of one vendor, or none."""


class ProcessUsage(NamedTuple):
    """What one process uses of a GPU; None if it is not known."""

    pid: int
    memory_mib: MiB | None
    utilisation: int | None
    """Percent."""
    job: str | None = None
    """The job that it belongs to; None: it belongs to none of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """What is used of a GPU right now; None if it is not known."""

    uuid: str
    used_mib: MiB | None
    utilisation: int | None
    """Percent of the time, or of its cores or SMs, since the last poll."""
    processes: tuple[ProcessUsage, ...] | None
    bandwidth: int | None = None
    """Percent of the bandwidth of its memory, or else of the time in which it was read or written."""
    pcie_mib_s: float | None = None
    """Traffic to and from it; if measuring takes long, only of a GPU with a single job."""
    temperature_celsius: float | None = None
    power_watts: float | None = None


class KnownGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as an earlier process listed it."""

    uuid: str
    type: str
    memory: int
    """MiB"""
    mig: str | None = None
    card: str | None = None
    part: int = WHOLE_GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job as a backend needs to know it: its GPUs, and the process whose descendants are the job's processes."""

    job: str
    gpus: Gpus
    supervisor: int
    """Process ID."""
    baseline: MiB = MiB(0)
    """Memory of the runtime itself, which is not charged to a simulated GPU."""


class Backend(Protocol):
    """The GPUs of one machine."""

    @property
    def vendor(self) -> Vendor: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for the user: first which GPUs these are, then what is special about them."""

    def machine(self) -> Machine:
        """The installed GPUs, with their present health."""

    def usage(self, jobs: Sequence[Running] = ()) -> list[GpuUsage]:
        """The usage of each GPU, in the order of `machine().gpus`, by these jobs; may wait for a driver."""

    def cores(self, gpus: Gpus) -> tuple[int, ...]:
        """The CPU cores that a job on these GPUs is pinned to; empty: it is not pinned."""

    def faults(self) -> dict[str, str]:
        """Why each unhealthy GPU is unhealthy, by UUID."""

    def absent(self) -> frozenset[str]:
        """The UUIDs of GPUs that no longer exist: jobs know GPUs by index, so they stay in the list as unhealthy."""

    def close(self) -> None: ...
