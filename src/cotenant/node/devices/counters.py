# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Counters that only some NVIDIA GPUs have: busy SMs and memory traffic (GPM, from Hopper on), traffic over PCIe,
temperature and power.

Scheduling works without them, so an error here turns the counter off and is no fault of the GPU.
"""

from contextlib import suppress
from typing import Any, NamedTuple

_KIB_IN_MIB = 1024
_MILLI = 1000
_SENSORS = ("nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage")
_ABSURD = 1e7
"""Percent or MiB/s above what any GPU can do: the counter wrapped, or was reset between two polls."""


class Counted(NamedTuple):
    """What one GPU did; None if it is not counted."""

    utilisation: float | None = None
    """Percent of its SMs that were busy, on average since the last poll."""
    bandwidth: float | None = None
    """Percent of the bandwidth of its memory, on average since the last poll."""
    pcie_mib_s: float | None = None
    """Traffic to and from it."""
    temperature_celsius: float | None = None
    power_watts: float | None = None


class Counters:
    """The counters of one GPU; the driver keeps the last sample until `close`."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._samples: list[Any] = []
        """At most one between two polls."""
        self._has_gpm: bool | None = None
        """None: not queried yet."""
        self._has_pcie = True
        self._has_sensors = set(_SENSORS)

    def poll(self, handle: Any, *, pcie: bool) -> Counted:
        """The counters now; with `pcie`, the driver first watches the traffic for 20 ms in each direction."""
        counted = self._since_last_poll(handle)._replace(
            temperature_celsius=self._sensor(_SENSORS[0], 1, handle, self._nvml.NVML_TEMPERATURE_GPU),
            power_watts=self._sensor(_SENSORS[1], _MILLI, handle),
        )
        if counted.pcie_mib_s is None and pcie:
            return counted._replace(pcie_mib_s=self._pcie_now(handle))
        return counted

    def close(self) -> None:
        """Returns the sample to the driver; a later poll begins anew."""
        self._free_samples()
        self._has_gpm, self._has_pcie = None, True
        self._has_sensors = set(_SENSORS)

    def _since_last_poll(self, handle: Any) -> Counted:
        try:
            if self._has_gpm is None:
                self._has_gpm = bool(self._nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
            return self._sampled(handle) if self._has_gpm else Counted()
        except self._nvml.NVMLError:
            self._has_gpm = False
            self._free_samples()
            return Counted()

    def _sampled(self, handle: Any) -> Counted:
        """Takes a sample and returns the one before it."""
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
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(wanted)
        query.sample1, query.sample2 = earlier, later
        for place, metric in enumerate(wanted):
            query.metrics[place].metricId = metric
        answered = nvml.nvmlGpmMetricsGet(query).metrics
        busy, bandwidth, sent, received = (self._value(answered[place]) for place in range(len(wanted)))
        return Counted(_percent(busy), _percent(bandwidth), None if None in (sent, received) else sent + received)

    def _value(self, metric: Any) -> Any:
        """None if the GPU does not offer this metric, or its value is impossible (NaN included)."""
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

    def _sensor(self, function: str, parts: int, *arguments: Any) -> float | None:
        """The value of a sensor in its base unit; None if the GPU has none, as MIG instances do."""
        if function not in self._has_sensors:
            return None
        try:
            return float(getattr(self._nvml, function)(*arguments)) / parts
        except self._nvml.NVMLError:
            self._has_sensors.discard(function)
            return None

    def _free_samples(self) -> None:
        samples, self._samples = self._samples, []
        for sample in samples:
            with suppress(self._nvml.NVMLError):  # the driver may be gone, and the sample with it
                self._nvml.nvmlGpmSampleFree(sample)


def _percent(value: float | None) -> float | None:
    return None if value is None else min(100.0, value)


def counted_or(counted: float | None, otherwise: int | None) -> int | None:
    """A percentage by the counters, or else by the driver's own sampling."""
    return round(counted) if counted is not None else otherwise
