# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""WorkloadProfiles: which are used, what is predicted from them, and how little a pod that lies can change."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.interference import MOST_ROWS
from cotenant.core.sharing.speeds import tenant_set_of
from cotenant.core.units import MiB
from cotenant.kube.api.decoding import UNREADABLE
from cotenant.kube.api.objects import Condition, Metadata, Pod, PodSpec
from cotenant.kube.codec.profiles import (
    MOST_BESIDE,
    MOST_PER_NODE,
    PROFILES,
    Alone,
    Beside,
    PodSpeed,
    ProfileSpec,
    ProfileStatus,
    Separation,
    WorkloadProfile,
    object_name,
    workload_id,
)
from cotenant.kube.install.profiles import profile_definition
from cotenant.kube.scheduler import measurements
from cotenant.kube.scheduler.measurements import MOST_OF_NAMESPACE
from cotenant.kube.scheduler.profiles import Profiles
from cotenant.kube.scheduler.separation import Separator
from cotenant.kube.settings import KubeSettings, SchedulerPart, SharingPart
from tests.cli.command import run
from tests.kube.api_server import ApiServer, Refusal
from tests.kube.control_plane import ControlPlane, a_scheduler, play, until
from tests.kube.pods import pod_object
from tests.kube.process import kubeconfig
from tests.kube.test_why import proxy_to

NODES = {node: {"T4": MiB(16_000), "V100": MiB(32_000)} for node in ("n1", "n2")}
LOADS = {"a@16": 0.2, "b@16": 0.5, "c@16": 0.8, "d@16": 1.0}
"""of honest workloads: the more one has, the slower its neighbours are"""


def profile(
    number: int, workload: str, speeds: dict[str, float] | None = None, *, node: str = "n1", **about: Any
) -> WorkloadProfile:
    """An object of the API server; `speeds` are those beside other workloads, as namespace/name."""
    of = [(*other.split("/", 1), speed) for other, speed in (speeds or {}).items()]
    spec = {
        "node": node,
        "namespace": about.pop("namespace", "team"),
        "workload": workload,
        "gpuType": "T4",
        "measuredAt": "2026-01-01T00:00:00Z",
        "alone": {"samplesPerSecond": 100.0, "stepSeconds": 0.1, "times": 2},
        "beside": [
            {"namespace": space, "workload": name, "speed": speed, "times": about.get("times", 1)}
            for space, name, speed in of
        ],
        **about.pop("spec", {}),
    }
    metadata = {"name": about.pop("name", object_name(node, number)), "uid": f"uid-{number}", "resourceVersion": "1"}
    return PROFILES.one.decode(json.dumps({"metadata": metadata, "spec": spec}).encode())


def learned(*profiles: WorkloadProfile) -> Profiles:
    found = Profiles()
    for one in profiles:
        found.profile_changed(None, one)
    found.refresh(NODES)
    return found


def speeds_of(found: Profiles, *workloads: str) -> list[float]:
    return [round(one.mean, 2) for one in found.belief.speeds(tenant_set_of("T4", workloads))]


def test_measured_pairs_are_predicted_as_measured_on_each_type_of_gpu() -> None:
    pair = profile(0, "a@16", {"team/b@16": 0.9}), profile(1, "b@16", {"team/a@16": 0.4})
    found = learned(*pair)
    assert speeds_of(found, "team/a@16", "team/b@16") == pytest.approx([0.9, 0.4], abs=0.03)
    elsewhere = found.belief.speeds(tenant_set_of("V100", ("team/a@16", "team/b@16")))
    assert elsewhere[0].mean == elsewhere[1].mean


def test_all_schedulers_have_the_same_predictions_whatever_the_order_of_events() -> None:
    profiles = [profile(i, name, {f"team/{other}": 0.5 + i / 10 for other in LOADS}) for i, name in enumerate(LOADS)]
    one, other = learned(*profiles), learned(*reversed(profiles))
    for name in LOADS:
        pair = tenant_set_of("T4", ("team/a@16", f"team/{name}"))
        assert one.belief.speeds(pair) == other.belief.speeds(pair)


def test_measurements_of_several_nodes_are_averaged_by_their_number() -> None:
    found = learned(
        profile(0, "a@16", {"team/b@16": 0.5}, times=3),
        profile(0, "a@16", {"team/b@16": 0.9}, node="n2", times=1),
        profile(1, "b@16", {"team/a@16": 0.6}, times=4),
    )
    assert speeds_of(found, "team/a@16", "team/b@16")[0] == pytest.approx(0.6, abs=0.03)


def test_a_change_of_the_status_alone_changes_no_prediction() -> None:
    before = profile(0, "a@16", {"team/b@16": 0.5})
    found = learned(before)
    status = ProfileStatus(conditions=(Condition(type="Accepted", status="True"),))
    found.profile_changed(before, msgspec.structs.replace(before, status=status))
    assert not found.refresh(NODES)


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (profile(0, "a", node="n9"), "no node 'n9' with GPUs is in the cluster"),
        (profile(0, "a", spec={"gpuType": "K80"}), "no node of the cluster has GPUs of type 'K80'"),
        (profile(0, "a", name="mine"), "the name 'mine' is not that of its node and a number below 100"),
        (profile(0, "a", name="n1.007"), "the name 'n1.007' is not that of its node"),
        (profile(MOST_PER_NODE, "a"), "the name 'n1.100' is not that of its node"),
        (profile(0, "a", name="n2.1"), "the name 'n2.1' is not that of its node"),
        (profile(0, "a", spec={"alone": None}), "it has neither a measurement nor a running pod"),
    ],
    ids=lambda one: "" if isinstance(one, str) else one.metadata.name,
)
def test_an_object_that_no_agent_would_write_is_not_used_and_says_why(one: WorkloadProfile, problem: str) -> None:
    found = learned(one)
    (said,) = found.problems.values()
    assert said is not None
    assert problem in said
    assert found.belief.version == 0


@pytest.mark.parametrize(
    "spec",
    [
        {"beside": [{"namespace": "x", "workload": "y", "speed": 1e9, "times": 1}]},
        {"beside": [{"namespace": "x", "workload": "y", "speed": -1, "times": 1}]},
        {"beside": [{"namespace": "x", "workload": "y", "speed": 0.5, "times": 1}] * (MOST_BESIDE + 1)},
        {"alone": {"samplesPerSecond": "fast", "times": 1}},
        {"workload": "x" * 1000},
        {"pods": {}},
    ],
    ids=["too fast", "negative", "too many", "no number", "too long", "no list"],
)
def test_numbers_out_of_bounds_are_not_read_even_if_an_old_schema_let_them_pass(spec: dict[str, Any]) -> None:
    with pytest.raises(UNREADABLE):
        profile(0, "a", spec=spec)


@pytest.mark.parametrize(
    ("name", "family", "batch"),
    [("bert@32", "bert", 32), ("bert", "bert", None), ("a@0", "a@0", None), ("@3", "@3", None)],
)
def test_the_name_of_a_workload_may_carry_its_batch_size(name: str, family: str, batch: int | None) -> None:
    assert workload_id(name) == (family, batch)


HONEST = [
    profile(
        number,
        name,
        # One pair was never measured.
        {f"team/{other}": 1 / (1 + 0.8 * load) for other, load in LOADS.items() if {name, other} != {"a@16", "d@16"}},
        times=3,
    )
    for number, name in enumerate(LOADS)
]
PAIRS = [tenant_set_of("T4", (f"team/{one}", f"team/{other}")) for one in LOADS for other in LOADS if one <= other]
TRIPLE = tenant_set_of("T4", ("team/a@16", "team/b@16", "team/d@16"))


def lies(speed: float, workloads: int, victims: Sequence[str]) -> Iterable[WorkloadProfile]:
    for number in range(workloads):
        told = {f"team/{name}": speed for name in victims} | {f"evil/w{other}@8": speed for other in range(4)}
        yield profile(number, f"w{number}@8", told, node="n2", namespace="evil", times=1_000_000)


@pytest.mark.slow
@given(
    speed=st.floats(0.001, 1.5),
    workloads=st.integers(1, 40),
    victims=st.lists(st.sampled_from(sorted(LOADS)), unique=True),
)
def test_a_namespace_whose_pods_lie_moves_no_prediction_of_another_out_of_its_bounds(
    speed: float, workloads: int, victims: list[str]
) -> None:
    honest = learned(*HONEST).belief
    lied_to = learned(*HONEST, *lies(speed, workloads, victims)).belief
    for company in (*PAIRS, TRIPLE):
        for before, after in zip(honest.speeds(company), lied_to.speeds(company), strict=True):
            assert before.low <= after.low <= after.mean <= after.high <= before.high
    for name in LOADS:
        assert lied_to.mildness("T4", f"team/{name}") == pytest.approx(honest.mildness("T4", f"team/{name}"), abs=0.1)


def test_only_so_many_measurements_of_one_namespace_count() -> None:
    many = [profile(i, f"w{i}@8", {f"evil/w{j}@8": 0.1 for j in range(30)}, namespace="evil") for i in range(50)]
    found = learned(*many)
    (predictor,) = found.belief._all.predictors.values()
    assert len(predictor.state().rows) == MOST_OF_NAMESPACE


NAMED = st.sampled_from(["a@16", "b@16", "c"])
SPACES = st.sampled_from(["team", "evil"])
BESIDE = st.fixed_dictionaries(
    {"namespace": SPACES, "workload": NAMED, "speed": st.sampled_from([0.2, 0.5, 0.9]), "times": st.integers(1, 10)}
)
ALONE = st.fixed_dictionaries({"stepSeconds": st.sampled_from([0.1, 0.2]), "times": st.integers(1, 3)})
SPECS = st.fixed_dictionaries(
    {
        "namespace": SPACES,
        "workload": NAMED,
        "gpuType": st.sampled_from(["T4", "V100"]),
        "measuredAt": st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
        "alone": st.none() | ALONE,
        "beside": st.lists(BESIDE, max_size=3, unique_by=lambda one: (one["namespace"], one["workload"])),
        "pods": st.just([]) | st.just([{"name": "a", "uid": "uid-a", "batch": 8, "samplesPerSecond": 5.0}]),
    }
)
CHANGES = st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.integers(0, 2), st.none() | SPECS)
"""one object is written, or deleted if the specification is None"""


TYPES = {"n1": NODES["n1"], "n2": {"T4": MiB(15_000)}, "n3": {"V100": MiB(32_000)}}


@pytest.mark.slow
@given(
    rounds=st.lists(
        st.tuples(st.lists(CHANGES, max_size=6), st.sets(st.sampled_from(["n1", "n2", "n3"]))), min_size=1, max_size=5
    ),
    most_rows=st.sampled_from([2, MOST_ROWS]),
)
def test_what_was_learned_step_by_step_is_what_a_new_scheduler_learns_at_once(rounds: Any, most_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurements, "MOST_ROWS", most_rows)
        learn_step_by_step(rounds)


def learn_step_by_step(rounds: Any) -> None:
    companies = [
        tenant_set_of(gpu_type, names)
        for gpu_type in ("T4", "V100")
        for names in (("team/a@16", "evil/b@16"), ("team/c", "team/c"), ("team/a@16", "team/b@16", "evil/c"))
    ]
    objects: dict[str, WorkloadProfile] = {}
    step_by_step = Profiles()
    for changes, nodes in rounds:
        for node, number, spec in changes:
            name = object_name(node, number)
            before = objects.pop(name, None)
            if spec is not None:
                objects[name] = profile(number, spec["workload"], node=node, spec=spec)
            step_by_step.profile_changed(before, objects.get(name))
        step_by_step.refresh({node: TYPES[node] for node in nodes})
        at_once = Profiles()
        for one in objects.values():
            at_once.profile_changed(None, one)
        at_once.refresh({node: TYPES[node] for node in nodes})
        assert step_by_step.problems == at_once.problems
        assert step_by_step._used == at_once._used
        for table in vars(at_once._measurements).keys() - {"changes"}:
            assert getattr(step_by_step._measurements, table) == getattr(at_once._measurements, table), table
        assert step_by_step.reported("uid-a", "team", "n1") == at_once.reported("uid-a", "team", "n1")
        for company in companies:
            assert step_by_step.belief.speeds(company) == at_once.belief.speeds(company)
        assert step_by_step.belief.mildness("T4", "team/a@16") == at_once.belief.mildness("T4", "team/a@16")


def test_a_speed_that_counts_in_its_namespace_only_changes_the_bounds_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "MOST_ROWS", 2)
    others = [profile(i, f"w{i}@8", {f"x/w{j}@8": 0.5 for j in range(2)}, node="n2", namespace="x") for i in range(2)]
    before, after = (
        profile(0, "a@16", {"team/old@16": 0.5, "team/b@16": speed, "team/new@16": 0.5}) for speed in (0.9, 0.2)
    )
    found = learned(before, *others)
    pair = tenant_set_of("T4", ("team/a@16", "team/b@16"))
    assert found.belief.speeds(pair) == learned(before, *others).belief.speeds(pair)
    found.profile_changed(before, after)
    found.refresh(NODES)
    assert found.belief.speeds(pair) == learned(after, *others).belief.speeds(pair)


def rows_of(found: Profiles) -> set[str]:
    """The workloads of which measurements count."""
    return {str(one.victim.family) for rows in found._measurements.rows.values() for one in rows}


def test_an_agent_that_claims_newer_measurements_displaces_none_of_another_node() -> None:
    late = {"measuredAt": "9999-12-31T23:59:59Z"}
    lying = [profile(i, f"lie{i}@8", {f"team/x{j}@8": 0.1 for j in range(30)}, node="n2", spec=late) for i in range(50)]
    found = learned(*HONEST, *lying)
    assert {"team/a", "team/b", "team/c", "team/d"} <= rows_of(found)
    (rows,) = found._measurements.rows.values()
    assert len(rows) == MOST_OF_NAMESPACE


def test_an_agent_cannot_hide_what_a_pod_of_another_node_reports() -> None:
    said = {"name": "a", "uid": "uid-a", "batch": 8, "samplesPerSecond": 5.0}
    true = profile(0, "a@16", spec={"pods": [said]})
    false = profile(0, "a@16", node="n2", spec={"pods": [said | {"samplesPerSecond": 999.0}]})
    for order in ((true, false), (false, true)):
        reported = learned(*order).reported("uid-a", "team", "n1")
        assert reported is not None
        assert reported.samples_per_second == 5.0


def test_pods_that_come_and_go_do_not_have_the_measurements_read_again() -> None:
    def with_pods(*pods: dict[str, Any]) -> WorkloadProfile:
        return profile(0, "a@16", {"team/b@16": 0.5}, spec={"pods": list(pods)})

    said = {"name": "a", "uid": "uid-a", "batch": 8, "samplesPerSecond": 5.0}
    before, after = with_pods(), with_pods(said)
    found = learned(before, profile(1, "b@16", {"team/a@16": 0.5}))
    rows = found._measurements.rows["T4"]
    found.problems["n1.1"] = "a full refresh would judge this object again"
    found.profile_changed(before, after)
    assert not found.refresh(NODES)
    assert found.problems["n1.1"] is not None
    assert found._measurements.rows["T4"] is rows
    reported = found.reported("uid-a", "team", "n1")
    assert reported is not None
    assert reported.batch == 8
    found.profile_changed(after, before)
    found.refresh(NODES)
    assert found.reported("uid-a", "team", "n1") is None


def test_an_object_that_gets_its_first_pod_is_used_from_then_on() -> None:
    said = {"name": "a", "uid": "uid-a", "batch": 8, "samplesPerSecond": 5.0}
    before, after = (profile(0, "a@16", spec={"alone": None, "pods": pods}) for pods in ([], [said]))
    found = learned(before)
    assert found.problems.get("n1.0") is not None
    found.profile_changed(before, after)
    found.refresh(NODES)
    assert found.problems.get("n1.0") is None
    assert found.reported("uid-a", "team", "n1") is not None
    found.profile_changed(after, before)
    found.refresh(NODES)
    assert found.problems.get("n1.0") is not None
    assert found.reported("uid-a", "team", "n1") is None


# In the scheduler


WORKLOADS = {"a": "small@16", "b": "small@16", "c": "large@16"}


def body(one: WorkloadProfile) -> dict[str, Any]:
    return dict(json.loads(msgspec.json.encode(one)))


async def add(plane: ControlPlane, one: WorkloadProfile) -> None:
    """Writes an object as an agent does, and waits until the scheduler has judged it."""
    name, seen = one.metadata.name, plane.scheduler.learning._reflector.objects
    plane.server.profiles.merge(name, body(one))
    await until(lambda: ("", name) in seen and seen["", name].spec == one.spec)
    plane.scheduler.learning.refresh()


def condition(plane: ControlPlane, name: str) -> dict[str, str]:
    found = plane.server.profiles.pods["", name].get("status", {}).get("conditions", [{}])
    return dict(found[0])


async def two_on_one_gpu(plane: ControlPlane) -> None:
    plane.add_node("n1")
    for name in ("a", "c"):
        plane.add_pod(name, annotations={"cotenant.io/workload": WORKLOADS[name], "cotenant.io/policy": "coscheml"})
        assert await plane.place(name, "n1") == "n1"
    await plane.knows("a", "c")


def measured(number: int, pod: str, speeds: dict[str, float], **about: Any) -> WorkloadProfile:
    """What an agent says of the workload of a running pod."""
    said = {"name": pod, "uid": f"uid-{pod}", "batch": 24, "tuned": True, "samplesPerSecond": 61.5, "speed": 0.7}
    return profile(number, WORKLOADS[pod], speeds, spec={"pods": [said]}, **about)


def test_why_and_show_give_the_predicted_and_the_measured_speed_of_all_tenants(tmp_path: Any) -> None:
    async def story(plane: ControlPlane) -> None:
        await two_on_one_gpu(plane)
        await add(plane, measured(0, "a", {"team/large@16": 0.75}))
        await add(plane, measured(1, "c", {"team/small@16": 0.5}))
        tenants = (await plane.why("a"))["tenants"]
        assert [(one["pod"], one["workload"]) for one in tenants] == [
            ("team/a", "team/small@16"),
            ("team/c", "team/large@16"),
        ]
        assert [one["predicted"] for one in tenants] == pytest.approx([0.75, 0.5], abs=0.05)
        assert [(one["measured"], one["batch"], one["tuned"]) for one in tenants] == [(0.7, 24, True)] * 2
        async with proxy_to(plane) as port:
            config = kubeconfig(tmp_path, port)
            show = await asyncio.to_thread(run, "show", "pod/a", "-n", "team", "--kubeconfig", str(config))
            assert show.returncode == 0, show.stderr
            rows = [line.split() for line in show.stdout.splitlines()]
            assert ["team/c", "team/large@16", "24", "yes", "61.5", "70%"] in [row[:6] for row in rows]
            why = await asyncio.to_thread(run, "why", "pod/a", "-n", "team", "--kubeconfig", str(config))
            assert "team/c (team/large@16): predicted " in why.stdout
            assert "measured 70% of its speed alone" in why.stdout

    play(story)


def test_why_says_nothing_about_the_neighbours_of_another_namespace() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        policy = {"cotenant.io/policy": "coscheml"}
        plane.add_pod("a", annotations={"cotenant.io/workload": "small@16", **policy})
        assert await plane.place("a", "n1") == "n1"
        notes, spec = {"cotenant.io/workload": "secret@16", **policy}, plane.pod("a")["spec"]
        theirs = pod_object([], [], notes, None, {key: value for key, value in spec.items() if key != "nodeName"})
        theirs["metadata"] |= {"name": "c", "namespace": "other", "uid": "uid-c"}
        theirs = plane.server.merge("c", theirs, "other")
        await until(lambda: ("other", "c") in plane.scheduler.watches.pods.objects)
        await plane.call("filter", {"Pod": theirs, "Nodes": None, "NodeNames": ["n1"]})
        args = {"PodName": "c", "PodNamespace": "other", "PodUID": "uid-c", "Node": "n1"}
        assert (await plane.call("bind", args)).json["Error"] == ""
        await until(lambda: plane.scheduler.state.bound("uid-c") is not None)
        await plane.knows("a")
        await add(plane, measured(0, "a", {"other/secret@16": 0.75}))
        await add(plane, measured(1, "c", {"team/small@16": 0.5}, namespace="other"))
        own, other = (await plane.why("a"))["tenants"]
        assert (own["workload"], own["batch"]) == ("team/small@16", 24)
        assert other["pod"] == "1 pod of another namespace"
        assert {other[key] for key in ("workload", "predicted", "measured", "samples_per_second", "batch")} == {None}
        assert not other["tuned"]

    play(story)


def test_a_pod_that_reports_is_shown_before_anything_was_measured() -> None:
    async def story(plane: ControlPlane) -> None:
        await two_on_one_gpu(plane)
        said = {"name": "a", "uid": "uid-a", "batch": 8, "samplesPerSecond": 5.0}
        await add(plane, profile(0, WORKLOADS["a"], spec={"alone": None, "pods": [said]}))
        own, other = (await plane.why("a"))["tenants"]
        assert (own["batch"], own["samples_per_second"], own["measured"]) == (8, 5.0, None)
        assert other["batch"] is None

    play(story)


def test_an_agent_says_nothing_about_pods_of_another_node_or_namespace() -> None:
    async def story(plane: ControlPlane) -> None:
        await two_on_one_gpu(plane)
        plane.add_node("n2")
        await until(lambda: "n2" in plane.scheduler.state.vendors)
        await add(plane, measured(0, "a", {"team/large@16": 0.75}, node="n2"))
        await add(plane, measured(1, "c", {"team/small@16": 0.5}, namespace="evil"))
        assert [one["measured"] for one in (await plane.why("a"))["tenants"]] == [None, None]

    play(story)


def test_the_leader_says_on_each_object_whether_it_is_used() -> None:
    async def story(plane: ControlPlane) -> None:
        await two_on_one_gpu(plane)
        await add(plane, measured(0, "a", {"team/large@16": 0.75}))
        await add(plane, profile(3, "x", node="n7"))
        await until(lambda: condition(plane, "n1.0").get("status") == "True")
        await until(lambda: condition(plane, "n7.3").get("status") == "False")
        assert condition(plane, "n7.3")["message"] == "no node 'n7' with GPUs is in the cluster"
        writes = sum(asked.method == "PATCH" for asked in plane.server.profiles.asked)
        plane.add_node("n7")
        await until(lambda: condition(plane, "n7.3").get("status") == "True")
        assert sum(asked.method == "PATCH" for asked in plane.server.profiles.asked) == writes + 1

    play(story)


def test_a_cluster_without_the_custom_resource_is_served_all_the_same() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a")
        assert await plane.place("a", "n1") == "n1"

    server = ApiServer()
    server.profiles.refusals = [Refusal(404, "NotFound")] * 1000
    play(story, server=server)


def test_a_pod_waits_for_neighbours_that_it_would_harm_and_is_retried_when_a_better_pair_is_known() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        policy = {"cotenant.io/policy": "cotenant"}
        plane.add_pod("a", annotations={"cotenant.io/workload": "small@16", **policy})
        assert await plane.place("a", "n1") == "n1"
        await add(plane, profile(0, "small@16", {"team/large@16": 0.1}))
        await add(plane, profile(1, "large@16", {"team/small@16": 0.2}))
        plane.add_pod("c", annotations={"cotenant.io/workload": "large@16", **policy})
        assert "sharing" in await plane.place("c", "n1")
        await until(lambda: "sharing must add" in str(plane.events("NoRoom")))
        await add(plane, profile(0, "small@16", {"team/large@16": 0.95}))
        await add(plane, profile(1, "large@16", {"team/small@16": 0.95}))
        await until(lambda: plane.annotation("c", "tried-again"))
        assert await plane.place("c", "n1") == "n1"

    play(story)


def test_a_pair_counts_as_measured_once_both_directions_are() -> None:
    one, other = profile(0, "a@16", {"team/b@16": 0.9}), profile(1, "b@16", {"team/a@16": 0.4})
    assert not learned(one).belief.knows("T4", "team/a@16", ["team/b@16"])
    both = learned(one, other).belief
    assert both.knows("T4", "team/a@16", ["team/b@16"])
    assert not both.knows("V100", "team/a@16", ["team/b@16"])
    assert not both.knows("T4", "team/a@16", ["team/b@16", "team/c@16"])


OWNED = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-j", "controller": True}]
EVICTING = KubeSettings(scheduler=SchedulerPart(policy="cotenant", sharing=SharingPart(evict_newcomers=True)))


@pytest.mark.parametrize(
    ("settings", "owners", "evicted"),
    [
        (EVICTING, OWNED, ["c"]),
        (EVICTING, [], []),
        (KubeSettings(scheduler=SchedulerPart(policy="cotenant")), OWNED, []),
    ],
    ids=["allowed", "a bare pod", "not allowed by default"],
)
def test_a_newcomer_that_harms_is_evicted_once_and_only_if_something_creates_it_again(
    settings: KubeSettings, owners: list[dict[str, Any]], evicted: list[str]
) -> None:
    async def story(plane: ControlPlane) -> None:
        await share_harmfully(plane, owners, owners)
        await until(lambda: plane.server.evicted == evicted)
        if evicted:
            await until(lambda: plane.events("Separated"))
            assert "after it was measured beside 1 neighbour" in plane.events("Separated")[0]
            plane.end("c")
            await learn(plane, 0.95)
            await placed(plane, "d", "large@16", owners)
            await learn(plane, 0.06)
        await add(plane, profile(5, "other@16", {"team/small@16": 0.5}))  # something is learned once more
        assert plane.server.evicted == evicted

    play(story, settings)


def test_another_leader_does_not_evict_a_pod_of_the_same_controller_again() -> None:
    async def story() -> None:
        server = ApiServer()
        async with server.serving():
            async with a_scheduler(server, EVICTING) as plane:
                await share_harmfully(plane, OWNED)
                await until(lambda: server.evicted == ["c"])
                (said,) = server.profiles.pods["", "n1.1"]["status"]["separations"]
                assert (said["controller"], said["pod"]) == ("uid-j", "c")
                plane.end("c")
                await learn(plane, 0.95)
            async with a_scheduler(server, EVICTING) as plane:  # it remembers nothing
                await placed(plane, "d", "large@16", OWNED)
                await learn(plane, 0.06)
                await evicted_elsewhere(plane)
        assert server.evicted == ["c", "x"]

    asyncio.run(story())


async def evicted_elsewhere(plane: ControlPlane) -> None:
    """A newcomer of another controller on a GPU of its own is evicted, after the pods that were placed before it were
    judged once more."""
    owner, workload = [{**OWNED[0], "uid": "uid-other"}], "other@16"
    plane.add_node("n2")
    await until(lambda: "n2" in plane.scheduler.state.vendors)
    await add(plane, profile(2, workload, {f"team/{workload}": 0.95}, times=8))
    for one in ("y", "x"):
        await placed(plane, one, workload, owner if one == "x" else [], "n2")
    await add(plane, profile(2, workload, {f"team/{workload}": 0.06}, times=8))
    await until(lambda: "x" in plane.server.evicted)


def test_a_leader_remembers_whose_pod_it_evicted_if_the_profile_goes_away() -> None:
    async def story(plane: ControlPlane) -> None:
        await share_harmfully(plane, OWNED)
        await until(lambda: plane.server.evicted == ["c"])
        plane.end("c")
        plane.server.profiles.merge("n1.1", {"status": None})
        await until(lambda: not plane.scheduler.profiles.was_separated("uid-j"))
        await learn(plane, 0.95)
        await placed(plane, "d", "large@16", OWNED)
        await learn(plane, 0.06)
        await evicted_elsewhere(plane)
        assert plane.server.evicted == ["c", "x"]

    play(story, EVICTING)


def test_a_pod_whose_eviction_cannot_be_recorded_stays_and_does_not_keep_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with an older definition of the custom resource, which drops the field without an error."""

    async def story(plane: ControlPlane) -> None:
        profiles, merge = plane.server.profiles, plane.server.profiles.merge

        def pruned(name: str, patch: dict[str, Any], *more: Any, **options: Any) -> Any:
            if name == "n1.1":
                patch.get("status", {}).pop("separations", None)
            return merge(name, patch, *more, **options)

        monkeypatch.setattr(profiles, "merge", pruned)
        await share_harmfully(plane, OWNED)
        await until(lambda: "WorkloadProfile n1.1 does not keep it" in str(plane.events("SeparationRefused")))
        await evicted_elsewhere(plane)
        assert plane.server.evicted == ["x"]

    play(story, EVICTING)


async def share_harmfully(
    plane: ControlPlane, newcomer: list[dict[str, Any]], resident: list[dict[str, Any]] | None = None
) -> None:
    """The pod c joins a on a GPU, then they are measured to slow each other down. The arguments are their owners."""
    plane.add_node("n1")
    await until(lambda: plane.scheduler.state.vendors)
    await learn(plane, 0.95)
    await placed(plane, "a", "small@16", resident or [])
    await placed(plane, "c", "large@16", newcomer)
    await learn(plane, 0.06)


async def learn(plane: ControlPlane, speed: float) -> None:
    for number, (own, other) in enumerate((("small@16", "large@16"), ("large@16", "small@16"))):
        await add(plane, profile(number, own, {f"team/{other}": speed}, times=8))


async def placed(plane: ControlPlane, name: str, workload: str, owners: list[dict[str, Any]], node: str = "n1") -> None:
    plane.add_pod(name, annotations={"cotenant.io/workload": workload})
    plane.server.merge(name, {"metadata": {"ownerReferences": owners}}, "team")
    await plane.knows(name)
    assert await plane.place(name, node) == node
    await plane.knows(name)


def test_a_scheduler_that_does_not_lead_remembers_no_pod_to_judge() -> None:
    waits: list[str | None] = ["another scheduler leads"]
    shared: Any = SimpleNamespace(
        settings=EVICTING,
        lead=SimpleNamespace(unready_reason=lambda: waits[-1]),
        clock=lambda: 0.0,
        placer=SimpleNamespace(feasibility=SimpleNamespace(crowding=0.0)),
    )
    separator = Separator(shared, Profiles())
    before = Pod(metadata=Metadata(name="a", uid="uid-a"))
    after = Pod(metadata=Metadata(name="a", uid="uid-a"), spec=PodSpec(node_name="n1"))
    separator.pod_changed(before, after)
    assert separator._placed == {}
    waits.append(None)
    separator.pod_changed(before, after)
    assert list(separator._placed) == ["uid-a"]


def test_the_structs_and_the_schema_agree_on_names() -> None:
    (version,) = profile_definition()["spec"]["versions"]
    whole = version["schema"]["openAPIV3Schema"]["properties"]
    spec, status = whole["spec"]["properties"], whole["status"]["properties"]

    def names(struct: type[msgspec.Struct]) -> set[str]:
        return set(struct.__struct_encode_fields__)

    assert set(spec) == names(ProfileSpec)
    assert set(spec["alone"]["properties"]) == names(Alone)
    assert set(spec["beside"]["items"]["properties"]) == names(Beside)
    assert set(spec["pods"]["items"]["properties"]) == names(PodSpeed)
    assert set(status) == names(ProfileStatus)
    assert set(status["separations"]["items"]["properties"]) == names(Separation)
