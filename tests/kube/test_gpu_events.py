# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which pods are told what about a GPU that is closed, or open again."""

from types import SimpleNamespace
from typing import cast

from cotenant.core.isolation import Offer
from cotenant.kube.api.objects import Node, Pod
from cotenant.kube.codec.agent_report import REPORT, report_for
from cotenant.kube.codec.inventory import CLOSED, ClosedGpu, closed_for, closed_of
from cotenant.kube.codec.settings import Settings
from cotenant.kube.scheduler.gpu_events import GpuEvents
from cotenant.kube.scheduler.ladder import Ladder
from cotenant.kube.scheduler.shared import Shared
from cotenant.kube.settings import IsolationPart
from cotenant.kube.state.cluster import ClusterState
from tests.kube.worlds import GPU, MEMORY, machine, node, place, placer_of, state_of, waiting

OFFER = Offer(capability=(8, 0), cuda=12090, mps=True, preload=True)
FIRST, SECOND = "GPU-n1-0", "GPU-n1-1"


class World:
    """Two clients of MPS on the first GPU, and a pod without on the second."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, str]] = []
        self.machine = machine("n1", 2, offer=OFFER)
        state: ClusterState = state_of(node(self.machine))
        settings = Settings(granted_rung=Ladder(IsolationPart(), lambda: state).granted)
        placer = placer_of(state, settings=settings)
        pods: dict[tuple[str, str], Pod] = {}
        for name, rung in (("a", "mps"), ("b", "mps"), ("plain", "preload")):
            wanting = waiting(name, {GPU: 1, MEMORY: 100}, annotations={"cotenant.io/isolation": rung})
            pods["team", name] = place(state, placer, wanting, "n1")
        fake = SimpleNamespace(
            state=state,
            pods=SimpleNamespace(objects=pods),
            unready_reason=lambda: None,
            events=SimpleNamespace(record=self._record),
        )
        self.events = GpuEvents(cast(Shared, fake))

    def _record(self, pod: Pod | Node, reason: str, text: str, *, warning: bool = False) -> None:
        self.said.append((pod.metadata.name, reason, text))

    def node(self, uuid: str = "", closed: ClosedGpu | None = None) -> Node:
        text = closed_for({} if closed is None else {uuid: closed})
        return node(self.machine, annotations={} if text is None else {CLOSED: text})

    def tells(self, old: Node, new: Node) -> list[tuple[str, str, str]]:
        self.said.clear()
        self.events.node_changed(old, new)
        return sorted(self.said)


def test_clients_of_mps_are_told_of_a_crash_and_the_culprit_too() -> None:
    world = World()
    crash = ClosedGpu(why="a fault of process 7", mps=True, culprits=("uid-a",))
    told = world.tells(world.node(), world.node(FIRST, crash))
    assert [(name, reason) for name, reason, _ in told] == [("a", "MpsClosed"), ("b", "MpsClosed")]
    assert ["this pod caused it" in text for _, _, text in told] == [True, False]
    assert all("a fault of process 7" in text for _, _, text in told)
    assert world.tells(world.node(FIRST, crash), world.node(FIRST, crash)) == []
    again = world.tells(world.node(FIRST, crash), world.node())
    assert [(name, reason) for name, reason, _ in again] == [("a", "MpsOpen"), ("b", "MpsOpen")]


def test_every_pod_on_a_faulty_gpu_is_told_and_no_other() -> None:
    world = World()
    fault = ClosedGpu(why="this MIG instance was removed")
    assert world.tells(world.node(), world.node(SECOND, fault)) == [
        ("plain", "GpuFault", f"GPU {SECOND} takes no new pods: this MIG instance was removed")
    ]
    assert [one[:2] for one in world.tells(world.node(SECOND, fault), world.node())] == [("plain", "GpuHealthy")]


def test_an_operator_is_told_on_the_node_what_is_wrong_with_claims() -> None:
    world = World()

    def reporting(claims: str | None) -> Node:
        return node(world.machine, annotations={REPORT: report_for("1.0", None, claims=claims)})

    shared = "driver gpu.example.com publishes GPU-a too"
    assert world.tells(reporting(None), reporting(shared)) == [("n1", "ClaimsProblem", shared)]
    assert world.tells(reporting(shared), reporting(shared)) == []
    assert world.tells(reporting(shared), reporting("another")) == [("n1", "ClaimsProblem", "another")]
    assert [one[:2] for one in world.tells(reporting(shared), reporting(None))] == [("n1", "ClaimsFine")]
    assert world.tells(reporting(None), node(world.machine, annotations={REPORT: "odd"})) == []


def test_what_a_newer_agent_writes_is_about_no_gpu() -> None:
    world = World()
    newer = node(world.machine, annotations={CLOSED: '{"version":2,"closed":{}}'})
    assert world.tells(world.node(), newer) == []
    assert dict(closed_of(world.node())) == {}
