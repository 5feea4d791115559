# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How NVIDIA GPUs can be shared: their compute capability, the version of their driver, and their compute mode."""

from enum import IntEnum
from typing import Any, NamedTuple

from cotenant.core.isolation import Capability


class ComputeMode(IntEnum):
    """Which processes may use a GPU, as NVML numbers it."""

    DEFAULT = 0
    """any number of processes"""
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3
    """one process, which may be an MPS server with clients"""


class Facts(NamedTuple):
    """What decides which rungs of the isolation ladder a GPU has; None: the driver does not say."""

    capability: Capability | None = None
    cuda: int | None = None
    mig: bool = False


def is_instance(uuid: str) -> bool:
    """Whether this is the UUID of a MIG instance."""
    return uuid.startswith("MIG-")


class ComputeModes:
    """Reads and sets them through NVML. A GPU that does not answer has unknown facts and an unknown mode."""

    def __init__(self, library: Any) -> None:
        self._nvml = library

    def facts(self, uuid: str) -> Facts:
        """Those of a MIG instance are its GPU's, except that it is not partitioned itself."""
        mig = None if is_instance(uuid) else self._asked("nvmlDeviceGetMigMode", uuid)
        return Facts(
            capability=self._asked("nvmlDeviceGetCudaComputeCapability", uuid, of_card=True),
            cuda=self._asked("nvmlSystemGetCudaDriverVersion_v2"),
            mig=bool(mig and mig[0]),
        )

    def mode(self, uuid: str) -> ComputeMode | None:
        """None also for a MIG instance, which has none of its own."""
        if is_instance(uuid):
            return None
        found = self._asked("nvmlDeviceGetComputeMode", uuid)
        return ComputeMode(found) if found in tuple(ComputeMode) else None

    def set_mode(self, uuid: str, mode: ComputeMode) -> bool:
        """Whether it is set now; only root may change it."""
        if self.mode(uuid) is mode:
            return True
        self._asked("nvmlDeviceSetComputeMode", uuid, int(mode))
        return self.mode(uuid) is mode

    def _asked(self, function: str, uuid: str | None = None, *arguments: int, of_card: bool = False) -> Any:
        """The answer; None if there is none, or the binding is too old to ask."""
        try:
            handle = () if uuid is None else (self._nvml.nvmlDeviceGetHandleByUUID(uuid),)
            if of_card and uuid is not None and is_instance(uuid):
                handle = (self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(*handle),)
            answer = getattr(self._nvml, function)(*handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None
        return tuple(answer) if isinstance(answer, list | tuple) else answer
