# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Only the scheduler writes assignments, on whatever way; everybody else's writes pass where they leave them alone."""

import pytest

from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.protecting import SCHEDULER_USER, WAYS, records_of_others
from cotenant.kube.webhook.validating import validate
from tests.kube.reviews import SETTINGS, Json, refusal, response, review

KUBELET = ("system:node:n1", ("system:nodes", "system:authenticated"))
OURS = {"schedulerName": "cotenant-scheduler"}
GUARDED = (RECORD, "cotenant.io/0.limits", "cotenant.io/12.NVIDIA_VISIBLE_DEVICES")
BINDINGS = ("pods/binding", "bindings")


def carrying(annotations: Json | None, **spec: str) -> Json:
    metadata = {"name": "p"} if annotations is None else {"name": "p", "annotations": annotations}
    return {"metadata": metadata, "spec": spec}


def is_allowed(made: Json, old: Json | None = None, **asked: object) -> bool:
    operation = "CREATE" if old is None else "UPDATE"
    return bool(response(validate(review(made, old, operation=operation, **asked), SETTINGS))["allowed"])  # type: ignore[arg-type]


@pytest.mark.parametrize("key", GUARDED)
@pytest.mark.parametrize("way", WAYS)
def test_nobody_else_sets_changes_or_removes_an_assignment(way: str, key: str) -> None:
    without, one, other = carrying({"mine": "1"}), carrying({key: "1"}), carrying({key: "2"})
    changes = [(without, one), (carrying(None), one), (one, other), (one, without), (one, carrying(None))]
    if way == "pods" or way in BINDINGS:
        changes.append((None, one))  # type: ignore[arg-type]
    for old, new in changes:
        assert not is_allowed(new, old, resource=way)
        assert is_allowed(new, old, resource=way, user=SCHEDULER_USER)


@pytest.mark.parametrize("way", WAYS)
def test_what_leaves_an_assignment_alone_passes(way: str) -> None:
    old = carrying({RECORD: "1", "cotenant.io/0.limits": "x", NUMBERS: "[]", "ALIYUN_COM_GPU_MEM_IDX": "0"}, **OURS)
    new = carrying({**old["metadata"]["annotations"], "cotenant.io/resize": "app=2000", "cotenant.io/policy": "spread"})
    assert is_allowed(new | {"spec": OURS}, old, resource=way)
    assert is_allowed(old, old, resource=way, user=KUBELET[0], groups=KUBELET[1])
    assert is_allowed(carrying(None), carrying(None), resource=way)


def test_the_sentence_names_the_annotation() -> None:
    answer = validate(review(carrying({RECORD: "1"})), SETTINGS)
    assert refusal(answer) == (
        "cotenant: annotation cotenant.io/assignment is for cotenant's scheduler alone: nobody else may set, change or"
        " remove it"
    )
    assert response(answer)["status"]["code"] == 403


def test_numbers_are_fixed_at_creation() -> None:
    numbered = carrying({NUMBERS: '["a"]'})
    assert is_allowed(numbered)
    assert is_allowed(numbered, numbered)
    assert not is_allowed(carrying({NUMBERS: '["b"]'}), numbered)
    assert not is_allowed(carrying(None), numbered)
    assert not is_allowed(numbered, carrying(None), resource="pods/status")
    assert not is_allowed(numbered, resource="pods/binding")


def test_words_for_other_systems_are_ours_in_pods_that_we_place() -> None:
    forged, theirs = {"ALIYUN_COM_GPU_MEM_IDX": "3"}, {"schedulerName": "default-scheduler"}
    assert not is_allowed(carrying(forged, **OURS), carrying(None, **OURS))
    assert not is_allowed(carrying(None, **OURS), carrying(forged, **OURS))
    assert not is_allowed(carrying(forged), resource="pods/binding")
    assert is_allowed(carrying(forged, **theirs), carrying(None, **theirs)), "another system is still at work here"


def test_a_plugin_may_say_that_it_has_made_its_slice() -> None:
    before, after = (
        {"CAMBRICON_DSMLU_PROFILE": "0_50_4", "CAMBRICON_DSMLU_ASSIGNED": said} for said in ("false", "true")
    )
    assert is_allowed(carrying(after, **OURS), carrying(before, **OURS))
    assert not is_allowed(carrying({**after, "CAMBRICON_DSMLU_PROFILE": "1_50_4"}, **OURS), carrying(before, **OURS))


def test_a_mirror_pod_of_a_kubelet_passes_and_one_of_a_user_does_not() -> None:
    mirror = carrying({"kubernetes.io/config.mirror": "x", RECORD: "1"})
    user, groups = KUBELET
    assert is_allowed(mirror, user=user, groups=groups)
    assert not is_allowed(mirror)
    assert not is_allowed(mirror, carrying({"kubernetes.io/config.mirror": "x"}), user=user, groups=groups)


def test_all_words_of_all_dialects_are_known() -> None:
    words = records_of_others(KubeSettings().codec())
    names = {f"ALIYUN_COM_GPU_MEM_{word}" for word in ("IDX", "DEV", "POD", "ASSIGNED", "ASSUME_TIME")}
    names |= {f"ALIYUN_COM_GPU_{word}" for word in ("GROUP", "ASSIGNED", "ASSUME_TIME")}
    names |= {"CAMBRICON_DSMLU_PROFILE", "CAMBRICON_DSMLU_ASSIGNED", "scheduler.framework.gpushare.allocation"}
    assert words == names
