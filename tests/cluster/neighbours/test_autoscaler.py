# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster autoscaler on a real cluster: a pod that waits gets a new node, from a group that had none."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.node.devices.vendors import Vendor
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import Binaries, CannotBuildError
from tests.cluster.engine import Engine, gpus_of, running_engine
from tests.cluster.examples import EXAMPLES
from tests.cluster.neighbours.autoscaler import GROUP, autoscaler, install
from tests.cluster.neighbours.conftest import WANTED, WHY
from tests.cluster.pods import path_of
from tests.cluster.test_gangs import node_of

TEMPLATE: Json = yaml.safe_load((EXAMPLES / "neighbours" / "node-template.yaml").read_text())
LARGE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 60_000}
"""more than a GPU of the node that is there has, and less than all of them together"""


@pytest.fixture
def scaled(say: Callable[[str], None], programs: Binaries, tmp_path: Path) -> Iterator[Engine]:
    """A cluster with the autoscaler and a group of nodes with two large GPUs, which is empty."""
    if not os.environ.get(WANTED):
        pytest.skip(WHY)
    try:
        program = autoscaler(say)
    except CannotBuildError as error:
        pytest.skip(f"needs the cluster: {error}")
    with running_engine(tmp_path, programs) as engine:
        install(engine.cluster, program, TEMPLATE)
        yield engine


def new_nodes(engine: Engine) -> list[str]:
    found = engine.cluster.get(f"/api/v1/nodes?labelSelector={GROUP.replace('/', '%2F')}")["items"]
    return [node["metadata"]["name"] for node in found]


def play_agent(engine: Engine, node: str) -> None:
    """Says about the GPUs of a node without a machine what its agent would say."""
    gpus = tuple(
        Gpu(uuid=f"GPU-{node}-{index}", type="NVIDIA A100-SXM4-80GB", memory=MiB(81_920)) for index in range(2)
    )
    said = {INVENTORY: inventory_for(Machine(name=node, gpus=gpus), Vendor.NVIDIA)}
    engine.cluster.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": said}})


def said_by_autoscaler(engine: Engine, pod: str) -> list[str]:
    events = engine.cluster.get("/api/v1/namespaces/default/events")["items"]
    about = [one for one in events if one["involvedObject"]["name"] == pod]
    return [one["reason"] for one in about if one["reason"] in ("TriggeredScaleUp", "NotTriggerScaleUp")]


def test_a_pod_that_selects_a_group_without_nodes_gets_one(scaled: Engine) -> None:
    scaled.create("anywhere", LARGE)
    scaled.waits("anywhere")
    scaled.create("large", LARGE, nodeSelector={GROUP: "a100"})
    (node,) = wait_for("a new node", lambda: new_nodes(scaled))
    assert "TriggeredScaleUp" in wait_for("an event", lambda: said_by_autoscaler(scaled, "large"))
    # The autoscaler adds up the memory of all GPUs of a node, so it believes that the pod fits on the first one.
    assert not said_by_autoscaler(scaled, "anywhere")
    assert node_of(scaled, "large") is None, "nothing is placed before the agent says which GPUs there are"
    play_agent(scaled, node)
    wait_for("the pod to have the node", lambda: node_of(scaled, "large") == node)
    assert gpus_of(scaled.cluster.get(path_of("large"))) == [f"GPU-{node}-0"]
    wait_for("the other one to follow", lambda: node_of(scaled, "anywhere") == node)
    assert len(new_nodes(scaled)) == 1
