# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's metrics, as a collector reads them."""

from dataclasses import replace
from pathlib import Path

from cotenant.kube.agent.metrics import metrics_text, write_metrics
from tests.kube.pods import NODE


def test_metrics_are_in_the_format_that_collectors_read(tmp_path: Path) -> None:
    sick = replace(NODE, gpus=(replace(NODE.gpus[0], healthy=False), *NODE.gpus[1:]))
    write_metrics(tmp_path, metrics_text(sick, 2, {"node": 1, 'a "kind"\n\\': 3}))
    lines = (tmp_path / "agent.prom").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "cotenant_agent_gpus 4",
        "cotenant_agent_gpus_healthy 3",
        "cotenant_agent_drift_pods 2",
        'cotenant_agent_errors_total{kind="a \\"kind\\"\\n\\\\"} 3',
        'cotenant_agent_errors_total{kind="drift"} 0',
        'cotenant_agent_errors_total{kind="node"} 1',
    ]
    assert "# TYPE cotenant_agent_errors_total counter" in lines


def test_metrics_are_replaced_as_a_whole(tmp_path: Path) -> None:
    write_metrics(tmp_path, "old\n")
    write_metrics(tmp_path, "new\n")
    assert [file.name for file in tmp_path.iterdir()] == ["agent.prom"]
    assert (tmp_path / "agent.prom").read_text() == "new\n"
