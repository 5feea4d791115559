# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the metrics of a node are computed from: its GPUs and its tenants at one moment, the same in every engine.

None means that a number is not known. Its series exists all the same, with the value NaN.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TunerState(StrEnum):
    """What the tuner does with a tenant."""

    OFF = "off"
    """The program does not report, or may not be tuned."""
    WAITING = "waiting"
    TRYING = "trying"
    """Batch sizes are tried on its GPU."""
    CHOSEN = "chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """One GPU of a node."""

    uuid: str
    index: int
    type: str
    vendor: str
    mode: str = ""
    """The MIG profile; empty: a whole GPU."""
    memory_bytes: int
    allocatable_bytes: int
    """What tenants can be assigned together; more than the memory if it is scaled."""
    allocated_bytes: int = 0
    compute_capacity: float = 1.0
    """Fractions of a GPU that tenants can be assigned together."""
    compute_allocated: float = 0.0
    slots: int = 1
    tenants: int = 0
    healthy: bool = True
    cordoned: bool = False
    used_bytes: int | None = None
    utilization: float | None = None
    bandwidth: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantGpuFigures:
    """What a tenant has and uses of one GPU."""

    uuid: str
    memory_request_bytes: int | None = None
    """What it is guaranteed; None: no amount."""
    memory_limit_bytes: int | None = None
    """None: it is not limited."""
    compute_asked: float | None = None
    """Fraction of the GPU; None: it is not limited."""
    compute_got: float | None = None
    used_bytes: int | None = None
    """As the driver reports it."""
    recorded_bytes: int | None = None
    """As its processes recorded it in the usage region."""
    peak_bytes: int = 0
    host_bytes: int = 0
    processes: int = 0
    device_s: float = 0.0
    throttled_s: float = 0.0
    refused: int = 0
    launches: int = 0
    paused: bool = False
    context_bytes: int | None = None
    """What the driver holds for its processes beyond their allocations, as far as contexts explain it."""
    drift_bytes: int | None = None
    """The difference between driver and region that contexts do not explain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """A job or a pod that has GPUs of a node."""

    name: str
    namespace: str = ""
    """Empty: a job of one machine."""
    container: str = ""
    """The name of its first container with GPUs; empty: a job."""
    gpus: tuple[TenantGpuFigures, ...] = ()
    rung: str = ""
    """The isolation rung; empty: not known."""
    speed: float | None = None
    """Throughput divided by the throughput alone."""
    predicted_speed: float | None = None
    least_speed: float | None = None
    """The objective: the speed that it must keep."""
    batch: int | None = None
    default_batch: int | None = None
    tuner: TunerState = TunerState.OFF
    batch_changes: int = 0
    steps: int = 0
    samples: int = 0
    latency_s: float | None = None
    latency_objective_s: float | None = None
    latency_percentile: str = ""
    """Of the objective; empty: it has none."""
    latency_missed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """A node and everything on it."""

    node: str
    gpus: tuple[GpuFigures, ...] = ()
    tenants: tuple[TenantFigures, ...] = ()
    kubelet_drift_pods: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors since the start, by kind."""
