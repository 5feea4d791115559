# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of the suite, and the report that a user can hand in."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

FORMAT = 1
"""of the report"""


class Way(StrEnum):
    """How a client is limited."""

    NONE = "none"
    """not at all: the baseline"""
    PRELOAD = "preload"
    """the vGPU library, preloaded"""
    STRICT = "strict"
    """the vGPU library, also in place of the driver's"""
    MPS = "mps"
    """NVIDIA's Multi-Process Service"""
    DRIVER = "driver"
    """MPS, and the driver limits the memory of a cgroup"""


BY_LIBRARY = (Way.PRELOAD, Way.STRICT)


class Result(StrEnum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    MEASURED = "measured"
    """a figure without a promise"""
    SKIPPED = "skipped"


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure of one way to limit clients."""

    check: str
    rung: str
    result: Result
    device: str
    """the GPU that it was measured on; begins with `stand-in` if it was none"""
    value: float | None = None
    unit: str = ""
    expected: str = ""
    metric: str | None = None
    """of GPU-Virt-Bench (arXiv 2512.22125), if it measures the same"""
    note: str = ""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU and its driver, as a program without limits sees them."""

    gpu: str
    capability: str
    cuda: str
    total_mib: int
    free_mib: int
    info_mib: int
    stand_in: bool

    @property
    def title(self) -> str:
        return f"stand-in ({self.gpu})" if self.stand_in else self.gpu


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of one run."""

    format: int
    cotenant: str
    at: str
    """date and time, UTC"""
    device: Device
    rows: Sequence[Row]
