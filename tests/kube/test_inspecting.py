# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Scripts that read the `inspect` routes of gpushare's and the topology work's extenders find what they expect."""

from dataclasses import replace

import pytest

from cotenant.core.model import MACHINE_TYPE_LABEL, Link
from cotenant.core.units import MiB
from cotenant.kube.scheduler.inspecting import gpushare_report, topology_report
from cotenant.kube.state.cluster import ClusterState
from tests.kube.control_plane import KNOWS, ControlPlane, play, until
from tests.kube.http import ask
from tests.kube.worlds import machine, node, place, placer_of, state_of, waiting

GIB = MiB(1024)
LINKS = ((0, 250, 50), (250, 0, Link.SYS), (50, Link.SYS, 0))


@pytest.fixture
def state() -> ClusterState:
    of = replace(machine("n1", cards=3, memory=15 * 1024, type="T4"), links=LINKS)
    made = state_of(node(of), node(machine("n2", cards=1, memory=8 * 1024)))
    for name in ("a", "b"):
        place(made, placer_of(made), waiting(name, {"aliyun.com/gpu-mem": 3}), "n1")
    return made


def test_gpushare_lists_each_gpu_with_its_pods(state: ClusterState) -> None:
    pods = [{"name": name, "namespace": "team", "usedGPU": 3} for name in ("a", "b")]
    idle = {"totalGPU": 15, "usedGPU": 0, "pods": []}
    devices = [{"id": 0, "totalGPU": 15, "usedGPU": 6, "pods": pods}, {"id": 1, **idle}, {"id": 2, **idle}]
    first = {"name": "n1", "totalGPU": 45, "usedGPU": 6, "devs": devices}
    assert gpushare_report(state, GIB, "n1") == {"nodes": [first]}
    assert [one["name"] for one in gpushare_report(state, GIB)["nodes"]] == ["n1", "n2"]
    assert gpushare_report(state, MiB(1), "n1")["nodes"][0]["usedGPU"] == 6144


def test_topology_lists_links_by_their_numbers(state: ClusterState) -> None:
    said = topology_report(state, "binpack", "n1")
    (first,) = said["nodes"]
    assert (first["totalGPU"], first["usedGPU"], first["type"], said["policy"]) == (3, 1, "T4", "binpack")
    assert first["topology"] == [[0, 8, 2], [8, 0, 6], [2, 6, 0]]
    assert first["staticConfig"] is None


def test_topology_tells_the_type_and_the_table_of_a_machine() -> None:
    of = replace(machine("n1", cards=8), labels={MACHINE_TYPE_LABEL: "dgx-1-volta"})
    (only,) = topology_report(state_of(node(of)), "binpack")["nodes"]
    assert only["type"] == "dgx-1-volta"
    assert only["staticConfig"]["2"] == ((0, 3), (1, 2), (4, 7), (5, 6))


@pytest.mark.parametrize(
    "report", [lambda state: gpushare_report(state, GIB, "n9"), lambda state: topology_report(state, "binpack", "n9")]
)
def test_a_node_that_there_is_not_is_said(state: ClusterState, report: object) -> None:
    assert callable(report)
    assert report(state)["error"] == "node n9 has no GPUs, or there is no such node"


def test_the_routes_require_the_key_and_answer_json() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1", memory=16_384)
        await until(lambda: "n1" in plane.scheduler.state.nodes)
        for path in ("/gpushare-scheduler/inspect", "/gputopology-scheduler/inspect/n1"):
            assert (await ask(plane.api_port, "GET", path)).status == 403
            answer = await ask(plane.api_port, "GET", path, headers=KNOWS)
            assert answer.status == 200
            assert [one["name"] for one in answer.json["nodes"]] == ["n1"]
        assert (await ask(plane.api_port, "GET", "/gpushare-scheduler/filter", headers=KNOWS)).status == 404

    play(story)
