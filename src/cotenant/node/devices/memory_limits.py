# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Limits on the memory that all processes of a cgroup have together on a GPU, which the driver itself enforces.

NVML has the two functions since CUDA 13.4. The binding of older versions does not, so they are called by their names,
with the structures of `nvml.h`.
"""

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

from cotenant.errors import DeviceError

NO_LIMIT = (1 << 64) - 1


class GroupMemory(NamedTuple):
    """What the driver says of a cgroup."""

    hard: int
    """bytes; NO_LIMIT: none"""
    used: int
    """bytes"""


class _SetLimits(ctypes.Structure):
    _fields_ = (
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", ctypes.c_ulonglong),
        ("hardLimit", ctypes.c_ulonglong),
    )


class _GetLimits(ctypes.Structure):
    _fields_ = (*_SetLimits._fields_, ("currentUsed", ctypes.c_ulonglong))


class MemoryLimits:
    """Sets and reads them through NVML. Only root may set them."""

    def __init__(self, library: Any) -> None:
        self._nvml = library

    def set(self, uuid: str, group: Path, bytes_: int) -> None:
        """Limits a cgroup; a later call replaces the limit. DeviceError if the driver does not take it.

        The soft limit stays 0: then no cgroup above has a part of it, which would remain if this one were removed
        without asking NVML. A tenant cannot lose memory by that, because the sum of all hard limits fits on the GPU.
        """
        self._call("nvmlDeviceSetMemoryLimits_v1", uuid, _SetLimits(str(group).encode(), 0, bytes_))

    def get(self, uuid: str, group: Path) -> GroupMemory:
        """The limit of a cgroup and what it uses; DeviceError if the driver does not say."""
        limits = _GetLimits(str(group).encode(), 0, 0, 0)
        self._call("nvmlDeviceGetMemoryLimits_v1", uuid, limits)
        return GroupMemory(limits.hardLimit, limits.currentUsed)

    def _call(self, name: str, uuid: str, limits: ctypes.Structure) -> None:
        nvml = self._nvml
        try:
            function = nvml._nvmlGetFunctionPointer(name)
            nvml._nvmlCheckReturn(function(nvml.nvmlDeviceGetHandleByUUID(uuid), ctypes.byref(limits)))
        except AttributeError:
            raise DeviceError(f"{name}: this NVML binding cannot call it") from None
        except nvml.NVMLError as error:
            raise DeviceError(f"{name}: {' '.join(str(error).split()) or type(error).__name__}") from None
