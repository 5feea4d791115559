# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever is sent, the webhook answers in its own words; and what it has admitted once, it admits again unchanged."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import InputError
from cotenant.kube.codec.annotations import is_assignment
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.moved import AMOUNTS
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.codec.settings import DIALECTS
from cotenant.kube.settings import KubeSettings, WebhookPart
from cotenant.kube.webhook.mutation import mutate
from cotenant.kube.webhook.review import MOST_BYTES
from tests.kube.reviews import (
    SETTINGS,
    UNCHANGED,
    Json,
    admitted,
    changed,
    environment,
    response,
    review,
    without_warnings,
    written,
)

MOVING = KubeSettings(webhook=WebhookPart(move_amounts=True))
RESOURCES = sorted(KubeSettings().codec().by_resource)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
VARIABLES = st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_SM_LIMIT", "COTENANT_JOB", "PATH"])
ENV = st.lists(st.fixed_dictionaries({"name": VARIABLES, "value": st.sampled_from(["all", "1"])}), max_size=4)
VOLUMES = ["data", "cotenant-limits-0", "cotenant-limits-7"]
PATHS = st.sampled_from(["/data", "/etc/cotenant", "/run", "/etc"])
MOUNTS = st.lists(st.fixed_dictionaries({"name": st.sampled_from(VOLUMES), "mountPath": PATHS}), max_size=3)
LIMITS = st.dictionaries(st.sampled_from([*RESOURCES, "cpu", "nvidia.com/mig-1g.5gb"]), st.integers(0, 4), max_size=2)
ANNOTATIONS = st.dictionaries(
    st.sampled_from([RECORD, NUMBERS, AMOUNTS, "cotenant.io/3.limits", "ALIYUN_COM_GPU_MEM_IDX", "mine"]),
    st.sampled_from(["", "1", '["a"]', '["b","a"]', '{"a":{"nvidia.com/gpumem":"3"}}', '{"b":{"nvidia.com/gpu":1}}']),
)


def containers(*names: str) -> st.SearchStrategy[list[Json]]:
    one = {name: st.fixed_dictionaries({"name": st.just(name)}, optional=PARTS) for name in names}
    some = st.lists(st.sampled_from(names), unique=True)
    return some.flatmap(lambda chosen: st.tuples(*(one[name] for name in chosen))).map(list)


PARTS: dict[str, st.SearchStrategy[Any]] = {
    "env": ENV,
    "volumeMounts": MOUNTS,
    "resources": st.fixed_dictionaries({}, optional={"limits": LIMITS, "requests": LIMITS}),
    "restartPolicy": st.just("Always"),
    "odd": JSON,
}
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({}, optional={"annotations": ANNOTATIONS, "name": st.just("p")}),
        "spec": st.fixed_dictionaries(
            {"containers": containers("a", "b", "c")},
            optional={
                "initContainers": containers("i", "j"),
                "volumes": st.lists(st.fixed_dictionaries({"name": st.sampled_from(VOLUMES)}), max_size=3),
                "schedulerName": st.sampled_from(["", "default-scheduler"]),
                "odd": JSON,
            },
        ),
    }
)


@given(PODS, containers("x", "y"), st.integers(0, 3), st.sampled_from([SETTINGS, MOVING]))
def test_what_was_admitted_is_admitted_unchanged(
    made: Json, inserted: list[Json], place: int, settings: KubeSettings
) -> None:
    answer = mutate(review(made), settings)
    if not response(answer)["allowed"]:
        return
    once = changed(made, answer)
    assert without_warnings(response(mutate(review(once), settings))) == UNCHANGED
    assert not any(map(is_assignment, once["metadata"].get("annotations", {}))), "the policy would refuse it"
    numbers = json.loads(once["metadata"].get("annotations", {}).get(NUMBERS, "[]"))
    once["spec"]["containers"][place:place] = inserted
    again = mutate(review(once), settings)
    if not response(again)["allowed"]:
        return
    twice = changed(once, again)
    assert without_warnings(response(mutate(review(twice), settings))) == UNCHANGED
    later = json.loads(twice["metadata"].get("annotations", {}).get(NUMBERS, "[]"))
    assert later[: len(numbers)] == numbers


@given(PODS)
def test_no_container_sees_gpus_by_its_author(made: Json) -> None:
    answer = mutate(review(made), SETTINGS)
    if not response(answer)["allowed"]:
        return
    spec = changed(made, answer)["spec"]
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        seen = [one for one in container.get("env", []) if one["name"] == "NVIDIA_VISIBLE_DEVICES"]
        assert all(one.get("value") == "void" or "valueFrom" in one for one in seen)
        assert len(seen) == 1 or "nvidia.com/mig-1g.5gb" in str(container["resources"])
        at_limits = [
            mount["name"] for mount in container.get("volumeMounts", []) if mount["mountPath"] == "/etc/cotenant"
        ]
        if any("valueFrom" in one for one in seen):
            assert len(at_limits) == 1


@given(JSON, JSON, st.sampled_from(["CREATE", "UPDATE"]), st.sampled_from(["pods", "pods/ephemeralcontainers"]))
def test_any_object_is_answered(made: object, old: object, operation: str, resource: str) -> None:
    asked = review(made, old, operation=operation, resource=resource)
    said = response(mutate(asked, SETTINGS))
    assert said["allowed"] or "\n" not in said["status"]["message"]


@given(st.binary(max_size=64) | JSON.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_review_is_refused(body: bytes) -> None:
    with pytest.raises(InputError):
        mutate(body, SETTINGS)


@pytest.mark.parametrize(
    "body",
    [
        b'{"request":"' + b"x" * (50 * 1024 * 1024) + b'"}',
        b"[" * 1_000_000,
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":'
        + b"[" * 1_000_000,
        review({}).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v9"),
    ],
    ids=["50 MB", "deep", "a deep object", "another version"],
)
def test_large_and_deep_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(InputError, match="not an admission review"):
        mutate(body, SETTINGS)


def nested(depth: int) -> bytes:
    deep = '{"a":' * depth + "1" + "}" * depth
    pod = {"metadata": {}, "spec": {"containers": [{"name": "a"}], "odd": "DEEP"}}
    return review(pod).replace(b'"DEEP"', deep.encode())


def test_a_pod_may_be_deeper_than_any_that_there_is_but_not_bottomless() -> None:
    for depth in (100, 600):
        assert response(mutate(nested(depth), SETTINGS))["allowed"]
    with pytest.raises(InputError, match="nested too deeply"):
        mutate(nested(100_000), SETTINGS)


def test_two_large_objects_are_still_a_review() -> None:
    made = {"metadata": {"annotations": {"a": "x" * (MOST_BYTES // 4)}}, "spec": {}}
    asked = review(made, made, operation="UPDATE", resource="pods/status")
    assert response(mutate(asked, SETTINGS)) == UNCHANGED


@pytest.mark.parametrize("slots", [one.slots for one in DIALECTS if one.slots is not None])
def test_share_slots_that_a_user_requests_by_their_name_are_a_request_for_gpus(slots: str) -> None:
    """Kubelet hands them out, so a pod that took them past the scheduler would take them from others."""
    pod = admitted(written({slots: 4}))
    assert pod["spec"]["schedulerName"] == "cotenant-scheduler"
    assert "NVIDIA_VISIBLE_DEVICES" in environment(pod["spec"]["containers"][0])
