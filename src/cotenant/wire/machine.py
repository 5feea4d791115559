# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs and accounts of a machine as the daemon shows them, and requests about the machine."""

import msgspec

from cotenant.wire.reservations import GpuReservation


class UnmanagedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU that no job owns."""

    pid: int
    user: str
    program: str
    """its name, without arguments"""
    memory_mib: int | None = None
    utilisation: float | None = None


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU and its tenants."""

    index: int
    uuid: str
    type: str
    memory_mib: int
    free_memory_mib: int
    free_compute: int
    """thousandths of a whole GPU"""
    compute: int = 1000
    """thousandths of a whole GPU that it has in all: less if it is a MIG instance"""
    mig: str | None = None
    """profile, if it is a MIG instance"""
    card: str | None = None
    """UUID of the GPU that was partitioned, if it is a MIG instance"""
    used_mib: int | None = None
    utilisation: float | None = None
    healthy: bool = True
    fault: str | None = None
    """why it is not healthy"""
    cordoned: bool = False
    isolation: tuple[str, ...] = ()
    """the rungs of the isolation ladder that it has"""
    mps: bool = False
    """its tenants use it through MPS, and it takes no others"""
    only: str | None = None
    """the rung of its tenants, if it takes no other beside them"""
    tenants: tuple[str, ...] = ()
    reservations: tuple[GpuReservation, ...] = ()
    """that have not ended, the first to start first"""
    unmanaged: tuple[UnmanagedProcess, ...] = ()
    """processes that no job owns; their memory is not free for jobs"""
    temperature_celsius: float | None = None
    power_watts: float | None = None


class AccountView(msgspec.Struct, frozen=True, kw_only=True):
    """A user or a group: what it uses, has used, and may use at most. None: not limited, or not known."""

    account: str
    """`user`, or `group` and `group/user`"""
    weight: float
    gpus: float
    """GPUs in use; parts of GPUs count as parts"""
    memory_mib: int
    running: int
    queued: int
    fair_gpus: float | None = None
    """its fair share of the GPUs, if it runs or waits"""
    used_gpu_hours: float
    """with the decay of fair share"""
    week_gpu_hours: float
    """in the last seven days"""
    most_gpus: float | None = None
    most_memory_mib: int | None = None
    most_running: int | None = None
    most_queued: int | None = None
    most_week_gpu_hours: float | None = None
    cpus: float = 0.0
    """that running jobs have requested"""
    host_memory_mib: int = 0
    """the same, memory of the host"""
    most_cpus: float | None = None
    most_host_memory_mib: int | None = None


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a GPU is drained."""

    evict: bool = False
    """stop its tenants and queue them again; else they run to their end"""


class WebLink(msgspec.Struct, frozen=True, kw_only=True):
    """An address of the pages that signs a browser in, once and soon."""

    url: str
    act: bool
    """whether the session can cancel and hold jobs and cordon GPUs"""
