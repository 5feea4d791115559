# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs through NVML. The only module that imports `pynvml`: bytes, handles and error numbers stay in it.

A query that the GPU does not support, or that needs a missing permission, returns None. Any other error makes that one
GPU unhealthy; the others go on.

The MIG instances of a partitioned GPU are GPUs of their own, and the partitioned one is not handed out. An entry stays
in the list as long as the process lives, because jobs know their GPUs by index: an instance that was removed is
unhealthy, and a new one comes last.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.links import LinkMatrix, link_matrix_of_pairs
from cotenant.core.model import Gpu, Gpus, Machine
from cotenant.core.units import MIB_BYTES, WHOLE_GPU, MiB, MilliCpu, MilliGpu, Seconds
from cotenant.errors import CotenantError, DeviceError
from cotenant.extras import missing_package
from cotenant.node.devices.backend import MACHINE, GpuUsage, KnownGpu, NoDriverError, Running
from cotenant.node.devices.compute_modes import ComputeModes
from cotenant.node.devices.counters import Counters, counted_or
from cotenant.node.devices.health import RECOVERY, Health
from cotenant.node.devices.links import Bus, numa_node
from cotenant.node.devices.memory_limits import MemoryLimits
from cotenant.node.devices.nvml_events import WHOLE_CARD, FaultEvents, Faults, text_of
from cotenant.node.devices.nvml_layout import MigLayouts
from cotenant.node.devices.nvml_links import bus_of, linked_pairs, nearest_numa
from cotenant.node.devices.nvml_memory import memory_fault, uncorrectable_errors
from cotenant.node.devices.nvml_mig import instances_of, is_partitioned, read_instance
from cotenant.node.devices.nvml_processes import read_processes
from cotenant.node.devices.polled import load_shared_library
from cotenant.node.devices.processes import job_members, process_table
from cotenant.node.devices.vendors import Vendor

Library = Any
"""`pynvml` or a module with the same functions; the package has no types."""
Handle = Any

_IN_MIG_MODE = "in MIG mode, so it takes no jobs; its MIG instances do, if it has any (nvidia-smi mig -lgi)"
_REMOVED = "this MIG instance was removed"

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


@dataclass(slots=True, eq=False)
class _Gpu:
    """What is known of one GPU as NVML lists it, or of one MIG instance."""

    index: int
    """At which NVML listed it, or the partitioned GPU, first."""
    health: Health
    counters: Counters
    uuid: str | None = None
    """None: it has not answered yet."""
    type: str = "unknown"
    memory: MiB = MiB(0)
    numa: int | None = None
    bus: Bus | None = None
    compute: MilliGpu = WHOLE_GPU
    """Of the whole GPU."""
    profile: str | None = None
    """Of a MIG instance."""
    card: "_Gpu | None" = None
    """Of a MIG instance."""
    gpu_instance: int | None = None
    absent: str | None = None
    """Why it cannot be used as things are, although it has no fault: the layout of MIG instances was changed."""
    ecc_errors: int | None = None
    last_sample_us: int = 0

    @property
    def name(self) -> str:
        return self.uuid or f"GPU-unknown-{self.index}"

    @property
    def fault(self) -> str | None:
        """Why it takes no jobs."""
        return self.health.reason or self.absent


def load_library() -> Library:
    """The NVML binding. Without it: NoDriverError if there is no driver either, else one line on how to install it."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        load_shared_library(("libnvidia-ml.so.1",), Vendor.NVIDIA.row.title)
        # No DeviceError: a machine with a driver must not go on with simulated GPUs.
        raise CotenantError(f"this machine has an NVIDIA driver, and {missing_package(error)}") from None
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
        self.modes = ComputeModes(library)
        self.memory_limits = MemoryLimits(library)
        self.mig_layouts = MigLayouts(library)
        self._events = FaultEvents(library)
        self._links: LinkMatrix | None = None
        self._linked: tuple[str, ...] = ()
        self._recovery = recovery
        self._gpus: list[_Gpu] = []
        """All that were ever handed out, in the order of `machine().gpus`."""
        self._cards: list[_Gpu] = []
        self._cards += [self._new(index) for index in range(self._start())]
        if not self._cards:
            self.close()
            raise DeviceError("the NVIDIA driver answers but lists no GPU; see nvidia-smi -L")
        self.poll()

    @property
    def notes(self) -> tuple[str, ...]:
        counted = Counter(gpu.type for gpu in self._gpus)
        models = ", ".join(f"{count} x {name}" for name, count in sorted(counted.items()))
        absent = (f"GPU {place}: {gpu.absent}" for place, gpu in enumerate(self._gpus) if gpu.absent is not None)
        return f"NVIDIA GPUs: {models}", *absent

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
                    mig=gpu.profile,
                    card=None if gpu.card is None else gpu.card.name,
                    part=gpu.compute,
                )
                for gpu in self._gpus
            ),
            links=self._link_matrix(),
            cpu=MilliCpu(1000 * len(os.sched_getaffinity(0))),
        )

    def keep_order(self, known: Sequence[KnownGpu]) -> None:
        """Lists the GPUs in an earlier order, by which jobs that run know them; new ones come last.

        MIG instances that have gone since keep their place. If a whole GPU has gone, the order stays as it is.
        """
        found = {gpu.name: gpu for gpu in (*self._cards, *self._gpus)}
        ordered = [found.get(one.uuid) or self._removed_instance(one) for one in known]
        kept = [gpu for gpu in ordered if gpu is not None]
        if len(kept) == len(known):
            self._gpus = [*kept, *(gpu for gpu in self._gpus if gpu not in kept)]

    def _removed_instance(self, known: KnownGpu) -> _Gpu | None:
        card = next((one for one in self._cards if known.card is not None and one.uuid == known.card), None)
        if card is None:
            return None
        gpu = self._new(card.index)
        gpu.uuid, gpu.card, gpu.absent = known.uuid, card, _REMOVED
        gpu.type, gpu.memory, gpu.profile, gpu.compute = known.type, MiB(known.memory), known.mig, MilliGpu(known.part)
        return gpu

    def usage(self, jobs: Sequence[Running] = ()) -> list[GpuUsage]:
        members = job_members(jobs, process_table(self._proc)) if jobs else {}
        owners = {process.pid: job for job, tree in members.items() for process in tree}
        return [
            self._usage(gpu, owners, pcie=[job.gpus for job in jobs if place in job.gpus] == [(place,)])
            for place, gpu in enumerate(self._gpus)
        ]

    def faults(self) -> dict[str, str]:
        """Why each unhealthy GPU is unhealthy."""
        return {gpu.name: gpu.fault for gpu in self._gpus if gpu.fault is not None}

    def absent(self) -> frozenset[str]:
        return frozenset(gpu.name for gpu in self._gpus if gpu.absent is not None)

    def cores(self, gpus: Gpus) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        for gpu in (*self._cards, *self._gpus):
            gpu.counters.close()
        try:
            self._events.close()
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            pass  # a driver that is gone holds nothing of ours

    # A poll queries every GPU, and passes faults and answers to its health.

    def poll(self) -> None:
        """Queries the state of every GPU."""
        now = Seconds(self._clock())
        faults = self._events.reported()
        silent = [self._poll_card(card, faults, now) for card in self._cards].count(False)
        if silent == len(self._cards):
            self._restart()

    def _poll_card(self, card: _Gpu, faults: Faults, now: Seconds) -> bool:
        """Queries a GPU and its MIG instances; whether it answers."""
        answers, fault = True, None
        try:
            fault = self._examine(card)
            self._list(card)
        except self._nvml.NVMLError as error:
            answers, fault = False, self._described(error)
            if all(gpu is not card and gpu.card is not card for gpu in self._gpus):
                self._gpus.append(card)  # it keeps its place, as no one knows yet what it is
        fault = faults.get((card.name, WHOLE_CARD)) or fault
        self._judge(card, fault, now)
        for gpu in [gpu for gpu in self._gpus if gpu.card is card and gpu.absent is None]:
            own = faults.get((card.name, gpu.gpu_instance))
            self._judge(gpu, own or fault or self._instance_fault(gpu), now)
        return answers

    def _judge(self, gpu: _Gpu, fault: str | None, now: Seconds) -> None:
        if fault is None:
            gpu.health.answered(now)
        else:
            gpu.health.fault(fault, now)

    def _list(self, card: _Gpu) -> None:
        """Lists a GPU, or its MIG instances if it is partitioned, and notes which of them no longer exist."""
        handle = self._handle(card)
        partitioned = is_partitioned(self._query, handle)
        there = {}
        for one in instances_of(self._query, handle) if partitioned else ():
            uuid = self._query("nvmlDeviceGetUUID", one)
            if uuid is not None:
                there[text_of(uuid)] = one
        known = [gpu for gpu in self._gpus if gpu is card or gpu.card is card]
        for gpu in known:
            gone = partitioned if gpu is card else gpu.uuid not in there
            gpu.absent = (_IN_MIG_MODE if gpu is card else _REMOVED) if gone else None
        for uuid, one in there.items():
            if all(uuid != gpu.uuid for gpu in known):
                self._add_instance(card, handle, uuid, one)
        if not there and card not in self._gpus:
            card.absent = _IN_MIG_MODE if partitioned else None
            self._gpus.append(card)

    def _add_instance(self, card: _Gpu, handle: Handle, uuid: str, one: Handle) -> None:
        found = read_instance(self._query, handle, card.type, one)
        if found is None:
            return  # it has gone meanwhile
        gpu = self._new(card.index)
        gpu.uuid, gpu.type, gpu.memory, gpu.numa = uuid, found.type, found.memory, card.numa
        gpu.profile, gpu.compute, gpu.gpu_instance = found.profile, found.compute, found.gpu_instance
        gpu.card = card
        self._gpus.append(gpu)

    def _instance_fault(self, gpu: _Gpu) -> str | None:
        try:
            self._query("nvmlDeviceGetMemoryInfo", self._handle(gpu))
        except self._nvml.NVMLError as error:
            return self._described(error)
        return None

    def _new(self, index: int) -> _Gpu:
        return _Gpu(index, Health(self._recovery), Counters(self._nvml))

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
        for card in self._cards:
            self._watch(card)

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
        before, gpu.ecc_errors = gpu.ecc_errors, uncorrectable_errors(self._nvml, self._query, handle)
        return memory_fault(self._query, handle, before, gpu.ecc_errors)

    def _identify(self, gpu: _Gpu, handle: Handle) -> None:
        memory = self._query("nvmlDeviceGetMemoryInfo", handle)
        gpu.memory = MiB(memory.total // MIB_BYTES if memory else 0)
        gpu.type = text_of(self._query("nvmlDeviceGetName", handle) or gpu.type)
        pci = self._query("nvmlDeviceGetPciInfo", handle)
        gpu.bus = bus_of(pci) if pci else None
        known = None if gpu.bus is None else numa_node(self._sysfs, gpu.bus)
        gpu.numa = nearest_numa(self._nvml, self._query, handle) if known is None else known
        gpu.uuid = text_of(self._nvml.nvmlDeviceGetUUID(handle))

    def _watch(self, gpu: _Gpu) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._events.watch(self._handle(gpu))

    # Usage.

    def _usage(self, gpu: _Gpu, owners: Mapping[int, str], *, pcie: bool) -> GpuUsage:
        """The traffic of a GPU is known to be a job's only if the GPU has one job and the job has one GPU: `pcie`."""
        try:
            handle = self._handle(gpu)
            memory = self._query("nvmlDeviceGetMemoryInfo", handle)
            rates = self._query("nvmlDeviceGetUtilizationRates", handle)
            processes, gpu.last_sample_us = read_processes(self._nvml, self._query, handle, gpu.last_sample_us)
        except self._nvml.NVMLError as error:
            if gpu.absent is None:
                gpu.health.fault(self._described(error), Seconds(self._clock()))
            gpu.counters.close()  # samples from before a GPU fell off the bus say nothing about it afterwards
            return GpuUsage(uuid=gpu.name, used_mib=None, utilisation=None, processes=None)
        counted = gpu.counters.poll(handle, pcie=pcie)
        return GpuUsage(
            uuid=gpu.name,
            used_mib=MiB(memory.used // MIB_BYTES) if memory else None,
            utilisation=counted_or(counted.utilisation, rates and rates.gpu),
            processes=processes and tuple(one._replace(job=owners.get(one.pid)) for one in processes),
            bandwidth=counted_or(counted.bandwidth, rates and rates.memory),
            pcie_mib_s=counted.pcie_mib_s,
            temperature_celsius=counted.temperature_celsius,
            power_watts=counted.power_watts,
        )

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
        cards = {place: gpu for place, gpu in enumerate(self._gpus) if gpu.uuid is not None and gpu.card is None}
        handles = {place: self._handle(card) for place, card in cards.items()}
        buses = {card.bus: place for place, card in cards.items() if card.bus is not None}
        pairs = list(linked_pairs(self._nvml, self._query, handles, buses))
        return link_matrix_of_pairs(len(self._gpus), pairs) if pairs else None

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
