# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the `pynvml` module whose cards can be broken one by one. Names are those of the real module."""

# ruff: noqa: N802, N815

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 1024**3


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(NAMES.get(value, f"error {value}"))
        self.value = value


NAMES = {
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
}

Far = tuple[int, int]
"""bus and device type at the far end of an NVLink"""


@dataclass
class GpuModel:
    """One GPU; `broken` maps a question to the error number it is answered with, `*` to all."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB"
    memory: int = 40 * GIB
    used: int = 0
    bus: int = 0
    links: list[Far] = field(default_factory=list)
    affinity: int | None = None
    """bits of NUMA nodes, as the driver tells them; None: it does not"""
    mig: int = 0
    instances: "list[GpuModel]" = field(default_factory=list)
    """of a card in MIG mode"""
    slices: int = 0
    """of a MIG instance: slices of compute, out of seven"""
    ecc: int = 0
    remapped: tuple[int, int, int, int] = (0, 0, 0, 0)
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    samples: list[tuple[int, int, int]] = field(default_factory=list)
    """pid, time stamp in microseconds, SM percent"""
    pcie: tuple[int, int] = (0, 0)
    """KiB/s from it and to it"""
    gpm: dict[int, float] | None = None
    """metrics by number, of which the others are not offered; None: a card without them"""
    asked: list[str] = field(default_factory=list)
    """of its counters"""
    broken: dict[str, int] = field(default_factory=dict)


class GpmQuestion:
    """As far as our side fills it in."""

    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1: Any = None
        self.sample2: Any = None
        self.metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(8)]


class FakeNvml:
    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_INSUFFICIENT_SIZE = 7
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TOPOLOGY_INTERNAL = 0
    NVML_TOPOLOGY_SINGLE = 10
    NVML_TOPOLOGY_MULTIPLE = 20
    NVML_TOPOLOGY_HOSTBRIDGE = 30
    NVML_TOPOLOGY_NODE = 40
    NVML_TOPOLOGY_SYSTEM = 50
    NVML_AFFINITY_SCOPE_NODE = 0
    NVML_FEATURE_ENABLED = 1
    NVML_NVLINK_MAX_LINKS = 18
    NVML_NVLINK_DEVICE_TYPE_GPU = 0
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_TEMPERATURE_GPU = 0
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10
    NVML_GPM_METRIC_PCIE_TX_PER_SEC = 20
    NVML_GPM_METRIC_PCIE_RX_PER_SEC = 21
    c_nvmlGpmMetricsGet_t: Any = GpmQuestion
    nvmlEventTypeDoubleBitEccError = 2
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *cards: GpuModel, ancestor: Callable[[int, int], int] = lambda a, b: 50) -> None:
        self.cards = list(cards)
        self.ancestor = ancestor
        self.init_error: int | None = None
        self.events: list[tuple[GpuModel, int, int]] = []
        """card, type, data"""
        self.event_instance = 0xFFFFFFFF
        """the GPU instance that events are about; this one: the whole card"""
        self.sessions = 0
        self.event_sets = 0
        self.gpm_samples: list[Any] = []
        """allocated and not freed"""

    def _ask(self, card: GpuModel, question: str) -> None:
        if self.sessions == 0:
            raise NVMLError(1)
        error = card.broken.get(question, card.broken.get("*"))
        if error is not None:
            raise NVMLError(error)

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        if self.sessions == 0:
            raise NVMLError(1)
        self.sessions -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> GpuModel:
        self._ask(self.cards[index], "handle")
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> GpuModel:
        every = [*self.cards, *(one for card in self.cards for one in card.instances)]
        card = next((card for card in every if card.uuid == uuid), None)
        if card is None:
            raise NVMLError(6)
        self._ask(card, "handle")
        return card

    def nvmlDeviceGetUUID(self, card: GpuModel) -> str:
        self._ask(card, "uuid")
        return card.uuid

    def nvmlDeviceGetName(self, card: GpuModel) -> bytes:
        self._ask(card, "name")
        return card.name.encode()  # old versions of the binding give bytes

    def nvmlDeviceGetMemoryInfo(self, card: GpuModel) -> Any:
        self._ask(card, "memory")
        return SimpleNamespace(total=card.memory, used=card.used)

    def nvmlDeviceGetPciInfo(self, card: GpuModel) -> Any:
        self._ask(card, "pci")
        return SimpleNamespace(domain=0, bus=card.bus, device=0)

    def nvmlDeviceGetMigMode(self, card: GpuModel) -> list[int]:
        self._ask(card, "mig")
        return [card.mig, card.mig]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: GpuModel) -> int:
        self._ask(card, "instances")
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: GpuModel, index: int) -> GpuModel:
        self._ask(card, "instances")
        if index >= len(card.instances):
            raise NVMLError(6)
        return card.instances[index]

    def nvmlDeviceGetAttributes_v2(self, card: GpuModel) -> Any:
        self._ask(card, "attributes")
        return SimpleNamespace(
            computeInstanceSliceCount=card.slices,
            gpuInstanceSliceCount=card.slices,
            memorySizeMB=card.memory // 1024**2,
        )

    def nvmlDeviceGetGpuInstanceId(self, card: GpuModel) -> int:
        return card.bus

    def nvmlDeviceGetTotalEccErrors(self, card: GpuModel, kind: int, counter: int) -> int:
        self._ask(card, "ecc")
        return card.ecc

    def nvmlDeviceGetRemappedRows(self, card: GpuModel) -> tuple[int, int, int, int]:
        self._ask(card, "remapped")
        return card.remapped

    def nvmlDeviceGetUtilizationRates(self, card: GpuModel) -> Any:
        self._ask(card, "rates")
        return SimpleNamespace(gpu=73, memory=21)

    def nvmlDeviceGetTemperature(self, card: GpuModel, sensor: int) -> int:
        card.asked.append("temperature")
        self._ask(card, "temperature")
        return 61

    def nvmlDeviceGetPowerUsage(self, card: GpuModel) -> int:
        card.asked.append("power")
        self._ask(card, "power")
        return 245_500

    def nvmlDeviceGetPcieThroughput(self, card: GpuModel, way: int) -> int:
        card.asked.append("pcie")
        self._ask(card, "pcie")
        return card.pcie[way]

    def nvmlGpmQueryDeviceSupport(self, card: GpuModel) -> Any:
        card.asked.append("gpm_support")
        self._ask(card, "gpm_support")
        return SimpleNamespace(isSupportedDevice=int(card.gpm is not None))

    def nvmlGpmSampleAlloc(self) -> Any:
        self.gpm_samples.append(sample := SimpleNamespace(card=None))
        return sample

    def nvmlGpmSampleGet(self, card: GpuModel, sample: Any) -> Any:
        self._ask(card, "gpm_sample")
        sample.card = card
        return sample

    def nvmlGpmMetricsGet(self, question: Any) -> Any:
        assert question.version == self.NVML_GPM_METRICS_GET_VERSION
        earlier, later, card = question.sample1, question.sample2, question.sample2.card
        assert [id(one) for one in self.gpm_samples if one.card is card] == [id(earlier), id(later)]
        self._ask(card, "gpm_metrics")
        for metric in question.metrics[: question.numMetrics]:
            value = (card.gpm or {}).get(metric.metricId)
            metric.nvmlReturn, metric.value = (3, 0.0) if value is None else (0, value)
        return question

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.gpm_samples = [one for one in self.gpm_samples if one is not sample]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, card: GpuModel) -> list[Any]:
        self._ask(card, "processes_v3")
        return self.nvmlDeviceGetComputeRunningProcesses_v2(card)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, card: GpuModel) -> list[Any]:
        self._ask(card, "processes")
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in card.processes]

    def nvmlDeviceGetProcessUtilization(self, card: GpuModel, since: int) -> list[Any]:
        self._ask(card, "process_utilisation")
        fresh = [sample for sample in card.samples if sample[1] > since]
        if not fresh:
            raise NVMLError(0)  # as the real binding does
        return [SimpleNamespace(pid=pid, timeStamp=stamp, smUtil=busy) for pid, stamp, busy in fresh]

    def nvmlDeviceGetTopologyCommonAncestor(self, one: GpuModel, other: GpuModel) -> int:
        self._ask(one, "topology")
        self._ask(other, "topology")
        return self.ancestor(self.cards.index(one), self.cards.index(other))

    def nvmlDeviceGetMemoryAffinity(self, card: GpuModel, size: int, scope: int) -> list[int]:
        self._ask(card, "affinity")
        if card.affinity is None:
            raise NVMLError(3)
        return [card.affinity >> 64 * place & (1 << 64) - 1 for place in range(size)]

    def nvmlDeviceGetNvLinkState(self, card: GpuModel, link: int) -> int:
        self._ask(card, "nvlink")
        if link >= len(card.links):
            raise NVMLError(2)
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card: GpuModel, link: int) -> int:
        self._ask(card, "nvlink_type")
        return card.links[link][1]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: GpuModel, link: int) -> Any:
        self._ask(card, "nvlink_pci")
        return SimpleNamespace(domain=0, bus=card.links[link][0], device=0)

    def nvmlEventSetCreate(self) -> object:
        self.event_sets += 1
        return object()

    def nvmlEventSetFree(self, events: object) -> None:
        self.event_sets -= 1

    def nvmlDeviceGetSupportedEventTypes(self, card: GpuModel) -> int:
        self._ask(card, "events")
        return 0xFF

    def nvmlDeviceRegisterEvents(self, card: GpuModel, kinds: int, events: object) -> None:
        self._ask(card, "events")

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> Any:
        if not self.events:
            raise NVMLError(10)
        card, kind, payload = self.events.pop(0)
        return SimpleNamespace(device=card, eventType=kind, eventData=payload, gpuInstanceId=self.event_instance)
