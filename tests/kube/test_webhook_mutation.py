# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod carries once it is admitted, in every dialect; that it stays so; and who is left alone."""

import asyncio
import json
import threading
from base64 import b64decode
from typing import Any

import pytest

from cotenant.kube.api.names import MUTATE
from cotenant.kube.api.objects import Pod, decode_pod
from cotenant.kube.codec.annotations import variable_names
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.request import NUMBERS, request_of
from cotenant.kube.codec.settings import DIALECTS
from cotenant.kube.settings import (
    OTHER_SCHEDULERS,
    Defaults,
    KubeSettings,
    ResourceNames,
    SchedulerPart,
    WebhookPart,
)
from cotenant.kube.webhook import mutation
from cotenant.kube.webhook.mutation import SMALL, mutate, webhook_routes
from tests.kube.reviews import SETTINGS, UNCHANGED, Json, admitted, changed, environment, response, review, written

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
ALL = {"name": VISIBLE, "value": "all"}
HIDDEN = {VISIBLE: "void", "CAMBRICON_VISIBLE_DEVICES": "", "AMD_VISIBLE_DEVICES": "none"}
"""what hides the GPUs of every vendor"""


def field(number: int, name: str) -> str:
    return f"metadata.annotations['cotenant.io/{number}.{name}']"


def read(pod: Json) -> Pod:
    return decode_pod(json.dumps(pod).encode())


def app(pod: Json, number: int = 0) -> Json:
    return dict(pod["spec"]["containers"][number])


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_container_is_prepared_for_all_that_the_binding_will_tell_it(dialect: Any) -> None:
    pod = admitted(written({dialect.count: 1}, {}))
    variables = {name: field(0, name) for name in variable_names(dialect, 1)}
    assert environment(app(pod)) == {**HIDDEN, **variables}
    assert pod["spec"]["schedulerName"] == "cotenant-scheduler"
    assert pod["spec"]["volumes"] == [
        {
            "name": "cotenant-limits-0",
            "downwardAPI": {
                "items": [{"path": "limits", "fieldRef": {"apiVersion": "v1", "fieldPath": field(0, "limits")}}],
                "defaultMode": 0o644,
            },
        }
    ]
    assert app(pod)["volumeMounts"] == [{"name": "cotenant-limits-0", "readOnly": True, "mountPath": "/etc/cotenant"}]
    assert environment(app(pod, 1)) == HIDDEN
    assert "volumeMounts" not in app(pod, 1)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_by_cdi_a_pod_does_not_name_its_gpus_itself_unless_its_vendor_has_no_cdi(dialect: Any) -> None:
    written_pod = written({dialect.count: 1}, {})
    pod = admitted(written_pod, by_cdi=True)
    assert admitted(pod, by_cdi=True) == pod
    usual = environment(app(admitted(written_pod)))
    hidden = {VISIBLE: HIDDEN[VISIBLE]} if dialect.vendor.row.cdi_kind else {}
    assert environment(app(pod)) == {**usual, **hidden}


def test_by_cdi_the_variables_of_a_pod_still_tell_the_gpus_of_its_init_containers() -> None:
    pod = admitted(written({"nvidia.com/gpu": 1}, init=[{"nvidia.com/gpu": 1}]), by_cdi=True)
    assert {environment(one)[VISIBLE] for one in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])} == {
        field(0, VISIBLE),
        field(1, VISIBLE),
    }


@pytest.mark.parametrize(
    ("asked", "count", "gpus"),
    [
        ({"nvidia.com/gpumem": 3000}, "nvidia.com/gpu", "2"),
        ({"nvidia.com/gpumem-percentage": 50}, "nvidia.com/gpu", "2"),
        ({"nvidia.com/gpucores": 50}, "nvidia.com/gpu", "2"),
        ({"aliyun.com/gpu-mem": 3}, "cotenant.io/gpushare-slots", "2"),
        ({"gpushare/gpu-mem": 3}, "cotenant.io/iadeep-slots", "2"),
        ({"cambricon.com/mlumem": 1024}, "cambricon.com/mlunum", "2"),
        ({"nvidia.com/gpu": 3, "nvidia.com/gpumem": 3000}, "nvidia.com/gpu", 3),
        ({"aliyun.com/gpu": 1}, "cotenant.io/topology-slots", "1"),
    ],
)
def test_kubelet_is_told_how_many_devices_where_the_author_did_not_say(asked: Json, count: str, gpus: object) -> None:
    resources = app(admitted(written(asked), KubeSettings(defaults=Defaults(gpus=2))))["resources"]
    assert resources["limits"] == {"cpu": "500m", **asked, count: gpus}
    assert resources.get("requests", {}) == ({} if count in asked else {count: gpus})


@pytest.mark.parametrize(("count", "slots"), [("aliyun.com/gpu-count", "gpushare"), ("gpushare/gpu-count", "iadeep")])
def test_a_number_of_gpus_is_moved_if_kubelet_would_compare_it_with_those_of_the_node(count: str, slots: str) -> None:
    made = written({count: 2, count.replace("count", "mem"): 3})
    pod = admitted(made)
    for part in ("limits", "requests"):
        assert count not in app(pod)["resources"][part]
        assert app(pod)["resources"][part][f"cotenant.io/{slots}-slots"] == "2"
    assert response(mutate(review(pod), SETTINGS)) == UNCHANGED
    assert request_of(read(pod)).demand == request_of(read(made)).demand


def test_amounts_without_effect_are_removed_since_kubelet_would_count_them() -> None:
    made = written(
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpumem-percentage": 50, "nvidia.com/priority": 7}
    )
    resources = made["spec"]["containers"][0]["resources"]
    resources["requests"] = dict(resources["limits"])
    pod = admitted(made)
    for part in ("limits", "requests"):
        assert "nvidia.com/gpumem-percentage" not in app(pod)["resources"][part]
        assert app(pod)["resources"][part]["nvidia.com/priority"] == "1"
    assert response(mutate(review(pod), SETTINGS)) == UNCHANGED
    assert request_of(read(pod)).demand == request_of(read(made)).demand


def test_each_container_has_a_number_and_sees_its_own_limits_alone() -> None:
    wanting = {"nvidia.com/gpumem": 1000}
    pod = admitted(written(wanting, {}, wanting, init=[{}, {**wanting, "sidecar": True}]))
    names = json.loads(pod["metadata"]["annotations"][NUMBERS])
    assert names == ["init-0", "init-1", "app-0", "app-1", "app-2"]
    containers = [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]
    mounts = {one["name"]: [mount["name"] for mount in one.get("volumeMounts", [])] for one in containers}
    limits = [f"cotenant-limits-{number}" for number in (1, 2, 4)]
    assert mounts == {"init-0": [], "init-1": limits[:1], "app-0": limits[1:2], "app-1": [], "app-2": limits[2:]}
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == limits
    assert environment(app(pod, 2))[VISIBLE] == field(4, VISIBLE)
    assert [one.number for one in request_of(read(pod)).containers] == [1, 2, 4]


def test_numbers_stay_when_others_put_containers_in_between() -> None:
    first = admitted(written({"nvidia.com/gpumem": 1000}, {"nvidia.com/gpumem": 2000}))
    mesh = {"name": "mesh", "image": "mesh", "env": [ALL]}
    meddled = {
        **first,
        "spec": {**first["spec"], "initContainers": [mesh], "containers": [*first["spec"]["containers"]]},
    }
    meddled["spec"]["containers"][1]["env"].insert(0, {"name": "MESH", "value": "1"})
    meddled["spec"]["volumes"].insert(0, {"name": "mesh", "emptyDir": {}})
    second = admitted(meddled)
    assert json.loads(second["metadata"]["annotations"][NUMBERS]) == ["app-0", "app-1", "mesh"]
    assert environment(second["spec"]["initContainers"][0]) == HIDDEN
    assert environment(app(second, 1))[VISIBLE] == field(1, VISIBLE)
    assert app(second, 1)["env"][-1] == {"name": "MESH", "value": "1"}, "ours come first"
    assert response(mutate(review(second), SETTINGS)) == {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "allowed": True,
    }


def test_what_the_author_set_of_our_names_is_gone() -> None:
    made = written({"nvidia.com/gpu": 1}, {})
    secret = {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    for container in made["spec"]["containers"]:
        container["env"] = [ALL, {"name": "MINE", "value": "1"}, secret, ALL]
    pod = admitted(made)
    others = [name for name in HIDDEN if name != VISIBLE]
    assert [one["name"] for one in app(pod)["env"]] == [*others, *variable_names(DIALECTS[0], 1), "MINE"]
    assert app(pod, 1)["env"][: len(HIDDEN)] == [
        {"name": name, "value": value} if value else {"name": name} for name, value in HIDDEN.items()
    ]
    assert app(pod, 1)["env"][len(HIDDEN) :] == [{"name": "MINE", "value": "1"}, secret]


def test_a_copy_of_a_placed_pod_is_admitted_as_if_it_was_new() -> None:
    made = written({"aliyun.com/gpu-mem": 3}, annotations={"mine": "1"})
    fresh = admitted(made)
    placed = {**fresh, "metadata": {**fresh["metadata"], "annotations": dict(fresh["metadata"]["annotations"])}}
    placed["metadata"]["annotations"] |= {
        RECORD: "{}",
        "cotenant.io/0.limits": "version 1",
        "cotenant.io/17.NVIDIA_VISIBLE_DEVICES": "GPU-x",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "scheduler.framework.gpushare.allocation": "{}",
        "hami.io/vgpu-devices-allocated": "GPU-x,NVIDIA,3000,0:;",
    }
    assert admitted(placed) == fresh
    assert fresh["metadata"]["annotations"] == {"mine": "1", NUMBERS: '["app-0"]'}


def test_a_copy_that_asks_for_no_gpus_any_more_keeps_nothing_of_ours() -> None:
    copy = admitted(written({"nvidia.com/gpu": 1}))
    copy["spec"]["containers"][0]["resources"] = {}
    pod = admitted(copy)
    assert pod["metadata"]["annotations"] == {}
    assert "volumes" not in pod["spec"]
    assert "volumeMounts" not in app(pod)
    assert environment(app(pod))[VISIBLE] == "void"


@pytest.mark.parametrize("names", ['["other"]', '["app-0","app-0"]', "nonsense", "[]", '["app-0","gone"]'])
def test_numbers_that_are_not_of_this_pod_are_made_anew(names: str) -> None:
    pod = admitted(written({"nvidia.com/gpu": 1}, annotations={NUMBERS: names}))
    assert pod["metadata"]["annotations"][NUMBERS] == '["app-0"]'


def test_a_copy_without_gpus_that_names_our_scheduler_is_not_refused_for_words_that_are_the_schedulers() -> None:
    words = {"ALIYUN_COM_GPU_MEM_IDX": "0", "mine": "stays"}
    pod = admitted(written({}, annotations=words, schedulerName=SETTINGS.scheduler.name))
    assert pod["metadata"]["annotations"] == {"mine": "stays"}
    assert response(mutate(review(pod), SETTINGS)) == UNCHANGED


def test_a_pod_without_metadata_is_prepared_as_any_other() -> None:
    made = written({"nvidia.com/gpumem": 1000})
    del made["metadata"]
    assert NUMBERS in admitted(made)["metadata"]["annotations"]


def test_a_pod_without_gpus_keeps_its_scheduler_and_the_words_of_other_systems() -> None:
    theirs = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    pod = admitted(written({}, annotations=theirs, schedulerName="volcano"))
    assert pod["metadata"]["annotations"] == theirs
    assert pod["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "nvidia.com/gpu"])
def test_cards_of_another_plugin_are_left_to_it_but_not_to_the_author(resource: str) -> None:
    made = written({resource: 1}, {resource: 0})
    made["spec"]["containers"][0]["env"] = [ALL]
    pod = admitted(made, KubeSettings(dialects={"vgpu": ResourceNames(count="example.com/vgpu")}))
    assert "env" not in app(pod)
    assert environment(app(pod, 1)) == HIDDEN


def test_where_nobody_chose_the_node_cards_of_another_plugin_are_not_believed_in() -> None:
    pod = admitted(written({"nvidia.com/gpu.shared": 1}, nodeName="n1"))
    assert environment(app(pod)) == HIDDEN


def test_what_has_to_be_changed_in_long_lists_is_said_shortly() -> None:
    made = written({"nvidia.com/gpu": 1})
    mine = [{"name": f"MINE_{i}"} if i % 2 else ALL for i in range(2000)]
    made["spec"]["containers"][0]["env"] = mine
    answer = mutate(review(made), SETTINGS)
    assert app(changed(made, answer))["env"][-1000:] == mine[1::2]
    paths = [step["path"] for step in json.loads(b64decode(response(answer)["patch"]))]
    assert sorted(paths) == [
        "/metadata/annotations/cotenant.io~1containers",
        "/spec/containers/0/env",
        "/spec/containers/0/volumeMounts",
        "/spec/schedulerName",
        "/spec/volumes",
    ]


@pytest.mark.parametrize(("named", "becomes"), [({}, "nvidia"), ({"runtimeClassName": "kata"}, "kata")])
def test_the_configured_runtime_class_is_for_those_who_name_none(named: Json, becomes: str) -> None:
    settings = KubeSettings(webhook=WebhookPart(runtime_class="nvidia"))
    assert admitted(written({"nvidia.com/gpu": 1}, **named), settings)["spec"]["runtimeClassName"] == becomes
    assert "runtimeClassName" not in admitted(written({}), settings)["spec"]
    assert "runtimeClassName" not in admitted(written({"nvidia.com/gpu": 1}))["spec"]


@pytest.mark.parametrize("scheduler", ["", "default-scheduler", "ours"])
def test_the_scheduler_is_ours(scheduler: str) -> None:
    settings = KubeSettings(scheduler=SchedulerPart(name="ours"))
    pod = admitted(written({"nvidia.com/gpu": 1}, schedulerName=scheduler), settings)
    assert pod["spec"]["schedulerName"] == "ours"


@pytest.mark.parametrize("scheduler", OTHER_SCHEDULERS)
@pytest.mark.parametrize("amounts", [{"nvidia.com/gpu": 1}, {}], ids=["with GPUs", "without GPUs"])
def test_pods_of_a_scheduler_that_was_replaced_are_ours(scheduler: str, amounts: Json) -> None:
    pod = admitted(written(amounts, schedulerName=scheduler))
    is_theirs = not amounts and scheduler in ("kai-scheduler", "volcano")  # these also place pods without GPUs
    assert pod["spec"]["schedulerName"] == (scheduler if is_theirs else SETTINGS.scheduler.name)
    assert response(mutate(review(pod), SETTINGS)) == UNCHANGED


def test_which_schedulers_are_replaced_is_a_setting() -> None:
    settings = KubeSettings(scheduler=SchedulerPart(replaces=("theirs",)))
    assert admitted(written({"nvidia.com/gpu": 1}, schedulerName="theirs"), settings)["spec"]["schedulerName"] == (
        settings.scheduler.name
    )
    said = response(mutate(review(written({"nvidia.com/gpu": 1}, schedulerName="hami-scheduler")), settings))
    assert said["allowed"] is False


def test_a_debug_container_sees_no_gpu_and_older_ones_are_not_touched() -> None:
    old = admitted(written({"nvidia.com/gpu": 1}))
    earlier = {"name": "earlier", "image": "cuda", "env": [ALL]}
    old["spec"]["ephemeralContainers"] = [earlier]
    new = {**old, "spec": {**old["spec"], "ephemeralContainers": [earlier, {**earlier, "name": "debug"}]}}
    asked = review(new, old, operation="UPDATE", resource="pods/ephemeralcontainers")
    pod = changed(new, mutate(asked, SETTINGS))
    assert pod["spec"]["ephemeralContainers"][0] == earlier
    assert environment(pod["spec"]["ephemeralContainers"][1]) == HIDDEN
    assert pod["spec"]["containers"] == old["spec"]["containers"]


MIRROR = {"kubernetes.io/config.mirror": "x"}


@pytest.mark.parametrize(
    "asked",
    [
        review(written({"nvidia.com/gpumem-percentage": 101}, annotations=MIRROR, nodeName="n1", schedulerName="x")),
        review(written({"nvidia.com/gpumem-percentage": 101}), namespace="kube-system"),
        review(written({"nvidia.com/gpu": 1}), operation="UPDATE"),
        review(written({"nvidia.com/gpu": 1}), operation="UPDATE", resource="pods/status"),
        review(written({"nvidia.com/gpu": 1}), resource="deployments"),
        review(None, written({}), operation="DELETE"),
    ],
    ids=["mirror pod", "skipped namespace", "update", "status", "other objects", "deletion"],
)
def test_some_are_let_through_as_they_are(asked: bytes) -> None:
    assert response(mutate(asked, SETTINGS)) == UNCHANGED


@pytest.mark.parametrize(
    ("label", "carried", "is_skipped"),
    [
        ("cotenant.io/webhook=ignore", {"cotenant.io/webhook": "ignore"}, True),
        ("cotenant.io/webhook=ignore", {"cotenant.io/webhook": "no"}, False),
        ("plain", {"plain": "whatever"}, True),
        ("", {"": ""}, False),
        ("", {}, False),
    ],
)
def test_a_label_skips_a_pod(label: str, carried: Json, is_skipped: bool) -> None:
    made = written({"nvidia.com/gpu": 1})
    made["metadata"]["labels"] = carried
    assert (admitted(made, KubeSettings(webhook=WebhookPart(skip_labels=(label,)))) == made) is is_skipped


@pytest.mark.parametrize("key", ["cotenant.io/policy", "hami.io/gpu-scheduler-policy"])
def test_a_policy_that_there_is_may_be_named(key: str) -> None:
    pod = admitted(written({"nvidia.com/gpu": 1}, annotations={key: "spread"}))
    assert pod["metadata"]["annotations"][key] == "spread"


def test_what_we_do_not_know_of_a_pod_stays_in_it() -> None:
    made = written({"nvidia.com/gpu": 1}, futureField={"a": [1, None, {"b": 2.5}]})
    made["spec"]["containers"][0]["alsoNew"] = ["x"]
    pod = admitted(made)
    assert pod["spec"]["futureField"] == made["spec"]["futureField"]
    assert app(pod)["alsoNew"] == ["x"]
    assert pod["metadata"]["managedFields"] == made["metadata"]["managedFields"]


@pytest.mark.parametrize(
    ("limits", "title"),
    [
        ({"cambricon.com/mlumem": 1000}, "Cambricon"),
        ({"amd.com/gpumem": 1000}, "AMD"),
        ({"cambricon.com/mlu.smlu.vmemory": 4}, None),
        ({"amd.com/gpu": 1}, None),
        ({"nvidia.com/gpumem": 1000}, None),
    ],
)
def test_the_author_is_warned_of_limits_that_nothing_enforces(limits: dict[str, int], title: str | None) -> None:
    said = response(mutate(review(written(limits)), SETTINGS))
    assert said["allowed"] is True
    if title is None:
        assert "warnings" not in said
    else:
        (warning,) = said["warnings"]
        assert warning.startswith("cotenant: the memory and the compute limits cannot be enforced on")
        assert f"on {title} GPUs" in warning
        assert len(warning) <= 256, "longer ones may be cut by the API server"


@pytest.mark.parametrize("is_large", [False, True])
def test_only_a_large_review_is_answered_in_another_thread(is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def recorded(*args: Any, **kwargs: Any) -> bytes:
        threads.append(threading.get_ident())
        return mutate(*args, **kwargs)

    monkeypatch.setattr(mutation, "mutate", recorded)
    body = review(written({"nvidia.com/gpu": 1})) + b" " * (SMALL if is_large else 0)
    reply: Any = asyncio.run(webhook_routes(SETTINGS)[MUTATE].answer((), body))  # type: ignore[arg-type]
    assert response(reply.body)["allowed"]
    assert (threads == [threading.get_ident()]) is not is_large
