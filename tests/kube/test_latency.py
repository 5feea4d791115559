# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Latency objectives in the scheduler: shares follow the agent's reports within what neighbours were promised."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.sharing.latency import LEAST_SHARE
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.codec.assignment import RECORD, compute_share, decode_record
from cotenant.kube.codec.inventory import SERVERS, ServerReport, servers_for
from cotenant.kube.codec.objective import LATENCY, objective_of
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import DEFAULTS, MeasuredMemory
from cotenant.kube.scheduler import latency
from cotenant.kube.scheduler.latency import granted_share, least_share, left_on
from cotenant.kube.scheduler.resize import RESIZE
from cotenant.kube.scheduler.rewriting import write
from tests.kube.control_plane import MEMORY, ControlPlane, play, until
from tests.kube.pods import pod
from tests.kube.worlds import CORES, GPU, machine, node, place, placer_of, state_of, waiting

OBJECTIVE = {LATENCY: "p90=100ms"}


def report(plane: ControlPlane, name: str, compute: int, wanted: int, missed: int = 2, node: str = "n1") -> None:
    """What the agent of a node writes about a pod."""
    said = ServerReport(
        percentile=90, objective_ms=100, latency_ms=400.0, missed=missed, compute=compute, wanted=wanted
    )
    text = servers_for({f"uid-{name}": said})
    plane.server.nodes.merge(node, {"metadata": {"annotations": {SERVERS: text}}})


def share_of(plane: ControlPlane, name: str) -> int:
    return compute_share(decode_record(plane.pod(name)["metadata"]["annotations"][RECORD]))


def limit_of(plane: ControlPlane, name: str) -> int:
    """The compute limit that the container of a pod reads."""
    (line,) = [one for one in (plane.annotation(name, "0.limits") or "").splitlines() if one.startswith("gpu ")]
    return int(line.partition("compute=")[2].split()[0])


async def a_server_beside(plane: ControlPlane, neighbour: dict[str, int]) -> None:
    plane.add_node("n1")
    plane.add_pod("llm", annotations=OBJECTIVE)
    plane.add_pod("other", containers=[{"name": "c0", "resources": {"limits": {GPU: 1, MEMORY: 6000, **neighbour}}}])
    await until(lambda: plane.scheduler.state.vendors)
    for name in ("llm", "other"):
        assert await plane.place(name, "n1") == "n1"


def test_a_server_gets_what_it_should_have_and_its_neighbour_is_limited_to_the_rest_until_it_is_gone() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_server_beside(plane, {})
        assert share_of(plane, "llm") == LEAST_SHARE
        await until(lambda: limit_of(plane, "other") == 900)
        report(plane, "llm", 100, 400)
        await until(lambda: share_of(plane, "llm") == 400)
        assert limit_of(plane, "llm") == 400
        await until(lambda: limit_of(plane, "other") == 600)
        assert share_of(plane, "other") == 0
        await until(lambda: plane.events("LatencyShare"))
        assert plane.events("LatencyShare") == [
            "has 40% of its GPU's compute, had 10%: p90 is 400 ms, the objective is 100 ms"
        ]
        why = await plane.why("llm")
        assert why["latency"] == {"percentile": 90, "objective_ms": 100.0, "latency_ms": 400.0, "held": False}
        assert (await plane.why("other"))["gpus"][0]["limit_percent"] == 60
        report(plane, "llm", 400, 350, missed=0)
        await until(lambda: limit_of(plane, "other") == 650)
        assert not plane.events("LatencyMissed")
        plane.end("llm")
        await until(lambda: limit_of(plane, "other") == 1000)

    play(story)


def test_a_server_gets_no_more_than_the_shares_of_its_neighbours_leave_and_its_owner_is_told() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_server_beside(plane, {CORES: 70})
        report(plane, "llm", 100, 500)
        await until(lambda: share_of(plane, "llm") == 300)
        assert limit_of(plane, "other") == 700
        report(plane, "llm", 300, 600)
        await until(lambda: plane.events("LatencyMissed"))
        assert plane.events("LatencyMissed") == [
            "misses its objective with 30% of its GPU's compute: p90 is 400 ms, the objective is 100 ms; "
            "the shares of its neighbours leave no more"
        ]
        assert (share_of(plane, "llm"), limit_of(plane, "other")) == (300, 700)

    play(story)


def test_neighbours_that_claim_nothing_share_what_is_left() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_server_beside(plane, {})
        plane.add_pod("third", 1000)
        assert await plane.place("third", "n1") == "n1"
        await until(lambda: (limit_of(plane, "other"), limit_of(plane, "third")) == (450, 450))
        report(plane, "llm", 100, 1000)
        await until(lambda: share_of(plane, "llm") == 800)
        await until(lambda: (limit_of(plane, "other"), limit_of(plane, "third")) == (100, 100))

    play(story)


def test_a_neighbour_does_not_escape_its_limit_by_an_annotation_that_cannot_be_understood() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_server_beside(plane, {})
        await until(lambda: limit_of(plane, "other") == 900)
        plane.server.merge("other", {"metadata": {"annotations": {LATENCY: "x"}}}, "team")
        await plane.knows("other")
        report(plane, "llm", 100, 400)
        await until(lambda: limit_of(plane, "other") == 600)
        plane.end("llm")
        await until(lambda: limit_of(plane, "other") == 1000)

    play(story)


@pytest.mark.parametrize("changed", [None, "x"])
def test_a_server_without_its_objective_gives_its_share_back(changed: str | None) -> None:
    async def story(plane: ControlPlane) -> None:
        await a_server_beside(plane, {})
        report(plane, "llm", 100, 400)
        await until(lambda: limit_of(plane, "other") == 600)
        plane.server.merge("llm", {"metadata": {"annotations": {LATENCY: changed}}}, "team")
        await until(lambda: share_of(plane, "llm") == 0)
        await until(lambda: limit_of(plane, "other") == 1000)
        await until(lambda: any("no latency objective any more" in one for one in plane.events("LatencyShare")))

    play(story)


def test_a_server_that_becomes_alone_gives_back_what_it_did_not_request() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_server_beside(plane, {})
        report(plane, "llm", 100, 400)
        await until(lambda: share_of(plane, "llm") == 400)
        plane.end("other")
        await until(lambda: share_of(plane, "llm") == LEAST_SHARE)

    play(story)


def test_a_resize_sets_the_least_share_of_a_server() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_server_beside(plane, {})
        report(plane, "llm", 100, 400)
        await until(lambda: share_of(plane, "llm") == 400)

        def write_resize(text: str) -> None:
            plane.server.merge("llm", {"metadata": {"annotations": {RESIZE: text}}}, "team")

        write_resize("compute=20,memory=5Gi")  # takes away no compute
        await until(lambda: "5120" in (plane.annotation("llm", "assignment") or ""))
        assert share_of(plane, "llm") == 400
        report(plane, "llm", 400, 150, missed=0)
        await until(lambda: share_of(plane, "llm") == 200)
        write_resize("compute=30,memory=5Gi")
        await until(lambda: share_of(plane, "llm") == 300)
        report(plane, "llm", 300, 250, missed=0)
        report(plane, "llm", 300, 350)
        await until(lambda: share_of(plane, "llm") == 350)
        report(plane, "llm", 350, 100, missed=0)
        await until(lambda: share_of(plane, "llm") == 300)

    play(story)


def test_an_objective_of_which_nothing_is_reported_is_told() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_server_beside(plane, {})
        await plane.knows("llm")
        assert "no requests reported yet for its objective p90=100ms" in (await plane.why("llm"))["notes"]
        report(plane, "llm", 100, 100, missed=0)
        await until(lambda: plane.scheduler.objectives.report_of(plane.scheduler.watches.pods.objects["team", "llm"]))
        answer = await plane.why("llm")
        assert answer["latency"]
        assert not answer["notes"]

    play(story)


@pytest.mark.parametrize(("stated", "least"), [({}, LEAST_SHARE), ({CORES: 30}, 300)])
def test_a_server_that_leaves_its_memory_to_a_profile_does_not_take_the_whole_gpu(stated: Any, least: int) -> None:
    about = {**OBJECTIVE, "cotenant.io/memory": "auto", "cotenant.io/workload": "bert@32"}
    known = dataclasses.replace(DEFAULTS, measured_memory=lambda workload: MeasuredMemory(MiB(2458)))
    waits = waiting("llm", {GPU: 1, **stated}, annotations=about)
    state = state_of(node(machine("n1", 1, 64_000)))
    there = place(state, placer_of(state, settings=known), waits, "n1")
    now = state.bound("uid-llm")
    assert now is not None
    assert compute_share(now.record) == least
    assert least_share(there, now, known) == least
    place(state, placer_of(state), waiting("other", {GPU: 1, MEMORY: 1000}), "n1")
    assert granted_share(now, 400, least_share(there, now, known), state) == 400


def test_a_server_that_is_alone_keeps_its_share_and_its_owner_is_told() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("llm", annotations=OBJECTIVE)
        await until(lambda: plane.scheduler.state.vendors)
        assert await plane.place("llm", "n1") == "n1"
        report(plane, "llm", 100, 200)
        await until(lambda: plane.events("LatencyMissed"))
        assert "it has its GPU to itself" in plane.events("LatencyMissed")[0]
        assert share_of(plane, "llm") == 100

    play(story)


def test_a_report_that_nobody_can_read_or_about_a_pod_without_an_objective_changes_nothing() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_server_beside(plane, {})
        await until(lambda: limit_of(plane, "other") == 900)
        plane.server.nodes.merge("n1", {"metadata": {"annotations": {SERVERS: '{"version": 1, "pods": 7}'}}})
        await until(lambda: any("cotenant.io/servers" in line for line in plane.lines))
        report(plane, "other", 0, 1000)
        report(plane, "llm", 100, 150)
        await until(lambda: share_of(plane, "llm") == 150)
        assert share_of(plane, "other") == 0

    play(story)


def test_a_report_of_another_node_about_a_pod_changes_nothing() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_server_beside(plane, {})
        plane.add_node("n2")
        await until(lambda: "n2" in plane.scheduler.state.vendors)
        report(plane, "llm", 100, 700, node="n2")
        plane.add_pod("second", annotations=OBJECTIVE)
        assert await plane.place("second", "n2") == "n2"
        report(plane, "llm", 100, 150)
        await until(lambda: share_of(plane, "llm") == 150)
        report(plane, "llm", 150, 800, node="n2")
        report(plane, "llm", 150, 200)
        await until(lambda: share_of(plane, "llm") == 200)
        await until(lambda: limit_of(plane, "other") == 800)

    play(story)


def test_a_node_that_goes_away_during_a_write_does_not_end_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(plane: ControlPlane) -> None:
        async def write_late(*about: Any) -> object:
            if compute_share(about[2].allocation.record) == 300:
                plane.server.nodes.remove("n1", "")
                await until(lambda: not plane.scheduler.state.vendors)
            return await write(*about)

        monkeypatch.setattr(latency, "write", write_late)
        await a_server_beside(plane, {})
        report(plane, "llm", 100, 200)
        await until(lambda: limit_of(plane, "other") == 800)
        report(plane, "llm", 200, 300)
        await until(lambda: share_of(plane, "llm") == 300)
        assert not plane.scheduler.state.vendors
        monkeypatch.setattr(latency, "write", write)
        plane.add_node("n1")
        report(plane, "llm", 300, 400)
        await until(lambda: share_of(plane, "llm") == 400)
        await until(lambda: limit_of(plane, "other") == 600)

    play(story)


def test_a_defect_about_one_node_is_logged_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(node: str, *about: Any) -> Any:
        if node == "n2":
            raise ZeroDivisionError("a defect")
        return left_on(node, *about)

    async def story(plane: ControlPlane) -> None:
        monkeypatch.setattr(latency, "left_on", broken)
        plane.add_node("n2")
        await until(lambda: plane.scheduler.state.vendors)
        plane.add_pod("second", annotations=OBJECTIVE)
        assert await plane.place("second", "n2") == "n2"
        await until(lambda: any("node n2: unexpected ZeroDivisionError: a defect" in line for line in plane.lines))
        await a_server_beside(plane, {})
        await until(lambda: limit_of(plane, "other") == 900)

    play(story)


@given(st.lists(st.integers(0, 40), max_size=4), st.integers(0, 1000))
def test_no_share_is_below_what_was_requested_or_takes_from_a_neighbour(claims: list[int], wanted: int) -> None:
    state = state_of(node(machine("n1", 1, 64_000)))
    placer = placer_of(state)
    place(state, placer, waiting("llm", {GPU: 1, MEMORY: 1000, CORES: 20}, annotations=OBJECTIVE), "n1")
    promised = 0
    for number, claim in enumerate(claims):
        if promised + claim <= 80:
            place(state, placer, waiting(f"p{number}", {GPU: 1, MEMORY: 1000, CORES: claim}), "n1")
            promised += claim
    now = state.bound("uid-llm")
    assert now is not None
    share = granted_share(now, wanted, 200, state)
    assert 200 <= share <= max(200, 1000 - 10 * promised)
    (left,) = left_on("n1", state, {"uid-llm"}).values()
    unclaimed = [one.record for one in state.allocations_on("n1").values() if not compute_share(one.record)]
    assert left == max(LEAST_SHARE, (1000 - 200 - 10 * promised) // max(1, len(unclaimed)))
    if share > 200:
        assert share <= 1000 - 10 * promised - LEAST_SHARE * len(unclaimed)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("200ms", "write for example p99=200ms"),
        ("p100=1s", "write for example"),
        ("p49=1s", "expected p50 to p99"),
        ("p99=0ms", "from 1ms to 60m"),
        ("p99=61m", "from 1ms to 60m"),
        ("p99=1s" + " " * 50 + "x" * 10_000, "write for example"),
        ("p9９=1s", "write for example"),
    ],
)
def test_an_objective_that_cannot_be_understood_is_refused_with_an_example(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        request_of(pod({GPU: 1}, annotations={LATENCY: text}))
    assert len(str(error.value)) < 200


def test_an_objective_is_of_one_server_which_claims_at_least_a_tenth() -> None:
    assert objective_of({LATENCY: " p99 = 1.5s "}) == (99, 1.5)
    request = request_of(pod({MEMORY: 1000}, init=[{MEMORY: 500}], annotations=OBJECTIVE))
    assert [one.amounts.container.compute for one in request.containers] == [0, LEAST_SHARE]
    with pytest.raises(InputError, match="2 containers with GPUs, expected 1"):
        request_of(pod({MEMORY: 1000}, {MEMORY: 500}, annotations=OBJECTIVE))
    assert json.dumps(request.demand.containers[0].compute) == "0"
