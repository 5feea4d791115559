# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What programs are shown of slices: limits, what the processes say they use, and what the driver says."""

import msgspec


class SliceGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A slice's part of one GPU; None where something is not limited or not known."""

    uuid: str | None
    memory_limit_bytes: int | None
    host_limit_bytes: int = 0
    compute_limit: int = 1000
    """thousandths of the GPU"""
    paused: bool = False
    memory_bytes: int = 0
    """by the accounts of its processes"""
    host_bytes: int = 0
    """beyond the quota, in host memory"""
    peak_bytes: int = 0
    refused: int = 0
    """allocations, for want of quota"""
    launches: int = 0
    busy_s: float = 0.0
    """device time that was charged"""
    waited_s: float = 0.0
    """that launches were held back"""
    nvml_bytes: int | None = None
    """of the same processes, by the driver"""
    drift_bytes: int | None = None
    """what the driver says beyond the accounts; negative: less"""
    drift_percent: float | None = None
    """of the accounts; None also where these say nothing"""


class SliceView(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of GPUs and what is done with it."""

    name: str
    created: float | None
    policy: str
    priority: str
    processes: int
    faults: dict[str, int]
    gpus: tuple[SliceGpu, ...]
