# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Kubeflow Trainer on a real cluster: the nodes of a TrainJob start together."""

from tests.cluster.api import wait_for
from tests.cluster.engine import Engine
from tests.cluster.examples import apply
from tests.cluster.neighbours.test_jobset import members, running
from tests.cluster.test_gangs import LARGE, assert_apart
from tests.cluster.test_waiting import why


def test_the_pods_of_a_trainjob_start_together(beside: Engine) -> None:
    beside.create("fills", LARGE)
    beside.started("fills")
    apply(beside, "neighbours/trainjob.yaml")
    two = wait_for("its pods", lambda: found if len(found := members(beside, "fine-tune")) == 2 else None)
    name = two[0]["metadata"]["name"]
    wait_for("a word", lambda: "gang" in why(beside, name))
    assert [pod["spec"].get("nodeName") for pod in members(beside, "fine-tune")] == [None] * 2, "one would fit"
    beside.delete("fills")
    assert_apart(*wait_for("both to run", lambda: running(beside, "fine-tune", 2)))
    beside.cluster.kubectl("delete", "trainjob/fine-tune", "clustertrainingruntime/shared-gpus", "--timeout=60s")
