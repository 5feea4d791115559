# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON form of a slice's status: its limits, what its processes recorded, and what the driver reports."""

import msgspec


class SliceGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A slice's part of one GPU; None: not limited, or not known."""

    uuid: str | None
    memory_limit_bytes: int | None
    host_limit_bytes: int = 0
    compute_limit: int = 1000
    """thousandths of the GPU"""
    paused: bool = False
    memory_bytes: int = 0
    """as its processes recorded it in the usage region"""
    host_bytes: int = 0
    """allocated in host memory, beyond the memory limit"""
    peak_bytes: int = 0
    refused: int = 0
    """allocations that exceeded the memory limit"""
    launches: int = 0
    busy_s: float = 0.0
    """seconds of GPU time that were charged"""
    waited_s: float = 0.0
    """seconds that launches were delayed"""
    nvml_bytes: int | None = None
    """memory of the same processes, as the driver reports it"""
    drift_bytes: int | None = None
    """the driver's number minus the recorded one"""
    drift_percent: float | None = None
    """of the recorded number; None: nothing is recorded"""


class SliceView(msgspec.Struct, frozen=True, kw_only=True):
    """One slice and its use."""

    name: str
    created: float | None
    policy: str
    priority: str
    processes: int
    faults: dict[str, int]
    gpus: tuple[SliceGpu, ...]
