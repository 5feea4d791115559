# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The table of vendors: everything vendor-specific except driver calls.

A new vendor is a member of `Vendor` with its row in `ROWS`, and an adapter module beside this one that reads its
library. Engines look things up here and never compare a vendor with another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from cotenant.wire.text import inflect


class Vendor(StrEnum):
    """Whose GPUs these are. The value is stored in journals and node annotations, so it never changes."""

    NVIDIA = "nvidia"
    CAMBRICON = "cambricon"
    AMD = "amd"
    SIMULATED = "simulated"

    @property
    def row(self) -> "Row":
        return ROWS[self]


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What holds a tenant to its limits on one GPU; None: nothing does."""

    memory: str | None = None
    compute: str | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The limits that nothing enforces."""
        return tuple(name for name, by in (("memory", self.memory), ("compute", self.compute)) if by is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One vendor."""

    title: str
    """The name as people write it."""
    adapter: str
    """The module that reads the vendor's library. It is imported only when it is needed, and has `open_backend`."""
    visible: tuple[str, ...]
    """Variables that list the GPUs of a process, in the words of the vendor's own runtime library."""
    visible_by_index: bool = False
    """Whether that list has indices on the node; else it has UUIDs."""
    runtime_variable: str | None = None
    """The variable by which the vendor's container runtime brings GPUs into a container."""
    runtime_none: str | None = None
    """The value of that variable that brings in none; None: it brings in none if it is not set."""
    cdi_kind: str | None = None
    """The kind of the vendor's CDI devices; None: the vendor has none, so there is no strict mode."""
    types: tuple[str, ...] = ()
    """Patterns that the names of its GPU types match; empty: any name. They also tell whose GPU is simulated."""
    dialects: tuple[str, ...] = ()
    """Names of the Kubernetes dialects in which pods request these GPUs."""
    other_systems: tuple[str, ...] = ()
    """Other GPU-sharing systems whose variables a process is given as well (`node.launch.OTHER_SYSTEMS`)."""
    enforces: Enforcement = Enforcement()
    """What holds tenants to their limits, if all that cotenant can bring is there."""
    preload: bool = False
    """Whether that is the vGPU library, which is preloaded into the processes of a tenant."""

    def unenforced(self, enforces: Enforcement | None = None) -> str | None:
        """One sentence on the limits that nothing enforces on these GPUs; None: all are enforced."""
        missing = (self.enforces if enforces is None else enforces).missing
        if not missing:
            return None
        limits = f"the {' and the '.join(missing)} {inflect(len(missing), 'limit')}"
        return (
            f"{limits} cannot be enforced on {self.title} GPUs: cotenant reserves the amounts, and a "
            "process that uses more takes it from its neighbours"
        )


_VGPU_LIBRARY = Enforcement("the vGPU library", "the vGPU library")

ROWS: Mapping[Vendor, Row] = {
    Vendor.NVIDIA: Row(
        title="NVIDIA",
        adapter="cotenant.node.devices.nvml",
        visible=("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
        runtime_variable="NVIDIA_VISIBLE_DEVICES",
        runtime_none="void",
        cdi_kind="nvidia.com/gpu",
        dialects=("vgpu", "gpushare", "topology", "iadeep"),
        other_systems=("gpushare", "vgpu"),
        enforces=_VGPU_LIBRARY,
        preload=True,
    ),
    Vendor.CAMBRICON: Row(
        title="Cambricon",
        adapter="cotenant.node.devices.cndev",
        visible=("MLU_VISIBLE_DEVICES",),
        visible_by_index=True,
        runtime_variable="CAMBRICON_VISIBLE_DEVICES",
        types=("MLU*",),
        dialects=("cambricon", "cambricon-smlu"),
    ),
    Vendor.AMD: Row(
        title="AMD",
        adapter="cotenant.node.devices.rocm",
        visible=("ROCR_VISIBLE_DEVICES",),
        runtime_variable="AMD_VISIBLE_DEVICES",
        runtime_none="none",
        types=("AMD*",),
        dialects=("amd",),
    ),
    Vendor.SIMULATED: Row(
        title="simulated",
        adapter="cotenant.node.devices.simulated",
        visible=("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
        visible_by_index=True,
        other_systems=("gpushare", "vgpu"),
        enforces=Enforcement("RLIMIT_DATA and the supervisor", "a CPU quota, or stopping and continuing"),
    ),
}

REAL = tuple(vendor for vendor in ROWS if vendor is not Vendor.SIMULATED)
"""Vendors whose drivers are queried, in this order."""
REAL_NAMES = tuple(vendor.value for vendor in REAL)


def vendor_of_type(gpu_type: str | None) -> Vendor:
    """The vendor that a simulated GPU of this type stands for; NVIDIA if no row knows the name."""
    name = gpu_type or ""
    known = (vendor for vendor in REAL if any(fnmatchcase(name, pattern) for pattern in vendor.row.types))
    return next(known, Vendor.NVIDIA)
