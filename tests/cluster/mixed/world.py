# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster of two vendors that the tests of this folder share: a node whose GPUs are oversubscribed, and one with
MLUs. The agent of the first runs there because of its label `gpu=on`, as 4paradigm's and HAMi's documents ask for."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from cotenant.kube.api.names import AGENT, NAMESPACE, SCHEDULER, WEBHOOK, labels_of
from cotenant.kube.codec.inventory import AWAY, INVENTORY
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import Binaries
from tests.cluster.engine import Engine, chart_values, manifests, run_install, running_engine
from tests.cluster.gpus import GpuModel, uuid
from tests.cluster.runtime import STATE
from tests.native import kit

LARGE_CARD_MIB = 2000
CARDS = (GpuModel("Tesla T4", 25), GpuModel("Tesla V100-PCIE-32GB", LARGE_CARD_MIB), GpuModel("Tesla P4", 8000))
"""the last one is hidden"""
SETTINGS = f"""
nodes:
  node1:
    split: 6
    memory-scaling: 150
    compute-scaling: 120
    gpus: {{{uuid(1, 0)}: {{memory-scaling: 200}}}}
    hide: ["2"]
namespaces:
  observed: {{isolation: none}}
  benchmark: {{isolation: optional}}
"""
VALUES = {"agent": {"nodeSelector": {"gpu": "on"}}}
SMALL_MIB, LARGE_MIB = 50, 3000
"""what is handed out of the two cards"""
MLU_AGENT = "cotenant-mlu-agent"
MLU, MLU_MIB = "MLU370", 16 * 1024
MLU_CARDS = (GpuModel(MLU, MLU_MIB),) * 2


@contextlib.contextmanager
def running_both(folder: Path, programs: Binaries) -> Iterator[Engine]:
    """The cluster, once both agents have published their GPUs."""
    labels = {"gpu": "on"}
    with running_engine(folder, programs, gpus=CARDS, settings=SETTINGS, values=VALUES, labels=labels) as engine:
        node = engine.cluster.add_node(MLU_CARDS)
        engine.cluster.kubectl("apply", "--filename=-", feed=mlu_agents(SETTINGS, node))
        wait_for("the MLUs", lambda: has_mlus(engine, node))
        yield engine


def mlu_agents(settings: str, node: str) -> str:
    """A second set of agents, on this node only, also after the node was deleted and has come back."""
    printed = manifests(settings, agent={"nodeSelector": {"kubernetes.io/hostname": node}})
    (found,) = (one for one in printed if one["kind"] == "DaemonSet")
    labels = dict(labels_of(MLU_AGENT))
    found["metadata"]["name"] = MLU_AGENT
    found["spec"]["selector"]["matchLabels"] = labels
    found["spec"]["template"]["metadata"]["labels"] = labels
    return json.dumps(found)


def change_settings(engine: Engine, text: str) -> None:
    """Upgrades with other settings, as an administrator does, and returns when all pods have them."""
    run_install(engine.cluster, "upgrade", chart_values(text, **VALUES), "--reset-values")
    engine.cluster.kubectl("apply", "--filename=-", feed=mlu_agents(text, "node2"))
    for name in (f"deployment/{SCHEDULER}", f"deployment/{WEBHOOK}", f"daemonset/{AGENT}", f"daemonset/{MLU_AGENT}"):
        engine.cluster.kubectl("rollout", "status", name, f"--namespace={NAMESPACE}", "--timeout=120s")
    engine.wait_for_agent("node1")
    wait_for("the MLUs", lambda: has_mlus(engine, "node2"))


def has_mlus(engine: Engine, node: str) -> bool:
    said = engine.node(node)["metadata"]["annotations"]
    return INVENTORY in said and AWAY not in said and allocatable(engine, node, "cambricon.com/mlunum") > 0


def beside_the_driver(code: str) -> list[str]:
    """A program that runs on a node itself, and sees all of its GPUs."""
    return ["env", f"LD_LIBRARY_PATH={kit.standin()}", f"STANDIN_STATE={STATE}", sys.executable, "-c", code]


def break_card(engine: Engine, index: int, answer: int, node: str = "node1") -> None:
    """From now on the library answers this to everything about a GPU; 0: it works."""
    code = f"import ctypes; ctypes.CDLL('libcuda.so.1').standinBreak({index}, {answer})"
    engine.machine(node).run(*beside_the_driver(code))


def allocatable(engine: Engine, node: str, resource: str) -> int:
    return int(engine.node(node)["status"].get("allocatable", {}).get(resource, "0"))


def cards_of(engine: Engine, node: str) -> dict[str, Json]:
    """What a node's agent publishes of each of its cards, by UUID."""
    published = json.loads(engine.node(node)["metadata"]["annotations"][INVENTORY])
    return {card["uuid"]: card for card in published["cards"]}
