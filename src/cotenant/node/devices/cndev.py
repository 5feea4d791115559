# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Cambricon MLUs through CNDEV (`libcndev.so`). The only module that knows its structures and error numbers.

Most structures begin with the version of the interface that the caller was written for; the library fills in what that
version had. A GPU is named by a handle, which the library gives for an index.
"""

import ctypes
import os
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from cotenant.core.model import Link
from cotenant.core.units import MiB
from cotenant.errors import DeviceError
from cotenant.node.devices.backend import ProcessUsage
from cotenant.node.devices.links import numa_node
from cotenant.node.devices.polled import Identity, PolledBackend, Reading, load_shared_library
from cotenant.node.devices.vendors import Vendor

VERSION = 6
"""Version of the interface that the structures below have."""
SUCCESS, INSUFFICIENT_SPACE = 0, 9
UNANSWERED = frozenset({3, 5, 10, 13, 14})
"""Errors that say nothing about the health of a GPU: unsupported version, invalid argument, not supported, no
permission, not found."""
GOOD = 1
"""Value of `health` of a healthy GPU. The two states beside it are zero in older drivers, so they decide nothing."""
KIB_IN_MIB = 1024
NAME_OF_GPU = "cndevGetCardNameStringByDevId"
FEWEST_PROCESSES, MOST_PROCESSES = 16, 4096
RELATIONS = {1: Link.PSB, 2: Link.PIX, 3: Link.PXB, 4: Link.PHB, 5: Link.NODE, 6: Link.SYS}
"""How two MLUs are connected over PCIe, by CNDEV's number."""


class CardInfo(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("number", ctypes.c_uint))


class Uuid(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("uuid", ctypes.c_char * 37), ("ncs", ctypes.c_uint64))


class MemoryInfoV2(ctypes.Structure):
    """All in MiB; this structure carries no version."""

    _fields_ = (
        ("physical_total", ctypes.c_int64),
        ("physical_used", ctypes.c_int64),
        ("reserved_memory", ctypes.c_int64),
        ("virtual_total", ctypes.c_int64),
        ("virtual_used", ctypes.c_int64),
        ("global_memory", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 16),
    )


class UtilizationInfo(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("average", ctypes.c_int), ("core", ctypes.c_int * 80))


class HealthState(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("health", ctypes.c_int),
        ("device_state", ctypes.c_int),
        ("driver_state", ctypes.c_int),
    )


class PcieInfo(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("subsystem_id", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("vendor", ctypes.c_uint16),
        ("subsystem_vendor", ctypes.c_uint16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("function", ctypes.c_uint),
        ("physical_slot", ctypes.c_char_p),
        ("slot", ctypes.c_int),
    )


class NumaNode(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("node", ctypes.c_int))


class ProcessInfo(ctypes.Structure):
    """Memory in KiB."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("pid", ctypes.c_uint),
        ("physical_used", ctypes.c_uint64),
        ("virtual_used", ctypes.c_uint64),
    )


class Relationship(ctypes.Structure):
    _fields_ = (("version", ctypes.c_int), ("relation", ctypes.c_int))


def open_backend() -> PolledBackend:
    """The Cambricon MLUs; DeviceError if no driver answers."""
    home = os.environ.get("NEUWARE_HOME") or "/usr/local/neuware"
    names = ("libcndev.so", f"{home}/lib64/libcndev.so")
    library = load_shared_library(names, Vendor.CAMBRICON.row.title)
    for name in ("cndevGetErrorString", NAME_OF_GPU):
        if hasattr(library, name):
            getattr(library, name).restype = ctypes.c_char_p
    return PolledBackend(Cndev(library))


class Cndev:
    """The library in a session of ours."""

    vendor = Vendor.CAMBRICON

    def __init__(self, library: Any, sysfs: Path = Path("/sys")) -> None:
        self._library, self._sysfs = library, sysfs

    def open(self) -> int:
        title = self.vendor.row.title
        status = self._library.cndevInit(0)
        if status != SUCCESS:
            raise DeviceError(f"no {title} driver answers ({self._error(status)})")
        counted = CardInfo(VERSION)
        status = self._library.cndevGetDeviceCount(ctypes.byref(counted))
        if status != SUCCESS:
            self.close()
            raise DeviceError(f"the {title} driver does not list its GPUs ({self._error(status)})")
        return int(counted.number)

    def close(self) -> None:
        self._library.cndevRelease()

    def uuid(self, index: int) -> str:
        found = Uuid(VERSION)
        self._require("cndevGetUUID", ctypes.byref(found), self._handle(index))
        return f"MLU-{found.uuid.decode(errors='replace')}"

    def identity(self, index: int) -> Identity:
        handle = self._handle(index)
        name_of = getattr(self._library, NAME_OF_GPU, None)  # an older driver does not have it
        name = None if name_of is None else name_of(handle)
        text = "" if name is None else name.decode(errors="replace")
        memory = self._memory(handle)
        # The row of the vendor promises that all types begin with MLU, and some of its products do not.
        type_ = text if text.startswith("MLU") else f"MLU {text}".strip()
        return Identity(type_, MiB(0 if memory is None else memory.physical_total), self._numa(handle))

    def fault(self, index: int) -> str | None:
        state = HealthState(VERSION)
        if not self._query("cndevGetCardHealthState", ctypes.byref(state), self._handle(index)):
            return None
        if state.health == GOOD:
            return None
        return f"CNDEV reports a problem (device state {state.device_state}, driver state {state.driver_state})"

    def reading(self, index: int) -> Reading:
        handle = self._handle(index)
        memory, busy = self._memory(handle), UtilizationInfo(VERSION)
        has_busy = self._query("cndevGetDeviceUtilizationInfo", ctypes.byref(busy), handle)
        return Reading(
            None if memory is None else MiB(memory.physical_used),
            min(100, busy.average) if has_busy else None,
            self._processes(handle),
        )

    def links(self, indices: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        handles = {index: self._handle(index) for index in indices}
        for a, b in combinations(indices, 2):
            found = Relationship(VERSION)
            if self._query("cndevTopologyGetRelationship", ctypes.byref(found), handles[a], handles[b]):
                link = RELATIONS.get(found.relation)
                if link is not None:
                    yield from ((a, b, link), (b, a, link))

    def _handle(self, index: int) -> int:
        handle = ctypes.c_int32()
        self._require("cndevGetDeviceHandleByIndex", index, ctypes.byref(handle))
        return handle.value

    def _memory(self, handle: int) -> MemoryInfoV2 | None:
        memory = MemoryInfoV2()
        return memory if self._query("cndevGetMemoryUsageV2", ctypes.byref(memory), handle) else None

    def _numa(self, handle: int) -> int | None:
        node = NumaNode(VERSION)
        if self._query("cndevGetNUMANodeIdByDevId", ctypes.byref(node), handle) and node.node >= 0:
            return int(node.node)
        pcie = PcieInfo(VERSION)
        if self._query("cndevGetPCIeInfo", ctypes.byref(pcie), handle):
            return numa_node(self._sysfs, (pcie.domain, pcie.bus, pcie.device))
        return None

    def _processes(self, handle: int) -> tuple[ProcessUsage, ...] | None:
        room = FEWEST_PROCESSES
        while room <= MOST_PROCESSES:
            found, count = (ProcessInfo * room)(), ctypes.c_uint(room)
            found[0].version = VERSION
            status = self._library.cndevGetProcessInfo(ctypes.byref(count), found, handle)
            if status == SUCCESS:
                return tuple(
                    ProcessUsage(int(one.pid), MiB(one.physical_used // KIB_IN_MIB), None)
                    for one in found[: count.value]
                )
            if status != INSUFFICIENT_SPACE:
                self._check(status)
                return None
            # More processes may start between two calls, so there is room for some more than the library counted.
            room = max(2 * room, count.value)
        return None

    def _query(self, function: str, *arguments: Any) -> bool:
        """Calls a function; False if the library or the GPU does not support it, DeviceError if the GPU has a fault."""
        call = getattr(self._library, function, None)  # an older library may lack the function
        return call is not None and self._check(call(*arguments))

    def _require(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != SUCCESS:
            raise DeviceError(self._error(status))

    def _check(self, status: int) -> bool:
        if status != SUCCESS and status not in UNANSWERED:
            raise DeviceError(self._error(status))
        return status == SUCCESS

    def _error(self, status: int) -> str:
        text = self._library.cndevGetErrorString(status)
        return f"CNDEV error {status}" if text is None else " ".join(text.decode(errors="replace").split())
