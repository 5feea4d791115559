# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the scheduler records of pods: each decision is made again as recorded, and a day under another policy."""

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from cotenant.cli.replay import _decide_again
from cotenant.errors import CotenantError
from cotenant.history.decisions import DecisionRecorder, begin_line
from cotenant.history.recorded import read_recording, recorded_decisions
from cotenant.history.segments import MemorySegments
from cotenant.kube.api.access import Access
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.names import DECISIONS, NAMESPACE, WHY_HEADER
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.server import (
    Listener,
    ReceivedEvent,
    Reply,
    Route,
    Scope,
    SentEvent,
    application,
    json_reply,
    listen,
    status_reply,
)
from cotenant.kube.codec.profiles import PodSpeed, ProfileSpec
from cotenant.kube.scheduler import recording
from cotenant.kube.scheduler.gathering import Gathered, gather_decisions
from cotenant.kube.scheduler.lease import SoleLeader
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.recording import Cursor, PodRecorder
from cotenant.kube.scheduler.why import DecisionPage, Named
from cotenant.kube.state.cluster import ClusterState
from cotenant.sim.experiment import Plan, run_one
from cotenant.sim.timed import Timing
from tests.kube.control_plane import DECISIONS_KEY, KNOWS, ControlPlane, play, until
from tests.kube.http import ask, serving
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
            MemorySegments(), lambda: begin_line(time.time(), "kubernetes", policy, "fifo", True), pytest.fail
        )
        self.recorder = PodRecorder(self._writer, self.state, SoleLeader())
        self.placer.considered.subscribe(self.recorder.considered)
        self.placer.refused.subscribe(self.recorder.refused)

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
    following: Cursor | None = Cursor(0, 0)
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


Replica = Callable[[str], Awaitable[Reply]]
"""answers a path such as /decisions/0/0-0"""


@asynccontextmanager
async def api_server(replicas: dict[str, Replica]) -> AsyncIterator[Access]:
    """The part of an API server that lists the pods of the scheduler and hands requests on to each of them."""

    async def handed(words: tuple[str, ...], _body: bytes) -> Reply:
        *path, scheme_name_port, proxy, verb, since, place = words
        scheme, name, port = scheme_name_port.split(":")
        assert (path, scheme, port, proxy) == (["v1", "namespaces", NAMESPACE, "pods"], "https", "8443", "proxy")
        return await replicas[name](f"/{verb}/{since}/{place}")

    async def secret(words: tuple[str, ...], _body: bytes) -> Reply:
        assert words == ("v1", "namespaces", NAMESPACE, "secrets", DECISIONS)
        named = {"name": DECISIONS, "namespace": NAMESPACE}
        return json_reply({"metadata": named, "data": {"key": b64encode(DECISIONS_KEY).decode()}})

    async def pods(words: tuple[str, ...], _body: bytes) -> Reply:
        assert words == ("v1", "namespaces", NAMESPACE, "pods")
        items = [{"metadata": {"name": name}, "status": {"phase": "Running"}} for name in replicas]
        items.append({"metadata": {"name": "ended"}, "status": {"phase": "Succeeded"}})
        return json_reply({"metadata": {}, "items": items})

    by_words = {
        "proxy": Route(method="GET", answer=handed, segments=9, refuse=status_reply, key=lambda: DECISIONS_KEY),
        "secrets": Route(method="GET", answer=secret, segments=5),
        "pods": Route(method="GET", answer=pods, segments=4),
    }
    made = {word: application({"api": route}, ErrorLog(print)) for word, route in by_words.items()}

    async def one_of(scope: Scope, receive: ReceivedEvent, send: SentEvent) -> None:
        await next(one for word, one in made.items() if f"/{word}" in scope["path"])(scope, receive, send)

    bound_to = listen("127.0.0.1", 0)
    async with serving([Listener(bound_to, one_of)]):
        yield Access(host="127.0.0.1", port=int(bound_to.getsockname()[1]))


def replica_of(recorder: PodRecorder) -> Replica:
    async def answer(path: str) -> Reply:
        _, _, since, place = path.split("/")
        part, line = place.split("-")
        lines, after = recorder.page(float(since), Cursor(int(part), int(line)))
        following = None if after is None else f"{after.part}-{after.line}"
        return json_reply(DecisionPage(metadata=Named(name=place, namespace=since), lines=lines, next=following))

    return answer


async def broken(_path: str) -> Reply:
    return status_reply(502, "connection refused")


def lead_in_turns(monkeypatch: pytest.MonkeyPatch) -> tuple[Cluster, Cluster]:
    """Two replicas with the same cluster: the first leads, then the second, then the first again."""
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    first, second = Cluster("binpack"), Cluster("binpack")
    names = iter(("p0", "p1", "p2"))
    for leader, other in ((first, second), (second, first), (first, second)):
        now += 100
        leader.recorder.began()
        pod = waiting(next(names), {GPU: 1, MEMORY: 1000})
        there = leader.place(pod)
        other.changed(None, there)
        leader.lines()  # all is written before the time goes on
    return first, second


def test_recordings_of_all_replicas_are_one_in_the_order_of_their_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lead_in_turns(monkeypatch)
    monkeypatch.setattr(recording, "PAGE_BYTES", 500)

    async def story() -> Gathered:
        async with api_server({"b": replica_of(second.recorder), "a": replica_of(first.recorder)}) as access:
            return await gather_decisions(access, 0)

    lines, missing = asyncio.run(story())
    first.close()
    second.close()
    assert not missing
    found = [one for _, one, _ in recorded_decisions(lines, "day.jsonl")]
    assert [one.job.id for one in found] == ["uid-p0", "uid-p1", "uid-p2"]
    assert all(_decide_again(one, ranked=False).same for one in found)
    day = read_recording(lines, "day.jsonl")
    assert day.parts == 3
    assert {run.outcome for run in day.jobs.values()} == {""}  # no pod counts as lost at a change of the leader


def test_a_replica_that_does_not_answer_is_named(cluster: Cluster) -> None:
    run_a_day(cluster)

    async def story(replicas: dict[str, Replica]) -> Gathered:
        async with api_server(replicas) as access:
            return await gather_decisions(access, 0)

    lines, (missing,) = asyncio.run(story({"a": replica_of(cluster.recorder), "b": broken}))
    assert lines == cluster.lines()
    assert missing.startswith("b did not answer")
    with pytest.raises(CotenantError, match="b did not answer"):
        asyncio.run(story({"b": broken}))
    with pytest.raises(CotenantError, match="no pod of cotenant-scheduler runs"):
        asyncio.run(story({}))


def test_a_refused_pod_is_recorded_once_for_each_kind_of_reason_and_replayed(cluster: Cluster) -> None:
    cluster.place(waiting("first", {GPU: 1, MEMORY: 12000}))
    large = waiting("large", {GPU: 1, MEMORY: 99_000})
    cluster.changed(None, large)
    for _ in range(5):
        assert not cluster.placer.filter(args(large, *NODES), 0.0).node_names
    assert not cluster.placer.filter(args(large, "a"), 0.0).node_names
    found = [one for _, one, _ in recorded_decisions(cluster.lines(), "day.jsonl")]
    assert [(one.job.id, bool(one.slots)) for one in found] == [("uid-first", True), ("uid-large", False)]
    assert _decide_again(found[1], ranked=False).same
    day = read_recording(cluster.lines(), "day.jsonl")
    assert (day.decisions, day.refusals) == (1, 1)
    assert day.jobs["uid-large"].name == "team/large"


def test_the_mean_speed_that_a_pod_reported_is_recorded_with_its_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    pod, silent = cluster.place(waiting("a")), cluster.place(waiting("b"))
    allocation = cluster.state.bound("uid-a")
    assert allocation is not None

    def report(speed: float, namespace: str = "team") -> None:
        one = PodSpeed(name="a", uid="uid-a", batch=1, samples_per_second=1.0, speed=speed)
        spec = ProfileSpec(node=allocation.node, namespace=namespace, workload="w", gpu_type="T4", pods=(one,))
        cluster.recorder.reported(spec)

    report(0.5)
    now += 30
    report(1.0)
    report(0.1, "other")  # what is said about pods of another namespace does not count
    now += 10
    cluster.changed(pod, in_phase(pod, "Succeeded"))
    cluster.changed(silent, in_phase(silent, "Succeeded"))
    jobs = read_recording(cluster.lines(), "day.jsonl").jobs
    assert jobs["uid-a"].speed == pytest.approx(0.625)
    assert jobs["uid-b"].speed is None


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

        async def replica(path: str) -> Reply:
            answer = await ask(plane.api_port, "GET", path, headers={WHY_HEADER: DECISIONS_KEY.decode()})
            return Reply(answer.body, answer.status)

        async with api_server({"a": replica}) as access:
            lines, _ = await gather_decisions(access, 0)
        found = [one for _, one, _ in recorded_decisions(lines, "cluster.jsonl")]
        assert len(found) == 2
        assert all(_decide_again(one, ranked=False).same for one in found)
        names = [run.name for run in read_recording(lines, "cluster.jsonl").jobs.values()]
        assert names == ["team/first", "team/second"]
        # The key of `why` is for users of one namespace: it is not enough for the pods of all namespaces.
        for headers in ({}, KNOWS):
            answer = await ask(plane.api_port, "GET", "/decisions/0/0-0", headers=headers)
            assert answer.status in (401, 403)

    play(story)
