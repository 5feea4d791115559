# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What went wrong between the parts of older systems that share GPUs must not here: scheduler, webhook, device plugin.

Found by reading them or told by their users; each docstring says whose defect it is and what happened there. Where
another test of ours is about the same, that is named in `ELSEWHERE`.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from msgspec.structs import replace as changed

from cotenant.errors import InputError
from cotenant.kube.agent.service import devices_of
from cotenant.kube.codec.assignment import RECORD, record_of
from cotenant.kube.codec.keys import container_key
from cotenant.kube.install.admission import terms_of
from cotenant.kube.install.chart import checked_values, installed_objects, rendered
from cotenant.kube.install.configuration import kube_scheduler, scheduler_terms_of
from cotenant.kube.install.policies import admission_policies
from cotenant.kube.scheduler.process import SchedulerOptions, check
from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.mutation import mutate
from tests.kube.agent.agents import GPU as DEVICE
from tests.kube.agent.agents import bound as started_soon
from tests.kube.agent.agents import held, registered
from tests.kube.api_server import Refusal
from tests.kube.control_plane import KNOWS, ControlPlane, play, until
from tests.kube.http import ask
from tests.kube.reviews import SETTINGS, admitted, environment, refusal, review, written
from tests.kube.worlds import (
    CORES,
    GPU,
    MEMORY,
    PERCENT,
    free_memory,
    in_phase,
    machine,
    node,
    place,
    placer_of,
    state_of,
    waiting,
)

ROOT = Path(__file__).parents[2]
OBJECTS = {
    (one["kind"], one["metadata"]["name"]): one
    for one in installed_objects(rendered(checked_values({"web": {"enabled": False}})))
}
"""of the chart with its defaults, without the pages"""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MOST_TO_KUBELET = 4 * 1024 * 1024
"""bytes of one message that kubelet takes"""


def by(policy: str) -> dict[str, str]:
    return {"cotenant.io/policy": policy}


def test_every_verb_is_where_kube_scheduler_calls_it() -> None:
    """gpu-topology: one verb was served at a path with a slash missing, so that no call ever reached it."""
    (extender,) = kube_scheduler(scheduler_terms_of(KubeSettings()))["extenders"]
    paths = {
        name: f"{urlsplit(extender['urlPrefix']).path}/{verb}" for name, verb in extender.items() if "Verb" in name
    }

    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a")
        await until(lambda: plane.scheduler.state.vendors)
        bodies = {
            "filterVerb": plane.args("a", "n1"),
            "prioritizeVerb": plane.args("a", "n1"),
            "bindVerb": {"PodName": "a", "PodNamespace": "team", "PodUID": "uid-a", "Node": "n1"},
            "preemptVerb": {"Pod": plane.pod("a"), "NodeNameToMetaVictims": {}},
        }
        assert bodies.keys() == paths.keys()
        for name, path in paths.items():
            assert (await ask(plane.kube_port, "POST", path, bodies[name])).status == 200, path

    play(story)


def test_a_pod_may_be_filtered_again_and_nothing_is_written_for_it() -> None:
    """GPU Manager's admission (TKE): filter wrote its choice into the pod, and refused every later attempt."""

    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a")
        await until(lambda: plane.scheduler.state.vendors)
        for _ in range(3):
            assert (await plane.filter("a", "n1"))["NodeNames"] == ["n1"]
        assert {asked.method for asked in plane.server.asked} == {"GET"}
        assert await plane.bind("a", "n1") == ""

    play(story)


def test_a_name_that_nobody_knows_is_answered() -> None:
    """gpushare: asked about a node that it did not know, the scheduler ended."""

    async def story(plane: ControlPlane) -> None:
        plane.add_pod("a")
        await plane.knows("a")
        assert (await ask(plane.api_port, "GET", "/why/team/never", headers=KNOWS)).status == 404
        assert (await plane.filter("a", "never"))["FailedAndUnresolvableNodes"].keys() == {"never"}
        assert "never" in await plane.bind("a", "never")

    play(story)


def test_no_role_of_ours_deletes_or_makes_pods() -> None:
    """KAI: a running pod of a user was deleted when the pod that reserved its GPU was missing.

    What preemption may do is ask for an eviction, which disruption budgets can forbid. Only for memory above a request
    is a pod deleted in spite of its budget, by a right of kube-scheduler's role.
    """
    rules = [rule for one in OBJECTS.values() for rule in one.get("rules", ())]
    verbs = {verb for rule in rules if "pods" in rule["resources"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch", "patch"}
    assert {verb for rule in rules if "pods/eviction" in rule["resources"] for verb in rule["verbs"]} == {"create"}


def test_pods_of_one_size_that_are_bound_in_the_other_order_keep_their_own_gpus() -> None:
    """gpushare, Volcano, HAMi (F1): the plugin guessed by size and time which pod kubelet was asking for."""
    state = state_of(node(machine("n1")))
    pods = {name: waiting(name, {GPU: 1, MEMORY: 4000}, annotations=by("spread")) for name in "ab"}
    for name in ("b", "a"):
        pods[name] = place(state, placer_of(state), pods[name], "n1")
    seen = {name: pod.metadata.annotations[container_key(0, VISIBLE)] for name, pod in pods.items()}
    assert seen == {"b": "GPU-n1-0", "a": "GPU-n1-1"}
    made = admitted(written({MEMORY: 4000}))["spec"]["containers"][0]
    assert environment(made)[VISIBLE] == f"metadata.annotations['{container_key(0, VISIBLE)}']"


def test_each_of_two_containers_has_a_share_of_its_own() -> None:
    """gpushare (F2): kubelet asks for one container, the plugin looked for a pod of that size, and found none."""
    state = state_of(node(machine("n1", cards=1)))
    pod = place(state, placer_of(state), waiting("two", {GPU: 1, MEMORY: 3000}, {GPU: 1, MEMORY: 5000}), "n1")
    limits = [pod.metadata.annotations[container_key(number, "CUDA_DEVICE_MEMORY_LIMIT_0")] for number in (0, 1)]
    assert limits == ["3000m", "5000m"]
    assert free_memory(state, "n1") == (8000,)


def test_what_kubelet_is_answered_does_not_depend_on_other_pods() -> None:
    """gpushare (F3): of the pods that might be meant, one that was being deleted or had failed was taken too."""

    async def scenario() -> None:
        async with registered() as (here, kubelet):
            leaving = started_soon("leaving", held(0, "GPU-a"), deletion_timestamp="2026-01-01T00:00:00Z")
            failed = in_phase(started_soon("failed", held(0, "GPU-b")), "Failed")
            alone = await kubelet.allocate(DEVICE, "GPU-c::0")
            here.pods += [leaving, failed, started_soon("new", held(0, "GPU-c"))]
            among = await kubelet.allocate(DEVICE, "GPU-c::0")
            assert dict(among.envs) == dict(alone.envs)
            assert among.envs[VISIBLE] == "void"

    asyncio.run(scenario())


@pytest.mark.parametrize("spec", [{"nodeName": "n1"}, {"schedulerName": "another"}])
def test_a_pod_that_would_go_past_the_scheduler_is_refused(spec: dict[str, Any]) -> None:
    """gpushare (F4): a pod with nodeName, or of another scheduler, got the node's only GPU and was not counted."""
    assert f"spec.{next(iter(spec))}" in refusal(mutate(review(written({MEMORY: 1000}, **spec)), SETTINGS))


def test_what_cannot_be_given_is_an_error_and_no_value() -> None:
    """gpushare (F5): a failure was answered as a success with no-gpu-has-8MiB-to-run in the place of a GPU."""

    async def scenario() -> None:
        async with registered() as (_, kubelet):
            with pytest.raises(grpc.aio.AioRpcError):
                await kubelet.allocate(DEVICE, "GPU-gone::0")

    asyncio.run(scenario())

    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1", memory=1000)
        plane.add_pod("a", 6000)
        await until(lambda: plane.scheduler.state.vendors)
        await plane.knows("a")
        assert "does not fit" in await plane.bind("a", "n1")
        assert_untouched(plane, "a")

    play(story)


def assert_untouched(plane: ControlPlane, name: str) -> None:
    pod = plane.pod(name)
    assert "nodeName" not in pod["spec"]
    assert not [key for key in pod["metadata"]["annotations"] if key.startswith("cotenant.io/")]


def test_a_bind_that_fails_leaves_nothing_in_the_pod() -> None:
    """gpushare, Volcano (F6, F7): GPUs were written first and the node later, so a failure left words of no meaning."""

    async def story(plane: ControlPlane) -> None:
        for name in ("n1", "n2"):
            plane.add_node(name)
        plane.add_pod("a")
        await until(lambda: len(plane.scheduler.state.vendors) == 2)
        await plane.knows("a")
        plane.server.refusals = [Refusal(403, "Forbidden", only="POST")]
        assert "403" in await plane.bind("a", "n1")
        assert_untouched(plane, "a")
        assert await plane.bind("a", "n2") == ""
        assert json.loads(plane.annotation("a", "assignment") or "")["node"] == "n2"

    play(story)


def test_words_of_another_pod_or_node_mean_nothing() -> None:
    """gpushare, Volcano (F7): annotations of an earlier attempt, or copied with a template, were taken for true."""
    state = state_of(node(machine("n1")))
    pod = place(state, placer_of(state), waiting("a"), "n1")
    others = [
        changed(pod, metadata=changed(pod.metadata, uid="uid-of-its-copy")),
        changed(pod, spec=changed(pod.spec, node_name="n2")),
    ]
    for other in others:
        with pytest.raises(InputError, match=r"copied from another pod|for another node"):
            record_of(other)
    copy = admitted(written({MEMORY: 4000}, annotations=dict(pod.metadata.annotations)))
    assert not {RECORD, container_key(0, VISIBLE)} & copy["metadata"]["annotations"].keys()


def test_devices_are_as_many_as_slots_however_large_the_cards() -> None:
    """gpushare (F9): a device for each MiB; those of one card of 80 GB were more than kubelet takes in a message."""
    node_of_eight = machine("n1", cards=8, memory=81_559)
    told = devices_of(node_of_eight)
    assert len(told.devices) == sum(gpu.slots for gpu in node_of_eight.gpus)
    assert told == devices_of(machine("n1", cards=8, memory=1))
    assert told.ByteSize() < MOST_TO_KUBELET // 100


def test_of_several_schedulers_one_leads_and_each_is_asked_by_its_own_kube_scheduler() -> None:
    """gpu-topology (F10): three replicas behind one address, each with its own idea of what is free."""
    pod = OBJECTS["Deployment", "cotenant-scheduler"]["spec"]["template"]["spec"]
    command, config = pod["containers"][0]["command"], kube_scheduler(scheduler_terms_of(KubeSettings()))
    assert config["extenders"][0]["urlPrefix"] == "http://127.0.0.1:8888"
    election = config["leaderElection"]
    assert election["leaderElect"]
    assert f"--lease={election['resourceNamespace']}/{election['resourceName']}" in command


def test_nobody_else_calls_the_extender_or_writes_an_assignment() -> None:
    """gpushare (F11): anybody could call the extender, which listened on the node, and write a GPU into a pod."""
    with pytest.raises(InputError, match="other machines could bind pods through it"):
        check(SchedulerOptions(extender=("0.0.0.0", 8888)))
    for (kind, _), made in OBJECTS.items():
        assert kind not in ("Deployment", "DaemonSet") or "hostNetwork" not in made["spec"]["template"]["spec"]
    forged = written({MEMORY: 1}, annotations={RECORD: "{}"}, schedulerName="cotenant-scheduler")
    assert RECORD not in admitted(forged)["metadata"]["annotations"]
    policy = admission_policies(terms_of(SETTINGS))[0]
    assert policy["kind"] == "ValidatingAdmissionPolicy"
    assert any(RECORD in one["expression"] for one in policy["spec"]["variables"])


def test_many_pods_are_bound_to_one_node_at_the_same_time_without_a_lock() -> None:
    """HAMi: a lock on the node let one pod in at a time, and stayed for five minutes where its pod was gone."""

    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        names = [f"p{number}" for number in range(12)]
        for name in names:
            plane.add_pod(name, 1000)
        await until(lambda: plane.scheduler.state.vendors)
        await plane.knows(*names)
        assert await asyncio.gather(*(plane.bind(name, "n1") for name in names)) == [""] * len(names)
        assert not [asked for asked in plane.server.asked if "nodes" in asked.path and asked.method != "GET"]

    play(story)


@pytest.mark.parametrize(
    ("amount", "sentence"),
    [
        ({PERCENT: 101}, "expected 1 to 100"),
        ({CORES: 101}, "expected 1 to 100"),
        ({GPU: 0, MEMORY: 5}, "nvidia.com/gpu: 0;"),
    ],
)
def test_nonsense_is_refused_when_it_is_written(amount: dict[str, int], sentence: str) -> None:
    """HAMi: some of it was an internal error of the webhook, some a pod that waits for ever."""
    assert sentence in refusal(mutate(review(written(amount)), SETTINGS))


def test_hooks_of_the_author_stay() -> None:
    """HAMi, for Cambricon: the webhook put its own postStart hook in the place of the author's."""
    made = written({"cambricon.com/mlu": 1, "cambricon.com/mlu.smlu.vmemory": 1})
    hook = {"postStart": {"exec": {"command": ["echo"]}}}
    made["spec"]["containers"][0]["lifecycle"] = hook
    (container,) = admitted(made)["spec"]["containers"]
    assert (container["lifecycle"], "COTENANT_JOB" in environment(container)) == (hook, True)


ELSEWHERE: Mapping[str, Sequence[str]] = {
    "tests/cli/test_inspect.py": [
        "gpushare inspect: the unit of memory is guessed",
    ],
    "tests/cluster/test_admission.py": [
        "gpushare: a GPU index can be forged",
    ],
    "tests/cluster/test_attacks.py": [
        "gpushare: a pod that went past the scheduler has a GPU",
    ],
    "tests/cluster/test_engine.py": [
        "gpushare: a pod with two GPU containers fails",
        "gpushare: memory of a pod that is gone is given away while its process still runs",
    ],
    "tests/cluster/test_life.py": [
        "gpushare: memory is given away while a process still runs",
    ],
    "tests/cluster/mixed/test_mixed.py": [
        "gpushare: kubelet refuses what the scheduler has placed",
    ],
    "tests/cluster/test_sight.py": [
        "gpushare: cards that differ, or have gaps between their numbers, are mixed up",
    ],
    "tests/cluster/test_swap.py": [
        "gpushare and others: two pods of one size swap GPUs",
    ],
    "tests/cluster/test_waiting.py": [
        "HAMi: waiting pods are tried again after five minutes",
    ],
    "tests/kube/agent/test_plugin.py": [
        "NVIDIA's device plugin: an error makes one slot of a GPU unhealthy, for ever",
    ],
    "tests/kube/agent/test_strict.py": [
        "GPU Manager: a pod of the same name that is being deleted is taken",
    ],
    "tests/kube/agent_node/test_totals.py": [
        "gpushare: totals in the node's status are below what is placed",
    ],
    "tests/kube/test_codec_request.py": [
        "HAMi: containers are told apart by their place, which other webhooks change",
    ],
    "tests/kube/test_inspect.py": [
        "topology inspect: busy GPUs are printed as if they had no links",
        "gpushare and topology inspect: an unknown node ends the program",
        "gpushare inspect: nodes come in another order each time",
    ],
    "tests/kube/test_placement.py": [
        "gpushare, HAMi: preemption knows nothing of GPUs",
        "HAMi: an autoscaler's question changes what is reserved",
    ],
    "tests/kube/test_webhook_configuration.py": [
        "HAMi: pods come in unprepared while the webhook is away",
    ],
    "tests/node/test_nvml.py": [
        "go-gpuallocator: GPUs behind an NVSwitch seem to be linked by PCIe",
        "HAMi: one bad GPU ends the whole plugin",
    ],
}
"""defects by the file that has their test: it is marked `defect` with the same text"""

COLLECT = """
import inspect, json, sys
import pytest

class Marked:
    def pytest_collection_finish(self, session):
        for item in session.items:
            for mark in item.iter_markers("defect"):
                source = inspect.getsource(item.function)
                checks = "assert " in source or "pytest.raises" in source
                skipped = any(one.name in ("skip", "xfail") for one in item.iter_markers())
                print("marked", json.dumps([item.location[0], mark.args[0], checks and not skipped]))

sys.exit(pytest.main(["-n0", "--collect-only", "-qq", *sys.argv[1:]], plugins=[Marked()]))
"""


@pytest.fixture(scope="module")
def marked() -> dict[tuple[str, str], list[bool]]:
    """By file and defect, whether each of the tests that pytest collects is run and checks something."""
    command = [sys.executable, "-c", COLLECT, *ELSEWHERE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    found: dict[tuple[str, str], list[bool]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("marked "):
            file, defect, real = json.loads(line.removeprefix("marked "))
            found.setdefault((file, defect), []).append(real)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("file", "defect"), [(file, defect) for file in ELSEWHERE for defect in ELSEWHERE[file]])
def test_a_defect_that_is_tested_elsewhere_is(
    file: str, defect: str, marked: dict[tuple[str, str], list[bool]]
) -> None:
    tests = marked.get((file, defect))
    assert tests, f"no test of {file} is marked with this defect"
    assert all(tests), f"the test of {file} that is marked with this defect is skipped, or checks nothing"


@pytest.mark.slow
def test_every_defect_that_marks_a_test_is_listed(marked: dict[tuple[str, str], list[bool]]) -> None:
    assert marked.keys() == {(file, defect) for file, defects in ELSEWHERE.items() for defect in defects}
