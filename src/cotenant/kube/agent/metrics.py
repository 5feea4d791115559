# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics of an agent, as a file in Prometheus' text format for node exporter's textfile collector.

A metric is one row of `METRICS`; docs/reference/metrics.md describes each of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.model import Machine
from cotenant.kube.agent.latency import PodLatency
from cotenant.kube.agent.pod_usage import PodMemory
from cotenant.node.limits import write_read_only

METRICS_FILE = "agent.prom"
Series = Mapping[str, float]
"""a value for each label, such as `kind="drift"`; the label is empty if the metric has none"""


@dataclass(frozen=True, slots=True)
class AgentState:
    """What the metrics are computed from."""

    machine: Machine
    drifting: int
    """pods with another number of devices than their assignment says"""
    errors: Mapping[str, int]
    """errors since the agent started, by kind"""
    pods: Sequence[PodMemory] = ()
    """memory that pods use, and that they were assigned"""
    servers: Sequence[PodLatency] = ()
    """pods with a latency objective"""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str
    type: str
    """gauge or counter"""
    help: str
    value: Callable[[AgentState], Series]


def _errors(state: AgentState) -> Series:
    return {f'kind="{_escaped(kind)}"': count for kind, count in sorted({"drift": 0, **state.errors}.items())}


def _of_pods(amount: Callable[[PodMemory], int]) -> Callable[[AgentState], Series]:
    return lambda state: {
        f'namespace="{_escaped(one.namespace)}",pod="{_escaped(one.pod)}",gpu="{_escaped(one.gpu)}"': amount(one)
        for one in state.pods
    }


def _of_servers(amount: Callable[[PodLatency], float]) -> Callable[[AgentState], Series]:
    def label(one: PodLatency) -> str:
        who = f'namespace="{_escaped(one.namespace)}",pod="{_escaped(one.pod)}"'
        return f'{who},percentile="{one.objective.percentile}"'

    return lambda state: {label(one): amount(one) for one in state.servers}


METRICS = (
    Metric("gpus", "gauge", "GPUs of this node that are handed out.", lambda state: {"": len(state.machine.gpus)}),
    Metric(
        "gpus_healthy",
        "gauge",
        "Those of them that take new tenants.",
        lambda state: {"": sum(gpu.healthy for gpu in state.machine.gpus)},
    ),
    Metric(
        "drift_pods",
        "gauge",
        "Pods with another number of devices than their assignment says.",
        lambda state: {"": state.drifting},
    ),
    Metric(
        "pod_memory_used_mib",
        "gauge",
        "Memory of a GPU that the processes of a pod use, as the driver counts it.",
        _of_pods(lambda one: one.used_mib),
    ),
    Metric(
        "pod_memory_assigned_mib",
        "gauge",
        "Memory of a GPU that a pod was assigned.",
        _of_pods(lambda one: one.assigned_mib),
    ),
    Metric(
        "pod_latency_seconds",
        "gauge",
        "Latency of the requests of a pod with an objective, in its last window.",
        _of_servers(lambda one: one.latency_s),
    ),
    Metric(
        "pod_latency_objective_seconds",
        "gauge",
        "Latency objective of a pod.",
        _of_servers(lambda one: one.objective.seconds),
    ),
    Metric(
        "pod_latency_missed_total",
        "counter",
        "Windows in which a pod missed its latency objective, since the agent started.",
        _of_servers(lambda one: one.missed_total),
    ),
    Metric("errors_total", "counter", "Errors by kind; drift is counted at each look.", _errors),
)


def metrics_text(
    machine: Machine,
    drifting: int,
    errors: Mapping[str, int],
    pods: Sequence[PodMemory] = (),
    servers: Sequence[PodLatency] = (),
) -> str:
    """All metrics, in the order of the table."""
    state = AgentState(machine, drifting, errors, pods, servers)
    return "".join(_lines(metric, metric.value(state)) for metric in METRICS)


def write_metrics(folder: Path, text: str) -> None:
    """Whole or not at all, since the collector may read at any moment."""
    write_read_only(folder / METRICS_FILE, text)


def _lines(metric: Metric, series: Series) -> str:
    name = f"cotenant_agent_{metric.name}"
    rows = "".join(f"{name}{{{label}}} {value}\n" if label else f"{name} {value}\n" for label, value in series.items())
    return f"# HELP {name} {metric.help}\n# TYPE {name} {metric.type}\n{rows}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
