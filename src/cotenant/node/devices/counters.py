# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What only some NVIDIA cards count: busy SMs and memory traffic (GPM, from Hopper on), and traffic over PCIe.

Scheduling does without any of it, so an error here turns the counter off and is no fault of the card.
"""

from contextlib import suppress
from typing import Any, NamedTuple

_KIB_IN_MIB = 1024
_ABSURD = 1e7
"""percent or MiB/s, above anything a card can do: a counter that wrapped, or was reset between two looks"""


class Counted(NamedTuple):
    """What one card did; None where it is not counted."""

    utilisation: float | None = None
    """percent of its SMs, on average since the last look"""
    bandwidth: float | None = None
    """percent of what its memory can carry, on average since the last look"""
    pcie_mib_s: float | None = None
    """to and from it"""


class Counters:
    """The counters of one card; the driver keeps its last sample for us until `close`."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._samples: list[Any] = []
        """at most one between two looks"""
        self._has_gpm: bool | None = None
        """None: nobody has asked"""
        self._has_pcie = True

    def look(self, handle: Any, *, pcie: bool) -> Counted:
        """What is counted; with `pcie` also that traffic which the driver must first watch, for 20 ms each way."""
        counted = self._since_last_look(handle)
        if counted.pcie_mib_s is None and pcie:
            return counted._replace(pcie_mib_s=self._pcie_now(handle))
        return counted

    def close(self) -> None:
        """Gives the sample back; a later look begins anew."""
        self._free_samples()
        self._has_gpm, self._has_pcie = None, True

    def _since_last_look(self, handle: Any) -> Counted:
        try:
            if self._has_gpm is None:
                self._has_gpm = bool(self._nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
            return self._sampled(handle) if self._has_gpm else Counted()
        except self._nvml.NVMLError:
            self._has_gpm = False
            self._free_samples()
            return Counted()

    def _sampled(self, handle: Any) -> Counted:
        """Takes a sample and lets the one before it go."""
        nvml = self._nvml
        self._samples.append(nvml.nvmlGpmSampleAlloc())
        nvml.nvmlGpmSampleGet(handle, self._samples[-1])
        if len(self._samples) == 1:
            return Counted()
        counted = self._between(*self._samples)
        nvml.nvmlGpmSampleFree(self._samples.pop(0))
        return counted

    def _between(self, earlier: Any, later: Any) -> Counted:
        nvml = self._nvml
        wanted = (
            nvml.NVML_GPM_METRIC_SM_UTIL,
            nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
            nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
            nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
        )
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(wanted)
        asked.sample1, asked.sample2 = earlier, later
        for place, metric in enumerate(wanted):
            asked.metrics[place].metricId = metric
        answered = nvml.nvmlGpmMetricsGet(asked).metrics
        busy, bandwidth, sent, received = (self._value(answered[place]) for place in range(len(wanted)))
        return Counted(_percent(busy), _percent(bandwidth), None if None in (sent, received) else sent + received)

    def _value(self, metric: Any) -> Any:
        """None where this one is not offered, or cannot be (not a number included)."""
        return metric.value if metric.nvmlReturn == self._nvml.NVML_SUCCESS and 0 <= metric.value < _ABSURD else None

    def _pcie_now(self, handle: Any) -> float | None:
        nvml = self._nvml
        try:
            if not self._has_pcie:
                return None
            directions = (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
            return sum(int(nvml.nvmlDeviceGetPcieThroughput(handle, way)) for way in directions) / _KIB_IN_MIB
        except nvml.NVMLError:
            self._has_pcie = False
            return None

    def _free_samples(self) -> None:
        samples, self._samples = self._samples, []
        for sample in samples:
            with suppress(self._nvml.NVMLError):  # it may have gone with the driver
                self._nvml.nvmlGpmSampleFree(sample)


def _percent(value: float | None) -> float | None:
    return None if value is None else min(100.0, value)
