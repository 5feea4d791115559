# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What an agent counts, as a file in Prometheus' text format on its node: for node exporter's textfile collector."""

from collections.abc import Mapping
from pathlib import Path

from cotenant.core.model import Machine
from cotenant.node.limits import write_read_only

FILE = "agent.prom"
Series = Mapping[str, float]
"""by label, such as `kind="drift"`; of a figure without labels the label is empty"""


def figures_text(machine: Machine, drifting: int, troubles: Mapping[str, int]) -> str:
    """All figures, in an order that stays."""
    healthy = sum(gpu.healthy for gpu in machine.gpus)
    counts = {f'kind="{_escaped(kind)}"': count for kind, count in sorted({"drift": 0, **troubles}.items())}
    parts = (
        ("cards", "gauge", "Cards of this node that are handed out.", {"": len(machine.gpus)}),
        ("cards_healthy", "gauge", "Those of them that take new tenants.", {"": healthy}),
        ("drift_pods", "gauge", "Pods with another number of devices than their record says.", {"": drifting}),
        ("troubles_total", "counter", "What went wrong, by kind; drift is counted at each look.", counts),
    )
    return "".join(_figure(f"cotenant_agent_{name}", kind, about, series) for name, kind, about, series in parts)


def write_figures(folder: Path, text: str) -> None:
    """Whole or not at all: the collector may read at any moment."""
    write_read_only(folder / FILE, text)


def _figure(name: str, kind: str, about: str, series: Series) -> str:
    rows = "".join(f"{name}{{{label}}} {value}\n" if label else f"{name} {value}\n" for label, value in series.items())
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n{rows}"


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
