# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs through ROCm SMI (`librocm_smi64.so`). The only module that knows its structures and status numbers.

A GPU is named by its index. Its UUID is `GPU-` with its unique ID, the form that ROCR_VISIBLE_DEVICES takes.
"""

import ctypes
import os
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from cotenant.core.model import Link
from cotenant.core.units import MIB_BYTES, MiB
from cotenant.errors import DeviceError
from cotenant.node.devices.backend import ProcessUsage
from cotenant.node.devices.links import numa_node
from cotenant.node.devices.polled import Identity, PolledBackend, Reading, load_shared_library
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.text import counted

SUCCESS = 0
UNANSWERED = frozenset({1, 2, 4, 9, 10, 14})
"""Status values that say nothing about the health of a GPU: invalid arguments, not supported, no permission, not
implemented, not found, no data."""
VRAM = 0
"""Type of memory: that of the GPU."""
MEMORY_BLOCK = 1
"""The part of a GPU whose errors are counted: its memory controller."""
XGMI = 2
"""Type of link."""
NO_OCCUPANCY = 0xFFFFFFFF
LONGEST_NAME = 256


class ErrorCount(ctypes.Structure):
    _fields_ = (("correctable", ctypes.c_uint64), ("uncorrectable", ctypes.c_uint64))


class ProcessInfo(ctypes.Structure):
    """Memory in bytes, occupancy in percent of the compute units."""

    _fields_ = (
        ("pid", ctypes.c_uint32),
        ("pasid", ctypes.c_uint32),
        ("vram", ctypes.c_uint64),
        ("sdma", ctypes.c_uint64),
        ("occupancy", ctypes.c_uint32),
    )


def open_backend() -> PolledBackend:
    """The AMD GPUs; DeviceError if no driver answers."""
    home = os.environ.get("ROCM_PATH") or "/opt/rocm"
    names = ("librocm_smi64.so", "librocm_smi64.so.1", f"{home}/lib/librocm_smi64.so")
    return PolledBackend(RocmSmi(load_shared_library(names, Vendor.AMD.row.title)))


class RocmSmi:
    """The library in a session of ours."""

    vendor = Vendor.AMD

    def __init__(self, library: Any, sysfs: Path = Path("/sys")) -> None:
        self._library, self._sysfs = library, sysfs
        self._errors: dict[int, int] = {}
        """Uncorrectable errors at the last poll, by unique ID."""

    def open(self) -> int:
        title = self.vendor.row.title
        status = self._library.rsmi_init(ctypes.c_uint64(0))
        if status != SUCCESS:
            raise DeviceError(f"no {title} driver answers ({self._error(status)})")
        count = ctypes.c_uint32()
        status = self._library.rsmi_num_monitor_devices(ctypes.byref(count))
        if status != SUCCESS:
            self.close()
            raise DeviceError(f"the {title} driver does not list its GPUs ({self._error(status)})")
        return count.value

    def close(self) -> None:
        self._library.rsmi_shut_down()

    def uuid(self, index: int) -> str:
        return f"GPU-{self._unique_id(index):016x}"

    def identity(self, index: int) -> Identity:
        name = ctypes.create_string_buffer(LONGEST_NAME)
        has_name = self._query("rsmi_dev_name_get", index, name, ctypes.c_size_t(LONGEST_NAME))
        text = name.value.decode(errors="replace") if has_name else ""
        # The row of the vendor promises that all types begin with AMD; the library may say a code name first.
        type_ = text if text.startswith("AMD") else f"AMD {text}".strip()
        total = self._number("rsmi_dev_memory_total_get", index, VRAM)
        return Identity(type_, MiB((total or 0) // MIB_BYTES), self._numa(index))

    def fault(self, index: int) -> str | None:
        unique_id, errors = self._unique_id(index), ErrorCount()
        self._number("rsmi_dev_memory_usage_get", index, VRAM)
        if not self._query("rsmi_dev_ecc_count_get", index, ctypes.c_uint64(MEMORY_BLOCK), ctypes.byref(errors)):
            return None
        before = self._errors.setdefault(unique_id, errors.uncorrectable)
        self._errors[unique_id] = errors.uncorrectable
        new = errors.uncorrectable - before
        return counted(new, "new uncorrectable memory error") if new > 0 else None

    def reading(self, index: int) -> Reading:
        used, busy = self._number("rsmi_dev_memory_usage_get", index, VRAM), ctypes.c_uint32()
        has_busy = self._query("rsmi_dev_busy_percent_get", index, ctypes.byref(busy))
        return Reading(
            None if used is None else MiB(used // MIB_BYTES),
            min(100, busy.value) if has_busy else None,
            self._processes(index),
        )

    def links(self, indices: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        for a, b in combinations(indices, 2):
            hops, kind = ctypes.c_uint64(), ctypes.c_uint32()
            if self._query("rsmi_topo_get_link_type", a, b, ctypes.byref(hops), ctypes.byref(kind)):
                # xGMI connects GPUs as NVLink does. Over PCIe the library knows no more than that it is PCIe.
                link = Link.NVLINK if kind.value == XGMI and hops.value == 1 else Link.SYS
                yield from ((a, b, link), (b, a, link))

    def _unique_id(self, index: int) -> int:
        found = ctypes.c_uint64()
        status = self._library.rsmi_dev_unique_id_get(index, ctypes.byref(found))
        if status != SUCCESS or not found.value:
            raise DeviceError(f"GPU {index} has no unique ID ({self._error(status)})")
        return found.value

    def _numa(self, index: int) -> int | None:
        pci = self._number("rsmi_dev_pci_id_get", index)
        # Domain, bus and device are bit fields of one number.
        return None if pci is None else numa_node(self._sysfs, (pci >> 32, pci >> 8 & 0xFF, pci >> 3 & 0x1F))

    def _processes(self, index: int) -> tuple[ProcessUsage, ...] | None:
        count = ctypes.c_uint32()
        if not self._query("rsmi_compute_process_info_get", None, ctypes.byref(count)):
            return None
        found = (ProcessInfo * count.value)()
        # More may have started since they were counted; those are seen at the next poll.
        self._library.rsmi_compute_process_info_get(found, ctypes.byref(count))
        # The list of all processes has no amounts: they are read for each process and GPU.
        processes, own = [], ProcessInfo()
        for one in found[: count.value]:
            if self._query("rsmi_compute_process_info_by_device_get", one.pid, index, ctypes.byref(own)):
                occupancy = None if own.occupancy == NO_OCCUPANCY else min(100, own.occupancy)
                processes.append(ProcessUsage(int(one.pid), MiB(own.vram // MIB_BYTES), occupancy))
        return tuple(processes)

    def _number(self, function: str, *arguments: int) -> int | None:
        found = ctypes.c_uint64()
        return found.value if self._query(function, *arguments, ctypes.byref(found)) else None

    def _query(self, function: str, *arguments: Any) -> bool:
        """Calls a function; False if the library or the GPU does not support it, DeviceError if the GPU has a fault."""
        call = getattr(self._library, function, None)  # an older library may lack the function
        if call is None:
            return False
        status = call(*arguments)
        if status != SUCCESS and status not in UNANSWERED:
            raise DeviceError(self._error(status))
        return bool(status == SUCCESS)

    def _error(self, status: int) -> str:
        text = ctypes.c_char_p()
        if self._library.rsmi_status_string(status, ctypes.byref(text)) == SUCCESS and text.value is not None:
            return " ".join(text.value.decode(errors="replace").split())
        return f"ROCm SMI status {status}"
