# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever part is restarted, pods that run are not disturbed and the books are right afterwards."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cotenant.kube.api.names import AGENT
from tests.cluster.engine import V100, Engine
from tests.cluster.pods import path_of
from tests.cluster.tenant import REPEATS

WHOLE_MEMORY = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": V100.memory_mib}
MOST_PODS = 40
RESTARTS: dict[str, Callable[[Engine], None]] = {
    "kubelet": lambda engine: engine.restart_kubelet("node1"),
    "containerd": lambda engine: engine.machine("node1").restart("containerd"),
    "agent": lambda engine: engine.restart_agent("node1"),
    "scheduler": lambda engine: engine.restart_scheduler(),
    "API server": lambda engine: engine.cluster.restart_server(),
}


@pytest.mark.parametrize("part", RESTARTS)
def test_running_pods_are_undisturbed_and_counted_after_a_restart(engine: Engine, part: str) -> None:
    engine.create("stays", {"nvidia.com/gpumem": 1000}, REPEATS, annotations={"nvidia.com/use-gputype": "V100"})
    engine.started("stays")
    before = engine.said("stays")
    RESTARTS[part](engine)
    restarted = time.time()
    engine.fits(WHOLE_MEMORY)
    engine.create("both", {**WHOLE_MEMORY, "nvidia.com/gpu": 2}, "")
    assert "not enough GPU memory" in engine.waits("both")
    (status,) = engine.cluster.get(path_of("stays"))["status"]["containerStatuses"]
    assert (status["restartCount"], "running" in status["state"]) == (0, True)
    now = engine.said("stays")
    assert now["at"] > restarted
    assert {**now, "at": 0} == {**before, "at": 0}


def test_no_pod_is_lost_while_the_agent_of_its_node_is_replaced(engine: Engine) -> None:
    """Kubelet gives a pod up for good that comes while no device plugin answers; so none is sent there meanwhile."""
    (before,) = agents(engine)
    names = list[str]()
    with ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(engine.restart_agent, "node1")
        while not replacing.done() and len(names) < MOST_PODS:
            names.append(f"meanwhile-{len(names)}")
            engine.create(names[-1], {"nvidia.com/gpumem": 100}, "")
            time.sleep(0.4)
        replacing.result()
    (after,) = agents(engine)
    assert after != before
    assert {engine.ended(name)["spec"]["nodeName"] for name in names} == {"node1"}


def agents(engine: Engine) -> list[str]:
    return [pod["metadata"]["uid"] for pod in engine.our_pods(AGENT) if pod["spec"].get("nodeName") == "node1"]
