# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads, makes and removes MIG instances through NVML. Only root may make and remove them.

A GPU instance with several compute instances is not ours to change: cotenant makes one compute instance in each.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cotenant.core.placement.mig_moves import Place, Placed
from cotenant.errors import DeviceError
from cotenant.node.devices.nvml_events import text_of
from cotenant.node.devices.nvml_mig import instances_of

MOST = 64
"""GPU instances, compute instances or places that one answer can have"""


class MigLayouts:
    """The layouts of the GPUs of this machine."""

    def __init__(self, library: Any) -> None:
        self._nvml = library

    def places(self, uuid: str) -> dict[str, Place]:
        """Where an instance of each profile can begin, as the driver lists it."""
        with self._errors(uuid):
            card = self._card(uuid)
            found = {}
            for name, profile in self._profiles(card):
                sizes = self._listed(
                    "nvmlDeviceGetGpuInstancePossiblePlacements", card, profile, self._nvml.c_nvmlGpuInstancePlacement_t
                )
                if sizes:
                    found[name] = Place(sizes[0].size, tuple(sorted(one.start for one in sizes)))
            return found

    def layout(self, uuid: str, *, strict: bool = True) -> list[Placed]:
        """The GPU instances of a GPU; one is in use if a process uses it.

        DeviceError, if strict, if an instance has none or several compute instances: we could not make that again.
        """
        with self._errors(uuid):
            card = self._card(uuid)
            if not self._nvml.nvmlDeviceGetMigMode(card)[0]:
                raise DeviceError(f"GPU {uuid} is not in MIG mode; enable it with `nvidia-smi -i {uuid} -mig 1`")
            used = self._numbers_in_use(card)
            found = []
            for name, profile in self._profiles(card):
                for group in self._groups(card, profile):
                    info = self._nvml.nvmlGpuInstanceGetInfo(group)
                    count = len(self._computes(group))
                    if strict and count != 1:
                        raise DeviceError(f"GPU {uuid}: GPU instance {info.id} has {count} compute instances, not 1")
                    start, size = info.placement.start, info.placement.size
                    found.append(Placed(name, start, size, info.id, info.id in used))
            return sorted(found, key=lambda one: one.start)

    def numbers(self, uuid: str) -> dict[str, int]:
        """The number of the GPU instance, by the UUID of the MIG instance that programs use."""
        with self._errors(uuid):
            found = {}
            for handle in instances_of(self._query, self._card(uuid)):
                name = text_of(self._nvml.nvmlDeviceGetUUID(handle))
                found[name] = int(self._nvml.nvmlDeviceGetGpuInstanceId(handle))
            return found

    def make(self, uuid: str, instance: Placed) -> None:
        """Makes a GPU instance and its compute instance."""
        nvml = self._nvml
        with self._errors(uuid):
            card = self._card(uuid)
            profile = dict(self._profiles(card)).get(instance.profile)
            if profile is None:
                raise DeviceError(f"GPU {uuid}: the driver has no profile {instance.profile}")
            place = nvml.c_nvmlGpuInstancePlacement_t()
            place.start, place.size = instance.start, instance.size
            group = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, profile, ctypes.byref(place))
            nvml.nvmlGpuInstanceCreateComputeInstance(group, self._whole_compute(group, uuid))

    def remove(self, uuid: str, number: int) -> None:
        """Removes a GPU instance; the driver refuses that if a process uses it."""
        nvml = self._nvml
        with self._errors(uuid):
            card = self._card(uuid)
            for _, profile in self._profiles(card):
                for group in self._groups(card, profile):
                    if nvml.nvmlGpuInstanceGetInfo(group).id == number:
                        for compute in self._computes(group):
                            nvml.nvmlComputeInstanceDestroy(compute)
                        nvml.nvmlGpuInstanceDestroy(group)

    def complete(self, uuid: str) -> None:
        """Gives each GPU instance without a compute instance one: its maker was killed in between."""
        with self._errors(uuid):
            card = self._card(uuid)
            for _, profile in self._profiles(card):
                for group in self._groups(card, profile):
                    if not self._computes(group):
                        self._nvml.nvmlGpuInstanceCreateComputeInstance(group, self._whole_compute(group, uuid))

    def _card(self, uuid: str) -> Any:
        return self._nvml.nvmlDeviceGetHandleByUUID(uuid)

    def _profiles(self, card: Any) -> Iterator[tuple[str, int]]:
        """The name of each profile, and the number by which the driver knows it."""
        for number in range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            info = self._query("nvmlDeviceGetGpuInstanceProfileInfo", card, number)
            if info is not None:
                yield text_of(info.name).removeprefix("MIG "), info.id

    def _groups(self, card: Any, profile: int) -> list[Any]:
        return self._listed("nvmlDeviceGetGpuInstances", card, profile, self._nvml.c_nvmlGpuInstance_t)

    def _computes(self, group: Any) -> list[Any]:
        nvml = self._nvml
        found: dict[int, Any] = {}
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            info = self._query("nvmlGpuInstanceGetComputeInstanceProfileInfo", group, number, 0)
            if info is None:
                continue
            listed = self._listed("nvmlGpuInstanceGetComputeInstances", group, info.id, nvml.c_nvmlComputeInstance_t)
            found |= {ctypes.cast(one, ctypes.c_void_p).value or 0: one for one in listed}
        return list(found.values())

    def _whole_compute(self, group: Any, uuid: str) -> int:
        """The number of the compute profile with all slices of a GPU instance."""
        numbers = range(self._nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        infos = [self._query("nvmlGpuInstanceGetComputeInstanceProfileInfo", group, number, 0) for number in numbers]
        known = [(info.sliceCount, -info.id) for info in infos if info is not None]
        if not known:
            raise DeviceError(f"GPU {uuid}: the driver lists no compute profile for a new instance")
        return -int(max(known)[1])

    def _numbers_in_use(self, card: Any) -> set[int]:
        """The GPU instances that a process uses; the driver names it even if it is not ours."""
        used = set()
        for handle in instances_of(self._query, card):
            if self._query("nvmlDeviceGetComputeRunningProcesses", handle):
                used.add(self._query("nvmlDeviceGetGpuInstanceId", handle))
        return used

    def _listed(self, function: str, owner: Any, number: int, kind: Any) -> list[Any]:
        found, count = (kind * MOST)(), ctypes.c_uint(MOST)
        answer = self._query(function, owner, number, found, ctypes.byref(count))
        return [] if answer is None else list(found[: count.value])

    def _query(self, function: str, *arguments: Any) -> Any:
        """The answer; None if there is none for these arguments."""
        nvml = self._nvml
        try:
            return getattr(nvml, function)(*arguments)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NOT_FOUND):
                return None
            if error.value == nvml.NVML_ERROR_INVALID_ARGUMENT and function.endswith("ProfileInfo"):
                return None  # a profile that is newer than the driver
            raise

    @contextmanager
    def _errors(self, uuid: str) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise DeviceError(f"GPU {uuid}: NVML says: {said}") from None
