# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""All metrics: one row each, with name, type, labels, help, and for what is read at a scrape its value.

A row of `GPU`, `TENANT_GPU`, `TENANT` or `NODE` is complete: it appears on the page of every node. Each row after
them is a counter, a gauge or a histogram that code changes as things happen (`Counts`). The reference page is made from
all rows, and tests compare it with them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from cotenant.metrics.figures import GpuFigures, NodeFigures, TenantFigures, TenantGpuFigures, TunerState

T = TypeVar("T")
GPU_LABELS = ("node", "gpu")
TENANT_LABELS = ("node", "tenant_namespace", "tenant")
"""Not `namespace` and `pod`: Prometheus gives these names to the pod that it scrapes."""
TENANT_GPU_LABELS = ("node", "gpu", "tenant_namespace", "tenant")
STEP_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)


class Part(StrEnum):
    """A program that is scraped."""

    SCHEDULER = "scheduler"
    AGENT = "agent"
    DAEMON = "daemon"


class Type(StrEnum):
    """A type of Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What every row has."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Metric, Generic[T]):
    """A metric that is read at each scrape: one series for each subject, or several."""

    value: Callable[[T], float | None] | None = None
    """None: the value is not known, which the page shows as NaN."""
    values: Callable[[T], Iterable[tuple[tuple[str, ...], float]]] | None = None
    """Several series of one subject: the values of `more` labels, and the number."""
    more: tuple[str, ...] = ()
    """Labels after those of the subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Metric):
    """A metric that code changes as things happen."""

    parts: tuple[Part, ...]
    """The programs that have it."""
    buckets: tuple[float, ...] = ()
    start: tuple[tuple[str, ...], ...] = ()
    """Label values of the series that exist from the start, with the value 0."""


def _gpu(name: str, help_: str, value: Callable[[GpuFigures], float | None]) -> Measured[GpuFigures]:
    return Measured(name=f"cotenant_gpu_{name}", type=Type.GAUGE, help=help_, labels=GPU_LABELS, value=value)


def _on_gpu(name: str, help_: str, value: Callable[[TenantGpuFigures], float | None]) -> Measured[TenantGpuFigures]:
    return Measured(
        name=f"cotenant_tenant_{name}",
        type=Type.COUNTER if name.endswith("_total") else Type.GAUGE,
        help=help_,
        labels=TENANT_GPU_LABELS,
        value=value,
    )


def _tenant(name: str, help_: str, value: Callable[[TenantFigures], float | None]) -> Measured[TenantFigures]:
    return Measured(
        name=f"cotenant_tenant_{name}",
        type=Type.COUNTER if name.endswith("_total") else Type.GAUGE,
        help=help_,
        labels=TENANT_LABELS,
        value=value,
    )


def _inverse(speed: float | None) -> float | None:
    return 1 / speed if speed else None


GPU: tuple[Measured[GpuFigures], ...] = (
    Measured(
        name="cotenant_gpu_info",
        type=Type.GAUGE,
        help="A GPU of a node; always 1.",
        labels=(*GPU_LABELS, "index", "type", "vendor", "mode"),
        more=("index", "type", "vendor", "mode"),
        values=lambda gpu: [((str(gpu.index), gpu.type, gpu.vendor, gpu.mode), 1)],
    ),
    _gpu("memory_capacity_bytes", "Memory of the GPU.", lambda gpu: gpu.memory_bytes),
    _gpu(
        "memory_allocatable_bytes",
        "Memory that tenants can be assigned together; more than the GPU has if its memory is scaled.",
        lambda gpu: gpu.allocatable_bytes,
    ),
    _gpu("memory_allocated_bytes", "Memory that tenants are assigned.", lambda gpu: gpu.allocated_bytes),
    _gpu("memory_used_bytes", "Memory in use, as the driver reports it.", lambda gpu: gpu.used_bytes),
    _gpu(
        "compute_allocatable_ratio",
        "Compute that tenants can be assigned together; 1 is a whole GPU.",
        lambda gpu: gpu.compute_capacity,
    ),
    _gpu("compute_allocated_ratio", "Compute that tenants are assigned.", lambda gpu: gpu.compute_allocated),
    _gpu(
        "utilization_ratio", "Part of the time, or of the SMs, in use since the last look.", lambda gpu: gpu.utilization
    ),
    _gpu("memory_bandwidth_ratio", "Part of the memory bandwidth in use.", lambda gpu: gpu.bandwidth),
    _gpu("temperature_celsius", "Temperature of the GPU.", lambda gpu: gpu.temperature_celsius),
    _gpu("power_watts", "Power that the GPU draws.", lambda gpu: gpu.power_watts),
    _gpu("healthy", "1 if the GPU takes new tenants as far as its health is concerned.", lambda gpu: gpu.healthy),
    _gpu("cordoned", "1 if no new tenants are placed on the GPU.", lambda gpu: gpu.cordoned),
    _gpu("slots", "Tenants that the GPU can have at a time.", lambda gpu: gpu.slots),
    _gpu("tenants", "Tenants that the GPU has.", lambda gpu: gpu.tenants),
)

TENANT_GPU: tuple[Measured[TenantGpuFigures], ...] = (
    _on_gpu(
        "memory_limit_bytes",
        "Memory limit of the tenant on this GPU; +Inf if it has none.",
        lambda use: float("inf") if use.memory_limit_bytes is None else use.memory_limit_bytes,
    ),
    _on_gpu(
        "memory_request_bytes",
        "Memory that the tenant is guaranteed on this GPU; less than its limit if it requested less.",
        lambda use: use.memory_request_bytes,
    ),
    _on_gpu("memory_used_bytes", "Memory that the driver reports for its processes.", lambda use: use.used_bytes),
    _on_gpu(
        "memory_recorded_bytes",
        "Memory that its processes recorded as allocated in the usage region.",
        lambda use: use.recorded_bytes,
    ),
    _on_gpu("memory_peak_bytes", "Most memory that it recorded.", lambda use: use.peak_bytes),
    _on_gpu("memory_host_bytes", "Memory of the host that it uses beyond its limit.", lambda use: use.host_bytes),
    _on_gpu(
        "memory_context_bytes",
        "Memory that the driver holds for its processes beyond their allocations, as far as contexts explain it.",
        lambda use: use.context_bytes,
    ),
    _on_gpu(
        "memory_drift_bytes",
        "Difference between driver and usage region that contexts do not explain; positive: memory that is not "
        "accounted for.",
        lambda use: use.drift_bytes,
    ),
    _on_gpu("processes", "Processes of the tenant on this GPU.", lambda use: use.processes),
    _on_gpu("device_seconds_total", "Device time that was charged to the tenant.", lambda use: use.device_s),
    _on_gpu(
        "throttled_seconds_total", "Time that its work was held back by its compute share.", lambda use: use.throttled_s
    ),
    _on_gpu("refused_allocations_total", "Allocations refused by its memory limit.", lambda use: use.refused),
    _on_gpu("kernel_launches_total", "Kernels and graphs that it launched.", lambda use: use.launches),
    _on_gpu(
        "compute_asked_ratio",
        "Part of the GPU's compute that it is limited to; 1 if it is not limited.",
        lambda use: 1.0 if use.compute_asked is None else use.compute_asked,
    ),
    _on_gpu(
        "compute_got_ratio", "Part of the GPU's time that it got since the last look.", lambda use: use.compute_got
    ),
    _on_gpu("paused", "1 while it is paused for a tenant of a higher priority class.", lambda use: use.paused),
)

TENANT: tuple[Measured[TenantFigures], ...] = (
    _tenant("speed_ratio", "Throughput divided by the throughput alone on the GPU.", lambda one: one.speed),
    _tenant("slowdown_ratio", "Measured slowdown by its neighbours; 1 is none.", lambda one: _inverse(one.speed)),
    _tenant(
        "predicted_slowdown_ratio",
        "Slowdown that was predicted before it was measured.",
        lambda one: _inverse(one.predicted_speed),
    ),
    _tenant(
        "slowdown_objective_ratio",
        "Slowdown that its owner accepts; +Inf if none is set.",
        lambda one: _inverse(one.least_speed) or float("inf"),
    ),
    _tenant("batch_size", "Batch size that it was last asked to use.", lambda one: one.batch),
    _tenant("batch_size_default", "Batch size that its owner chose.", lambda one: one.default_batch),
    Measured(
        name="cotenant_tenant_tuner_state",
        type=Type.GAUGE,
        help="What the tuner does: 1 for the current state, 0 for the others.",
        labels=(*TENANT_LABELS, "state"),
        more=("state",),
        values=lambda one: [((state,), float(state is one.tuner)) for state in TunerState],
    ),
    _tenant("batch_changes_total", "Batch sizes that it was asked to try or to use.", lambda one: one.batch_changes),
    _tenant("steps_total", "Training steps that it reported.", lambda one: one.steps),
    _tenant("samples_total", "Samples that it reported as trained.", lambda one: one.samples),
    Measured(
        name="cotenant_tenant_isolation_info",
        type=Type.GAUGE,
        help="What holds the tenant to its limits; always 1.",
        labels=(*TENANT_LABELS, "rung"),
        more=("rung",),
        values=lambda one: [((one.rung,), 1)],
    ),
    _tenant("latency_seconds", "Latency of its requests in the last window.", lambda one: one.latency_s),
    Measured(
        name="cotenant_tenant_latency_objective_seconds",
        type=Type.GAUGE,
        help="Latency objective and its percentile; +Inf if none is set.",
        labels=(*TENANT_LABELS, "percentile"),
        more=("percentile",),
        values=lambda one: [((one.latency_percentile,), one.latency_objective_s or float("inf"))],
    ),
    _tenant(
        "latency_missed_total", "Windows in which it missed its latency objective.", lambda one: one.latency_missed
    ),
)

NODE: tuple[Measured[NodeFigures], ...] = (
    Measured(
        name="cotenant_node_kubelet_drift_pods",
        type=Type.GAUGE,
        help="Pods to which kubelet gave another number of device IDs than their assignment says.",
        labels=("node",),
        value=lambda node: node.kubelet_drift_pods,
    ),
    Measured(
        name="cotenant_node_errors_total",
        type=Type.COUNTER,
        help="Errors since the start of the agent or daemon, by kind.",
        labels=("node", "kind"),
        more=("kind",),
        values=lambda node: [((kind,), count) for kind, count in {"drift": 0, **node.errors}.items()],
    ),
)

OMITTED: Measured[int] = Measured(
    name="cotenant_node_tenants_omitted",
    type=Type.GAUGE,
    help="Tenants without series on the page, because it has too many.",
    labels=("node",),
    value=lambda count: count,
)


def _counted(
    name: str, help_: str, *labels: str, parts: tuple[Part, ...], start: tuple[tuple[str, ...], ...] | None = None
) -> Counted:
    return Counted(
        name=f"cotenant_{name}",
        type=Type.COUNTER if name.endswith("_total") else Type.GAUGE,
        help=help_,
        labels=labels,
        parts=parts,
        start=start if start is not None else () if labels else ((),),
    )


def _seconds(
    name: str, help_: str, *labels: str, parts: tuple[Part, ...], buckets: tuple[float, ...] = STEP_BUCKETS
) -> Counted:
    return Counted(
        name=f"cotenant_{name}",
        type=Type.HISTOGRAM,
        help=help_,
        labels=labels,
        parts=parts,
        buckets=buckets,
        start=() if labels else ((),),
    )


_KUBE, _EVERY = (Part.SCHEDULER,), tuple(Part)
_DECIDING, _CLIENTS = (Part.SCHEDULER, Part.DAEMON), (Part.SCHEDULER, Part.AGENT)

BUILD = _counted("build_info", "The program and its version; always 1.", "part", "version", parts=_EVERY)
DECISIONS = _counted(
    "scheduler_decisions_total",
    "Decisions about pods or jobs, by step, outcome and the check that refused.",
    *("step", "outcome", "reason"),
    parts=_DECIDING,
)
STEPS = _seconds("scheduler_step_duration_seconds", "Time for an answer or a pass.", "step", parts=_DECIDING)
WAITS = _seconds(
    "scheduler_wait_seconds",
    "Time from the moment that a pod or job was first seen to its placement.",
    parts=_DECIDING,
    buckets=WAIT_BUCKETS,
)
QUEUED = _counted("scheduler_queue_length", "Pods or jobs that wait.", "queue", parts=_DECIDING, start=(("waiting",),))
OLDEST = _counted(
    "scheduler_oldest_wait_seconds", "How long the oldest pod or job has waited; 0 if none waits.", parts=_DECIDING
)
HOLDS = _counted("scheduler_holds", "Slots that are held for pods until they are bound.", parts=_KUBE)
EXPIRED = _counted(
    "scheduler_holds_expired_total", "Holds that ended because their pod was not bound in time.", parts=_KUBE
)
BINDS = _counted(
    "scheduler_binds_total",
    "Binds of pods.",
    "outcome",
    parts=_KUBE,
    start=(("bound",), ("refused",), ("failed",)),
)
RETRIES = _counted(
    "scheduler_retries_total", "Refused pods that were put back because they would fit now.", parts=_KUBE
)
PREEMPTIONS = _counted("scheduler_preemptions_total", "Pods that were evicted for others.", parts=_KUBE)
LAG = _counted(
    "scheduler_cache_lag_seconds",
    "Time since the API server last confirmed our copy of its objects.",
    "kind",
    parts=_KUBE,
)
LEADER = _counted("scheduler_leader", "1 if this process leads.", parts=_KUBE)
TERMS = _counted("scheduler_terms_total", "How often this process began to lead.", parts=_KUBE)
NODES = _counted(
    "scheduler_nodes",
    "Nodes with GPUs that are known.",
    "state",
    parts=_KUBE,
    start=(("open",), ("closed",)),
)
ERRORS = _counted("scheduler_errors_total", "Errors since the start.", "kind", parts=_KUBE)
REQUESTS = _counted("api_requests_total", "Requests to the API server.", "method", "code", parts=_CLIENTS)
REQUEST_TIME = _seconds("api_request_duration_seconds", "Time of requests to the API server.", "method", parts=_CLIENTS)
PAGES = _counted(
    "metrics_pages_total", "Pages of metrics that were computed; further scrapes got the last one.", parts=_EVERY
)

COUNTED = tuple(row for row in tuple(globals().values()) if isinstance(row, Counted))
METRICS: tuple[Metric, ...] = (*GPU, *TENANT_GPU, *TENANT, *NODE, OMITTED, *COUNTED)
