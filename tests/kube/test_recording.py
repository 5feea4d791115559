# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the scheduler records of pods: each decision is made again as recorded, and a day under another policy."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.cli.replay import _decide_again
from cotenant.history.decisions import DecisionRecorder, begin_line
from cotenant.history.recorded import read_recording, recorded_decisions
from cotenant.history.segments import MemorySegments
from cotenant.kube.api.objects import Pod
from cotenant.kube.scheduler import recording
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.recording import PodRecorder
from cotenant.kube.scheduler.why import ask_for_decisions
from cotenant.kube.state.cluster import ClusterState
from cotenant.sim.experiment import Plan, run_one
from cotenant.sim.timed import Timing
from tests.kube.control_plane import ControlPlane, play, until
from tests.kube.test_why import access, proxy_to
from tests.kube.worlds import (
    CORES,
    GPU,
    MEMORY,
    args,
    bound,
    chosen,
    in_phase,
    machine,
    node,
    placer_of,
    state_of,
    waiting,
)

NODES = ("a", "b", "c")


class Cluster:
    """Three nodes, and the parts of the scheduler that place and record pods."""

    def __init__(self, policy: str) -> None:
        self.state: ClusterState = state_of(*(node(machine(name)) for name in NODES))
        self.placer: Placer = placer_of(self.state, policy=policy, shortlist=1)
        self._writer = DecisionRecorder(
            MemorySegments(), lambda: begin_line(1.0, "kubernetes", policy, "fifo", True), pytest.fail
        )
        self.recorder = PodRecorder(self._writer)
        self.placer.considered.subscribe(self.recorder.considered)

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        self.state.pod_changed(old, new)
        self.recorder.pod_changed(old, new)

    def place(self, pod: Pod, *offered: str) -> Pod:
        """The pod after kube-scheduler filtered and bound it."""
        self.changed(None, pod)
        answer = self.placer.filter(args(pod, *(offered or NODES)), 0.0)
        assert answer.node_names is not None, answer
        (name,) = answer.node_names
        choice = chosen(self.placer, pod, name)
        self.state.assume(pod.metadata.uid)
        there = bound(pod, choice)
        self.changed(pod, there)
        return there

    def lines(self) -> list[bytes]:
        return list(self._writer.lines())

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(getattr(request, "param", "binpack"))
    yield made
    made.close()


def labelled(pod: Pod, **labels: str) -> Pod:
    named = {f"cotenant.io/{name}": value for name, value in labels.items()}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=named))


def run_a_day(cluster: Cluster) -> None:
    sizes = (4000, 8000, 2000, 12000, 1000)
    pods = [
        cluster.place(labelled(waiting(f"p{i}", {GPU: 1, MEMORY: size, CORES: 20}), user="ada", team="vision"))
        for i, size in enumerate(sizes)
    ]
    cluster.changed(pods[0], in_phase(pods[0], "Succeeded"))
    cluster.changed(pods[1], in_phase(pods[1], "Failed"))
    cluster.changed(pods[2], None)
    cluster.place(waiting("late", {GPU: 2, MEMORY: 3000}))
    cluster.place(waiting("picky", {GPU: 1, MEMORY: 500}), "c")


POLICIES = ["binpack", "spread", "hami-spread", "fgd", "cotenant"]


@pytest.mark.parametrize("cluster", POLICIES, indirect=True)
def test_every_decision_is_made_again_as_recorded(cluster: Cluster) -> None:
    run_a_day(cluster)
    found = list(recorded_decisions(cluster.lines(), "day.jsonl"))
    assert [one.job.id for _, one, _ in found] == [
        f"uid-{name}" for name in ("p0", "p1", "p2", "p3", "p4", "late", "picky")
    ]
    for _, decision, complete in found:
        assert complete
        assert _decide_again(decision, ranked=False).same
    assert found[-1][1].slots[0].node == "c"
    assert set(found[-1][1].closed) == {"a", "b"}


def test_owners_and_ends_are_recorded(cluster: Cluster) -> None:
    run_a_day(cluster)
    jobs = read_recording(cluster.lines(), "day.jsonl").jobs
    first = jobs["uid-p0"]
    assert (first.name, first.user, first.team, first.namespace) == ("team/p0", "ada", "vision", "team")
    outcomes = [jobs[f"uid-p{i}"].outcome for i in range(4)]
    assert outcomes == ["finished", "failed", "cancelled", ""]


def test_a_pod_that_is_never_bound_is_no_decision(cluster: Cluster) -> None:
    cluster.place(waiting("first"))
    held = waiting("held")
    cluster.changed(None, held)
    cluster.placer.filter(args(held, *NODES), 0.0)
    cluster.changed(held, None)
    day = read_recording(cluster.lines(), "day.jsonl")
    assert day.decisions == 1
    assert day.jobs["uid-held"].started is None


def test_a_day_is_replayed_by_the_simulator(cluster: Cluster, tmp_path: Path) -> None:
    run_a_day(cluster)
    path = tmp_path / "day.jsonl"
    path.write_bytes(b"".join(cluster.lines()))
    spec = f"recorded:{path}"
    plan = Plan(trace=spec, nodes=spec, policies=("binpack",), seeds=(1,), mode="timed", timing=Timing(queue="fifo"))
    results = {policy: run_one(plan, policy, 1).result.summary for policy in ("binpack", "spread")}
    assert {one["jobs"] for one in results.values()} == {7.0}
    assert {one["unplaceable"] for one in results.values()} == {0.0}


def test_a_recording_is_sent_in_pages(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run_a_day(cluster)
    monkeypatch.setattr(recording, "PAGE_BYTES", 1000)
    lines: list[str] = []
    following: int | None = 0
    pages = 0
    while following is not None:
        page, following = cluster.recorder.page(0.0, following)
        lines += page
        pages += 1
    assert "".join(lines).encode() == b"".join(cluster.lines())
    assert pages > 2


def test_pods_that_wait_for_ever_use_bounded_memory(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_PENDING", 3)
    for i in range(10):
        pod = waiting(f"w{i}", {GPU: 1, MEMORY: 10})
        cluster.changed(None, pod)
        cluster.placer.filter(args(pod, *NODES), 0.0)
    assert len(cluster.recorder._pending) == 3


def test_the_scheduler_records_what_it_binds_and_sends_it_to_those_with_the_key() -> None:
    async def story(plane: ControlPlane) -> None:
        for name in ("n1", "n2"):
            plane.add_node(name, cards=1, memory=10000)
        await until(lambda: len(plane.scheduler.state.vendors) == 2)
        for name, memory in (("first", 5000), ("second", 8000)):
            plane.add_pod(name, memory)
            await plane.knows(name)
            (there,) = (await plane.filter(name, "n1", "n2"))["NodeNames"]
            assert await plane.bind(name, there) == ""
            uid = plane.pod(name)["metadata"]["uid"]
            await until(lambda uid=uid: plane.scheduler.state.bound(uid) is not None)  # type: ignore[misc]
        async with proxy_to(plane) as port:
            content = await ask_for_decisions(access(port), 0)
        lines = content.splitlines(keepends=True)
        found = [one for _, one, _ in recorded_decisions(lines, "cluster.jsonl")]
        assert len(found) == 2
        assert all(_decide_again(one, ranked=False).same for one in found)
        names = [run.name for run in read_recording(lines, "cluster.jsonl").jobs.values()]
        assert names == ["team/first", "team/second"]

    play(story)
