# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`kubectl inspect` on a real cluster: kubectl finds the plugins, and they tell of what is there."""

import json
from pathlib import Path

import pytest

from cotenant.kube.codec.inventory import USED
from tests.cluster.api import wait_for
from tests.cluster.components import node_address
from tests.cluster.engine import Engine
from tests.cluster.plugins import Plugins

RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def plugins(engine: Engine, tmp_path: Path) -> Plugins:
    return Plugins(engine, tmp_path)


def test_kubectl_shows_what_is_given_asked_for_and_used(engine: Engine, plugins: Plugins) -> None:
    engine.create("given", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096})
    engine.create("later", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1_000_000})
    engine.started("given")
    engine.waits("later")
    wait_for("the agent to tell what is used", lambda: engine.node("node1")["metadata"]["annotations"].get(USED))
    heading, *rows = [line.split("  ") for line in plugins.kubectl("inspect", "gpushare").splitlines()]
    cells = [[cell.strip() for cell in row if cell] for row in rows]
    assert [cell.strip() for cell in heading if cell][:2] == ["NAME", "IPADDRESS"]
    assert cells[0][:2] == ["node1", node_address(1)]
    assert sorted(cells[0][2:5]) in (["0/15", "0/32", "4/32"], ["0/32", "0/32", "4/15"])
    assert cells[0][6:8] == ["4/79", "4"]
    assert float(cells[0][8]) >= 0
    assert cells[1][5] == "976.56"
    assert cells[-1] == ["4/79 GiB (5%)"]

    details = [line.split() for line in plugins.kubectl("inspect", "gpushare", "-d", "node1").splitlines()]
    assert ["given", "default"] in [row[:2] for row in details]
    assert "later" not in [row[0] for row in details if row]
    assert plugins.kubectl("inspect", "gpu", "node1").splitlines()[1].split() == ["node1", "3", "1"]


def test_kubectl_cotenant_is_our_own_command(engine: Engine, plugins: Plugins) -> None:
    seen = json.loads(plugins.kubectl("cotenant", "kube", "inspect", "gpu", "-o", "json"))
    assert [node["name"] for node in seen["nodes"]] == ["node1"]
    assert seen["policy"] == "binpack"


def test_fewer_rights_show_less_and_say_so(engine: Engine, plugins: Plugins) -> None:
    engine.cluster.add_user("looker", "lookers")
    with pytest.raises(RuntimeError, match="you need the right to `list` nodes"):
        plugins.kubectl("inspect", "gpu", user="looker")
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]
    engine.cluster.post(f"{RBAC}/clusterroles", {"metadata": {"name": "looker"}, "rules": rules})
    binding = {
        "metadata": {"name": "looker"},
        "subjects": [{"kind": "ServiceAccount", "name": "looker", "namespace": "lookers"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "looker"},
    }
    engine.cluster.post(f"{RBAC}/clusterrolebindings", binding)
    engine.create("other", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096})
    engine.create("own", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}, namespace="lookers")
    engine.started("other")
    engine.started("own", "lookers")
    asked = ["inspect", "gpushare", "-n", "lookers", "-o", "json"]
    seen = wait_for("the rights", lambda: json.loads(plugins.kubectl(*asked, user="looker")))
    assert (seen["namespace"], seen["policy"]) == ("lookers", None)
    assert sum(card["assigned_mib"] for card in seen["nodes"][0]["gpus"]) == 1024
