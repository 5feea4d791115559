# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine behind one small interface, so that no engine cares whether they are real."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cotenant.core.model import Gpus, Machine
from cotenant.core.units import MiB
from cotenant.errors import DeviceError
from cotenant.node.devices.vendors import Vendor

MACHINE = "local"
"""what the one machine is called in slots and placements"""


class NoDriverError(DeviceError):
    """The vendor's library is not installed: most machines have GPUs of one vendor, or none."""


class ProcessUsage(NamedTuple):
    """What one process uses of a GPU; None where it cannot be known."""

    pid: int
    memory_mib: MiB | None
    utilisation: int | None
    """percent"""
    job: str | None = None
    """whose it is; None: nobody's that we started"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """What is used of a GPU right now; None where it cannot be known."""

    uuid: str
    used_mib: MiB | None
    utilisation: int | None
    """percent of the time, or of its cores or SMs, since the last look"""
    processes: tuple[ProcessUsage, ...] | None
    bandwidth: int | None = None
    """percent of what its memory can carry, else of the time in which it was read or written"""
    pcie_mib_s: float | None = None
    """to and from it; where asking takes long, only of a card with a single job"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job as a device needs to know it: where it sits and whose descendants its processes are."""

    job: str
    gpus: Gpus
    supervisor: int
    """a process id"""
    baseline: MiB = MiB(0)
    """memory of the runtime itself, not charged to a simulated device"""


class Backend(Protocol):
    """The devices of one machine."""

    @property
    def vendor(self) -> Vendor: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for the user: first which devices these are, then what is special about them."""

    def machine(self) -> Machine:
        """What is installed, with its present health."""

    def usage(self, jobs: Sequence[Running] = ()) -> list[GpuUsage]:
        """What is used of each GPU, in the order of `machine().gpus`, these jobs told apart; may wait for a driver."""

    def cores(self, gpus: Gpus) -> tuple[int, ...]:
        """The CPU cores that a job on these GPUs is kept on; empty: wherever the kernel puts it."""

    def faults(self) -> dict[str, str]:
        """Why each unhealthy GPU is unhealthy, by UUID."""

    def close(self) -> None: ...
