# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant.io/memory: auto`: a pod gets the memory that the profile of its workload says, as its limits do."""

from dataclasses import replace
from typing import Any

import pytest

from cotenant.core.units import WHOLE_MEMORY, MiB
from cotenant.errors import InputError
from cotenant.kube.codec.assignment import decode_record
from cotenant.kube.codec.queueing import GATE
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import DEFAULTS, MeasuredMemory, Settings, Unmeasured
from cotenant.kube.scheduler.profiles import Profiles
from cotenant.kube.scheduler.rewriting import rewrite_for
from cotenant.kube.settings import Defaults, KubeSettings, QueuePart
from cotenant.kube.webhook.mutation import mutate
from tests.kube.control_plane import ControlPlane, play, until
from tests.kube.pods import pod, pod_object
from tests.kube.reviews import SETTINGS, admitted, refusal, review, written
from tests.kube.test_profiles import NODES, add, profile
from tests.kube.worlds import bound, chosen, machine, node, placer_of, state_of, waiting

GPU, MEMORY, GPUSHARE = "nvidia.com/gpu", "nvidia.com/gpumem", "aliyun.com/gpu-mem"
AUTO = {"cotenant.io/memory": "auto", "cotenant.io/workload": "bert@32"}


def knowing(mib: int | None, **settings: Any) -> Settings:
    known = None if mib is None else MeasuredMemory(MiB(mib))
    return replace(DEFAULTS, measured_memory=lambda workload: known, **settings)


def measured(peak: float | None, number: int = 0, **about: Any) -> Any:
    return profile(number, "bert@32", spec={"alone": {"memoryMiB": peak, "times": 1}}, **about)


@pytest.mark.parametrize("limits", [{GPU: 1}, {GPU: 1, MEMORY: 9000}, {"aliyun.com/gpu-count": 1}, {GPUSHARE: 9}])
def test_the_profile_counts_whatever_the_pod_states(limits: dict[str, int]) -> None:
    request = request_of(pod(limits, annotations=AUTO), knowing(2458))
    assert (request.demand.memory, request.demand.memory_percent, request.demand.compute) == (2458, None, 0)
    assert not request.demand.exclusive
    assert "2458 MiB by the profile of" in request.note


@pytest.mark.parametrize(
    ("limits", "memory", "note"),
    [
        ({GPU: 1, MEMORY: 9000}, 9000, "so it gets what it states"),
        ({GPUSHARE: 9}, 9 * 1024, "so it gets what it states"),
        ({GPU: 1}, None, "so it gets a whole GPU"),
        ({"aliyun.com/gpu-count": 1}, None, "so it gets a whole GPU"),
    ],
)
def test_without_a_profile_the_pod_gets_what_it_states_or_a_whole_gpu(
    limits: dict[str, int], memory: int | None, note: str
) -> None:
    request = request_of(pod(limits, annotations=AUTO), knowing(None))
    whole = request.demand.memory_percent == WHOLE_MEMORY
    assert (request.demand.memory or None, whole) == (memory, memory is None)
    assert note in request.note


def test_a_setting_refuses_it_instead_unless_the_pod_states_an_amount() -> None:
    refuses = knowing(None, unmeasured=Unmeasured.REFUSE)
    with pytest.raises(InputError, match=r"no profile of .* state an amount under resources"):
        request_of(pod({GPU: 1}, annotations=AUTO), refuses)
    assert request_of(pod({GPU: 1, MEMORY: 9000}, annotations=AUTO), refuses).demand.memory == 9000


@pytest.mark.parametrize(
    ("annotations", "containers", "said"),
    [
        ({**AUTO, "cotenant.io/memory": "4Gi"}, [{GPU: 1}], "'4Gi', expected auto; write an amount under resources"),
        ({"cotenant.io/memory": "auto"}, [{GPU: 1}], "auto needs the annotation cotenant.io/workload"),
        (AUTO, [{GPU: 2}], "auto is for pods with 1 GPU in 1 container"),
        (AUTO, [{GPU: 1}, {GPU: 1}], "auto is for pods with 1 GPU in 1 container"),
        (AUTO, [{"aliyun.com/gpu": 1}], "aliyun.com/gpu is for whole GPUs"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_creation(annotations: Any, containers: Any, said: str) -> None:
    made = written(*containers, annotations=annotations)
    assert said in refusal(mutate(review(made), SETTINGS))


def test_a_pod_that_may_share_a_gpu_may_not_be_privileged_whatever_it_gets_in_the_end() -> None:
    made = written({GPU: 1}, annotations=AUTO)
    assert admitted(made)["spec"]["schedulerName"] == "cotenant-scheduler"
    made["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert "a privileged container reaches every GPU" in refusal(mutate(review(made), SETTINGS))


def test_the_amount_is_the_largest_peak_of_all_nodes_and_a_margin() -> None:
    found = Profiles(margin_percent=50)
    for one in (measured(1000.0), measured(1001.0, node="n2"), measured(None, 1)):
        found.profile_changed(None, one)
    found.refresh(NODES)
    assert found.memory_of("team/bert@32") == MeasuredMemory(MiB(1502))
    assert found.memory_of("evil/bert@32") is None
    found.profile_changed(measured(1001.0, node="n2"), None)
    found.refresh(NODES)
    assert found.memory_of("team/bert@32") == MeasuredMemory(MiB(1500))


@pytest.mark.parametrize(
    ("peaks", "memory", "all_of"),
    [
        ({"T4": 14_400.0}, 16_000, "T4"),
        ({"T4": 13_000.0}, 15_600, None),
        ({"V100": 14_400.0}, 17_280, None),
        ({"T4": 14_400.0, "V100": 10_000.0}, 16_000, "T4"),
        ({"T4": 14_400.0, "V100": 14_400.0}, 17_280, None),
    ],
)
def test_the_margin_never_makes_it_more_than_a_gpu_of_the_type_has(
    peaks: dict[str, float], memory: int, all_of: str | None
) -> None:
    found = Profiles()
    for number, (kind, peak) in enumerate(peaks.items()):
        spec = {"alone": {"memoryMiB": peak, "times": 1}, "gpuType": kind}
        found.profile_changed(None, profile(number, "bert@32", spec=spec))
    found.refresh(NODES)
    assert found.memory_of("team/bert@32") == MeasuredMemory(MiB(memory), all_of)


def limits_of(plane: ControlPlane, name: str) -> tuple[int, str]:
    """The memory in the assignment of a pod, and its limits file."""
    record = decode_record(plane.annotation(name, "assignment") or "")
    return record.held_by(0)[0].memory, plane.annotation(name, "0.limits") or ""


def ask(plane: ControlPlane, name: str, limits: dict[str, int], **spec: Any) -> None:
    made = pod_object([limits], [], AUTO, None, {"schedulerName": "cotenant-scheduler", **spec})
    made["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    plane.server.merge(name, made, "team")


@pytest.mark.parametrize("limits", [{GPU: 1}, {GPUSHARE: 1}], ids=["vgpu", "gpushare"])
def test_the_limits_file_has_the_amount_that_was_counted(limits: dict[str, int]) -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        await until(lambda: plane.scheduler.state.vendors)
        await add(plane, measured(2048.0))
        for name in ("a", "b"):
            ask(plane, name, limits)
            assert await plane.place(name, "n1") == "n1"
            memory, file = limits_of(plane, name)
            assert memory == 2458
            assert f"memory={2458 << 20}" in file
        await until(lambda: len(plane.events("Placed")) == 2)
        assert "it gets 2458 MiB by the profile of team/bert@32" in plane.events("Placed")[0]
        await plane.knows("a", "b")
        assert plane.scheduler.state.cluster.node("n1").free(0).memory == 16_000 - 2 * 2458

    play(story)


def test_a_workload_that_uses_nearly_all_of_a_gpu_is_placed_again_and_again() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        await until(lambda: plane.scheduler.state.vendors)
        await add(plane, measured(0.9 * 16_000))
        for name in ("a", "b"):
            ask(plane, name, {GPU: 1})
            await plane.knows(name)
            said = "it gets 16000 MiB by the profile of team/bert@32, which is all that a GPU of type T4 has"
            assert said in str(await plane.why(name))
            assert await plane.place(name, "n1") == "n1"
            assert limits_of(plane, name)[0] == 16_000
            plane.end(name)

    play(story)


@pytest.mark.parametrize("mib", [2458, None])
def test_a_rewrite_of_an_unchanged_assignment_gives_the_same_annotations(mib: int | None) -> None:
    settings = knowing(mib)
    state = state_of(node(machine("n1")))
    placer = placer_of(state, settings=settings)
    waits = waiting("a", {GPUSHARE: 3}, annotations=AUTO)
    choice = chosen(placer, waits, "n1")
    there = bound(waits, choice)
    assert choice.allocation is not None
    now = choice.allocation
    again = rewrite_for(there, now, now.record, state.cluster.node("n1").machine, moment=1, settings=settings)
    assert again.annotations == choice.annotations


def test_a_pod_without_a_profile_has_its_gpu_alone_and_its_event_says_why() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        ask(plane, "a", {GPU: 1})
        assert await plane.place("a", "n1") == "n1"
        assert limits_of(plane, "a")[0] == 16_000
        await until(lambda: plane.events("Placed"))
        assert "no profile of team/bert@32 says how much memory it needs" in plane.events("Placed")[0]

    play(story)


def test_a_pod_that_is_refused_for_want_of_a_profile_is_tried_again_once_there_is_one() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        await until(lambda: plane.scheduler.state.vendors)
        ask(plane, "a", {GPU: 1})
        assert "no profile of team/bert@32" in await plane.place("a", "n1")
        await until(lambda: "state an amount under resources" in str(plane.events("NoRoom")))
        await add(plane, measured(1000.0))
        await until(lambda: plane.annotation("a", "tried-again"))
        assert await plane.place("a", "n1") == "n1"
        assert limits_of(plane, "a")[0] == 1200

    play(story, KubeSettings(defaults=Defaults(unmeasured=Unmeasured.REFUSE)))


def test_a_queued_pod_is_released_once_there_is_a_profile() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        await until(lambda: plane.scheduler.state.vendors)
        ask(plane, "a", {GPU: 1}, schedulingGates=[{"name": GATE}])
        await plane.knows("a")
        assert "no profile of team/bert@32" in (await plane.why("a"))["reason"]
        await add(plane, measured(1000.0))
        await until(lambda: not plane.pod("a")["spec"].get("schedulingGates"))
        assert await plane.place("a", "n1") == "n1"
        assert limits_of(plane, "a")[0] == 1200

    queue = QueuePart(namespaces=("team",))
    play(story, KubeSettings(defaults=Defaults(unmeasured=Unmeasured.REFUSE), queue=queue))
