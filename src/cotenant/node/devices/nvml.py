# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs through NVML. The only module that imports `pynvml`: bytes, handles and error numbers stay in it.

A query that the GPU does not support, or that needs a missing permission, returns None. Any other error makes that one
GPU unhealthy; the others go on.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from cotenant.core.links import LinkMatrix, link_matrix_of_pairs
from cotenant.core.model import Gpu, Gpus, Link, Machine
from cotenant.core.units import MIB_BYTES, MiB, MilliCpu, Seconds
from cotenant.errors import DeviceError
from cotenant.node.devices.backend import MACHINE, GpuUsage, NoDriverError, ProcessUsage, Running
from cotenant.node.devices.counters import Counters
from cotenant.node.devices.health import RECOVERY, Health
from cotenant.node.devices.links import Bus, Far, numa_node, nvlink_pairs
from cotenant.node.devices.processes import job_members, process_table
from cotenant.node.devices.vendors import Vendor

Library = Any
"""`pynvml` or a module with the same functions; the package has no types."""
Handle = Any

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, not of the GPU (NVIDIA's XID catalogue; its device plugin skips the same ones)."""

_IN_MIG_MODE = "in MIG mode; its instances are not used yet, so it takes no jobs"
_NUMA_WORDS = 16
"""Words of 64 bits for a set of NUMA nodes: Linux has 1,024 at most."""
_MOST_EVENTS = 100
"""Events read in one poll, so that a storm of events cannot delay it."""

# Errors by which NVML says that it cannot answer a query here. They say nothing about the health of the GPU.
_UNANSWERED = (
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "NOT_FOUND",
    "FUNCTION_NOT_FOUND",
    "INVALID_ARGUMENT",
    "INSUFFICIENT_SIZE",
    "NO_DATA",
    "DEPRECATED",
    "ARGUMENT_VERSION_MISMATCH",
)


@dataclass(slots=True)
class _Gpu:
    """What is known of the GPU at one index."""

    index: int
    health: Health
    counters: Counters
    uuid: str | None = None
    """None: it has not answered yet."""
    type: str = "unknown"
    memory: MiB = MiB(0)
    numa: int | None = None
    bus: Bus | None = None
    mig: bool = False
    ecc_errors: int | None = None
    last_sample_us: int = 0

    @property
    def name(self) -> str:
        return self.uuid or f"GPU-unknown-{self.index}"

    @property
    def fault(self) -> str | None:
        """Why it takes no jobs."""
        return self.health.reason or (_IN_MIG_MODE if self.mig else None)


def load_library() -> Library:
    """The NVML binding, or one line that says what is missing."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        raise NoDriverError("the package nvidia-ml-py is not installed; it is needed to see NVIDIA GPUs") from None
    return pynvml


def open_backend() -> "NvmlBackend":
    """The NVIDIA GPUs; DeviceError if no driver answers."""
    return NvmlBackend(load_library())


class NvmlBackend:
    """The NVIDIA GPUs of this machine; DeviceError if there is no driver or no GPU."""

    vendor = Vendor.NVIDIA

    def __init__(
        self,
        library: Library,
        *,
        clock: Callable[[], float] = time.monotonic,
        sysfs: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        recovery: Seconds = RECOVERY,
    ) -> None:
        self._nvml = library
        self._clock = clock
        self._sysfs = sysfs
        self._proc = proc
        self._unanswered = {getattr(library, f"NVML_ERROR_{name}", None) for name in _UNANSWERED}
        self._events: Handle | None = None
        self._links: LinkMatrix | None = None
        self._linked: tuple[str, ...] = ()
        self._gpus: list[_Gpu] = []
        self._gpus += [_Gpu(index, Health(recovery), Counters(library)) for index in range(self._start())]
        if not self._gpus:
            self.close()
            raise DeviceError("the NVIDIA driver answers but lists no GPU; see nvidia-smi -L")
        self.poll()

    @property
    def notes(self) -> tuple[str, ...]:
        counted = Counter(gpu.type for gpu in self._gpus)
        models = ", ".join(f"{count} x {name}" for name, count in sorted(counted.items()))
        return f"NVIDIA GPUs: {models}", *(f"GPU {gpu.index}: {_IN_MIG_MODE}" for gpu in self._gpus if gpu.mig)

    def machine(self) -> Machine:
        self.poll()
        return Machine(
            name=MACHINE,
            gpus=tuple(
                Gpu(
                    uuid=gpu.name,
                    type=gpu.type,
                    memory=gpu.memory,
                    numa=gpu.numa,
                    healthy=gpu.fault is None,
                )
                for gpu in self._gpus
            ),
            links=self._link_matrix(),
            cpu=MilliCpu(1000 * len(os.sched_getaffinity(0))),
        )

    def usage(self, jobs: Sequence[Running] = ()) -> list[GpuUsage]:
        members = job_members(jobs, process_table(self._proc)) if jobs else {}
        owners = {process.pid: job for job, tree in members.items() for process in tree}
        return [self._usage(gpu, owners, [job.gpus for job in jobs if gpu.index in job.gpus]) for gpu in self._gpus]

    def faults(self) -> dict[str, str]:
        """Why each unhealthy GPU is unhealthy."""
        return {gpu.name: gpu.fault for gpu in self._gpus if gpu.fault is not None}

    def cores(self, gpus: Gpus) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        events, self._events = self._events, None
        for gpu in self._gpus:
            gpu.counters.close()
        try:
            if events is not None:
                self._nvml.nvmlEventSetFree(events)
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass  # a driver that is gone holds nothing of ours

    # A poll queries every GPU, and passes faults and answers to its health.

    def poll(self) -> None:
        """Queries the state of every GPU."""
        now = Seconds(self._clock())
        faults = self._reported_faults()
        silent = 0
        for gpu in self._gpus:
            try:
                fault = self._examine(gpu)
            except self._nvml.NVMLError as error:
                fault = self._described(error)
                silent += 1
            fault = faults.get(gpu.name) or fault
            if fault is None:
                gpu.health.answered(now)
            else:
                gpu.health.fault(fault, now)
        if silent == len(self._gpus):
            self._restart()

    def _start(self) -> int:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            missing = error.value == getattr(self._nvml, "NVML_ERROR_LIBRARY_NOT_FOUND", None)
            kind = NoDriverError if missing else DeviceError
            raise kind(f"no NVIDIA driver answers ({self._described(error)})") from None
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            self.close()
            raise DeviceError(f"the NVIDIA driver does not list its GPUs ({self._described(error)})") from None

    def _restart(self) -> None:
        """Opens a new session: if no GPU answers, the driver may have been reloaded, and an old session fails."""
        self.close()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:
            return  # still gone; the next poll tries again
        for gpu in self._gpus:
            self._watch(gpu)

    def _handle(self, gpu: _Gpu) -> Handle:
        # By UUID once that is known: if a GPU falls off the bus, the indices of the others may move.
        if gpu.uuid is not None:
            return self._nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        return self._nvml.nvmlDeviceGetHandleByIndex(gpu.index)

    def _examine(self, gpu: _Gpu) -> str | None:
        """What is wrong with a GPU, None if nothing; reads what it is when it answers for the first time."""
        handle = self._handle(gpu)
        if gpu.uuid is None:
            self._identify(gpu, handle)
            self._watch(gpu)
        self._query("nvmlDeviceGetMemoryInfo", handle)
        return self._memory_fault(gpu, handle)

    def _identify(self, gpu: _Gpu, handle: Handle) -> None:
        memory = self._query("nvmlDeviceGetMemoryInfo", handle)
        gpu.memory = MiB(memory.total // MIB_BYTES if memory else 0)
        gpu.type = _text(self._query("nvmlDeviceGetName", handle) or gpu.type)
        pci = self._query("nvmlDeviceGetPciInfo", handle)
        gpu.bus = _bus(pci) if pci else None
        gpu.numa = self._numa(gpu.bus, handle)
        gpu.mig = bool((self._query("nvmlDeviceGetMigMode", handle) or [0])[0])
        gpu.uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))

    def _numa(self, bus: Bus | None, handle: Handle) -> int | None:
        """The NUMA node as the kernel knows it, or else the driver, which may name several."""
        known = None if bus is None else numa_node(self._sysfs, bus)
        if known is not None:
            return known
        scope = self._nvml.NVML_AFFINITY_SCOPE_NODE
        words = self._query("nvmlDeviceGetMemoryAffinity", handle, _NUMA_WORDS, scope) or ()
        mask = sum(int(word) << 64 * place for place, word in enumerate(words))
        return mask.bit_length() - 1 if mask.bit_count() == 1 else None

    def _memory_fault(self, gpu: _Gpu, handle: Handle) -> str | None:
        nvml = self._nvml
        errors = self._query(
            "nvmlDeviceGetTotalEccErrors", handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
        before, gpu.ecc_errors = gpu.ecc_errors, errors
        if errors is not None and before is not None and errors > before:
            return f"{errors - before} new uncorrectable memory errors"
        remapped = self._query("nvmlDeviceGetRemappedRows", handle)
        if remapped is not None and remapped[3]:
            return "memory rows could not be remapped; the card needs replacing"
        if remapped is not None and remapped[2]:
            return "memory rows wait to be remapped; the GPU needs a reset"
        return None

    # Events: faults that the driver reports between two polls.

    def _watch(self, gpu: _Gpu) -> None:
        nvml = self._nvml
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        try:
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
            handle = self._handle(gpu)
            supported = nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted
            if supported:
                nvml.nvmlDeviceRegisterEvents(handle, supported, self._events)
        except nvml.NVMLError:
            pass  # without events, faults are still found when the GPU is queried

    def _reported_faults(self) -> dict[str, str]:
        """The faults reported since the last poll, by UUID."""
        faults: dict[str, str] = {}
        for _ in range(_MOST_EVENTS):
            if self._events is None:
                break
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = _text(self._nvml.nvmlDeviceGetUUID(event.device))
            except self._nvml.NVMLError:
                break  # no more events, or a GPU that cannot even be named: the poll will find its fault
            if event.eventType == self._nvml.nvmlEventTypeDoubleBitEccError:
                faults[uuid] = "an uncorrectable memory error was reported"
            elif event.eventData not in APPLICATION_XIDS:
                faults[uuid] = f"XID {event.eventData} was reported"
        return faults

    # Usage.

    def _usage(self, gpu: _Gpu, owners: Mapping[int, str], slots: Sequence[Gpus]) -> GpuUsage:
        """`slots` has the GPUs of each job that uses this one."""
        try:
            handle = self._handle(gpu)
            memory = self._query("nvmlDeviceGetMemoryInfo", handle)
            rates = self._query("nvmlDeviceGetUtilizationRates", handle)
            processes = self._processes(gpu, handle, owners)
        except self._nvml.NVMLError as error:
            gpu.health.fault(self._described(error), Seconds(self._clock()))
            gpu.counters.close()  # samples from before a GPU fell off the bus say nothing about it afterwards
            return GpuUsage(uuid=gpu.name, used_mib=None, utilisation=None, processes=None)
        # The traffic of a GPU is known to be a job's only if the GPU has one job and the job has one GPU.
        counted = gpu.counters.poll(handle, pcie=slots == [(gpu.index,)])
        return GpuUsage(
            uuid=gpu.name,
            used_mib=MiB(memory.used // MIB_BYTES) if memory else None,
            utilisation=_percent(counted.utilisation, rates and rates.gpu),
            processes=processes,
            bandwidth=_percent(counted.bandwidth, rates and rates.memory),
            pcie_mib_s=counted.pcie_mib_s,
        )

    def _processes(self, gpu: _Gpu, handle: Handle, owners: Mapping[int, str]) -> tuple[ProcessUsage, ...] | None:
        listed = self._query("nvmlDeviceGetComputeRunningProcesses_v3", handle)
        if listed is None:  # drivers before 510
            listed = self._query("nvmlDeviceGetComputeRunningProcesses_v2", handle)
        if listed is None:
            return None
        busy = self._process_utilisation(gpu, handle) if listed else None
        return tuple(
            ProcessUsage(
                int(process.pid),
                None if process.usedGpuMemory is None else MiB(process.usedGpuMemory // MIB_BYTES),
                None if busy is None else busy.get(process.pid, 0),
                owners.get(int(process.pid)),
            )
            for process in listed
        )

    def _process_utilisation(self, gpu: _Gpu, handle: Handle) -> dict[int, int] | None:
        """Mean SM utilisation of each process since the last call, in percent."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, gpu.last_sample_us)
        except self._nvml.NVMLError as error:
            # The binding raises even for success when there is no sample.
            if error.value in (self._nvml.NVML_SUCCESS, self._nvml.NVML_ERROR_NOT_FOUND):
                return {}
            if error.value in self._unanswered:
                return None
            raise
        seen: defaultdict[int, list[int]] = defaultdict(list)
        for sample in samples:
            if sample.timeStamp > gpu.last_sample_us:
                seen[sample.pid].append(min(sample.smUtil, 100))
        gpu.last_sample_us = max([gpu.last_sample_us, *(sample.timeStamp for sample in samples)])
        return {pid: round(sum(values) / len(values)) for pid, values in seen.items()}

    # Links.

    def _link_matrix(self) -> LinkMatrix | None:
        known = tuple(gpu.name for gpu in self._gpus)
        if known != self._linked:
            try:
                self._links, self._linked = self._read_links(), known
            except self._nvml.NVMLError:
                return None  # a GPU went away meanwhile; the result is not kept, so the next poll tries again
        return self._links

    def _read_links(self) -> LinkMatrix | None:
        handles = {gpu.index: self._handle(gpu) for gpu in self._gpus if gpu.uuid is not None}
        pairs = [*self._pcie_pairs(handles), *self._nvlink_pairs(handles)]
        return link_matrix_of_pairs(len(self._gpus), pairs) if pairs else None

    def _pcie_pairs(self, handles: dict[int, Handle]) -> Iterable[tuple[int, int, int]]:
        nvml = self._nvml
        scores = {
            nvml.NVML_TOPOLOGY_INTERNAL: Link.PSB,
            nvml.NVML_TOPOLOGY_SINGLE: Link.PIX,
            nvml.NVML_TOPOLOGY_MULTIPLE: Link.PXB,
            nvml.NVML_TOPOLOGY_HOSTBRIDGE: Link.PHB,
            nvml.NVML_TOPOLOGY_NODE: Link.NODE,
            nvml.NVML_TOPOLOGY_SYSTEM: Link.SYS,
        }
        for a, b in combinations(handles, 2):
            level = self._query("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
            if level in scores:
                yield from ((a, b, scores[level]), (b, a, scores[level]))

    def _nvlink_pairs(self, handles: dict[int, Handle]) -> Iterable[tuple[int, int, int]]:
        ends = {gpu: self._nvlink_ends(handle) for gpu, handle in handles.items()}
        return nvlink_pairs(ends, {gpu.bus: gpu.index for gpu in self._gpus if gpu.bus is not None})

    def _nvlink_ends(self, handle: Handle) -> list[Far]:
        """What is at the far end of each active NVLink of a GPU."""
        nvml, ends = self._nvml, []
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            if self._query("nvmlDeviceGetNvLinkState", handle, link) != nvml.NVML_FEATURE_ENABLED:
                continue
            device = self._query("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            pci = self._query("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            ends.append(Far(_bus(pci) if pci else None, device == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH))
        return ends

    def _query(self, function: str, *arguments: Handle) -> Any:
        """The answer, None if there is none; other errors are faults of the GPU and are raised."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in self._unanswered:
                return None
            raise

    def _described(self, error: Exception) -> str:
        return " ".join(str(error).split()) or type(error).__name__


def _bus(pci: Any) -> Bus:
    return int(pci.domain), int(pci.bus), int(pci.device)


def _percent(counted: float | None, otherwise: int | None) -> int | None:
    return round(counted) if counted is not None else otherwise


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
