# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The processes on an NVIDIA GPU and what each uses of it, as NVML reports it."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from cotenant.core.units import MIB_BYTES, MiB
from cotenant.node.devices.backend import ProcessUsage

Handle = Any
Query = Callable[..., Any]


def read_processes(
    nvml: Any, query: Query, handle: Handle, since_us: int
) -> tuple[tuple[ProcessUsage, ...] | None, int]:
    """The processes, None if they are not known, and the time of the last sample of their utilisation."""
    listed = query("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    if listed is None:  # drivers before 510
        listed = query("nvmlDeviceGetComputeRunningProcesses_v2", handle)
    if not listed:
        return (None if listed is None else ()), since_us
    samples = _samples(nvml, query, handle, since_us)
    busy = None if samples is None else _utilisation(samples, since_us)
    processes = tuple(
        ProcessUsage(
            int(process.pid),
            None if process.usedGpuMemory is None else MiB(process.usedGpuMemory // MIB_BYTES),
            None if busy is None else busy.get(process.pid, 0),
        )
        for process in listed
    )
    return processes, max([since_us, *(sample.timeStamp for sample in samples or ())])


def _samples(nvml: Any, query: Query, handle: Handle, since_us: int) -> Sequence[Any] | None:
    try:
        found: Sequence[Any] | None = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except nvml.NVMLError as error:
        # The binding raises even for success when there is no sample.
        if error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):
            return ()
        found = query("nvmlDeviceGetProcessUtilization", handle, since_us)
    return found


def _utilisation(samples: Sequence[Any], since_us: int) -> dict[int, int]:
    """Mean SM utilisation of each process since then, in percent."""
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.timeStamp > since_us:
            seen[sample.pid].append(min(sample.smUtil, 100))
    return {pid: round(sum(values) / len(values)) for pid, values in seen.items()}
