# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Faults that the driver of NVIDIA GPUs reports between two polls."""

from typing import Any

Faults = dict[tuple[str, int | None], str]
"""By the UUID of a GPU and the number of its GPU instance, or `WHOLE_CARD`."""
WHOLE_CARD = 0xFFFFFFFF
"""Number of the GPU instance in an event that concerns the whole GPU."""
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, not of the GPU (NVIDIA's XID catalogue; its device plugin skips the same ones)."""
_MOST_EVENTS = 100
"""Events read in one poll, so that a storm of events cannot delay it."""


class FaultEvents:
    """The events of all GPUs that are watched. Without events, faults are still found when a GPU is queried."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._set: Any | None = None

    def watch(self, handle: Any) -> None:
        """Reports the faults of a GPU from now on, if the driver can; raises NVMLError if it does not answer."""
        nvml = self._nvml
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        if self._set is None:
            self._set = nvml.nvmlEventSetCreate()
        supported = nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted
        if supported:
            nvml.nvmlDeviceRegisterEvents(handle, supported, self._set)

    def reported(self) -> Faults:
        """The faults since the last call."""
        faults: Faults = {}
        for _ in range(_MOST_EVENTS):
            if self._set is None:
                break
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
                uuid = text_of(self._nvml.nvmlDeviceGetUUID(event.device))
            except self._nvml.NVMLError:
                break  # no more events, or a GPU that cannot even be named: the poll will find its fault
            where = uuid, int(getattr(event, "gpuInstanceId", WHOLE_CARD))
            if event.eventType == self._nvml.nvmlEventTypeDoubleBitEccError:
                faults[where] = "an uncorrectable memory error was reported"
            elif event.eventData not in APPLICATION_XIDS:
                faults[where] = f"XID {event.eventData} was reported"
        return faults

    def close(self) -> None:
        """Raises NVMLError if the driver is gone."""
        events, self._set = self._set, None
        if events is not None:
            self._nvml.nvmlEventSetFree(events)


def text_of(value: str | bytes) -> str:
    """What NVML calls a thing; old bindings answer in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
