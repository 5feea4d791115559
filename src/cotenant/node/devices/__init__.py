# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine behind one small interface, so that no engine cares whether they are real."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from cotenant.core.model import Gpus, Machine
from cotenant.core.units import MiB
from cotenant.errors import DeviceError, InputError

MACHINE = "local"
"""what the one machine is called in slots and placements"""
DEFAULT_SIMULATED = 2
"""devices that are simulated where no GPU is found and nobody said how many"""


class Kind(StrEnum):
    """What stands behind a GPU."""

    NVIDIA = "nvidia"
    SIMULATED = "simulated"


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
    def kind(self) -> Kind: ...

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


def find_backend(
    simulate: int | None = None,
    memory: MiB | None = None,
    cores: int | None = None,
    *,
    usual_memory: Mapping[int, MiB] | None = None,
) -> Backend:
    """The real GPUs where a driver answers; else simulated ones, as also when `simulate` says how many.

    `memory` and `cores` are those of each simulated GPU; without `memory`, `usual_memory` says what each of so many had
    before, so that the same cards come back.
    """
    # Imported late: a machine without a driver need not load the other half, and both import this module.
    from cotenant.node.devices.simulated import SimulatedBackend

    def simulated(count: int, because: str | None = None) -> Backend:
        size = (usual_memory or {}).get(count) if memory is None else memory
        return SimulatedBackend(count, memory=size, cores=cores, because=because)

    if simulate is not None:
        return simulated(simulate)
    from cotenant.node.devices.nvml import NvmlBackend, load_library

    try:
        real = NvmlBackend(load_library())
    except DeviceError as error:
        return simulated(DEFAULT_SIMULATED, str(error))
    if memory is not None or cores is not None:
        real.close()
        raise InputError("memory and cores describe simulated GPUs, and this machine has real ones; add --simulate N")
    return real
