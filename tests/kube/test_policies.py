# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The admission policies protect every annotation that says which GPUs a pod has; tests/cluster has the API server
enforce them."""

import json
import re

import pytest

from cotenant.kube.api.names import SCHEDULER_USER
from cotenant.kube.codec.annotations import foreign_records, is_assignment, without_assignment
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.inherited import INHERITED
from cotenant.kube.codec.moved import AMOUNTS
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.install.admission import terms_of
from cotenant.kube.install.policies import ASSIGNMENTS, INHERITANCE, ONLY_THE_SCHEDULER, admission_policies
from cotenant.kube.settings import KubeSettings
from tests.kube.reviews import SETTINGS, Json

GUARDED = (RECORD, "cotenant.io/0.limits", "cotenant.io/12.NVIDIA_VISIBLE_DEVICES")
OPEN = (
    NUMBERS,
    AMOUNTS,
    "cotenant.io/resize",
    "cotenant.io/policy",
    "cotenant.io/x0.limits",
    "mine",
    "ALIYUN_COM_GPU_MEM_IDX",
)


def policy(name: str) -> Json:
    (found,) = [
        one["spec"]
        for one in admission_policies(terms_of(SETTINGS))
        if one["kind"] == "ValidatingAdmissionPolicy" and one["metadata"]["name"] == name
    ]
    return dict(found)


def assignments() -> Json:
    return policy(ASSIGNMENTS)


def variable(name: str, of: str = ASSIGNMENTS) -> str:
    return str(next(one["expression"] for one in policy(of)["variables"] if one["name"] == name))


@pytest.mark.parametrize("key", GUARDED)
def test_an_assignment_is_recognized_and_removed(key: str) -> None:
    assert is_assignment(key)
    assert without_assignment({key: "1", "mine": "1"}) == {"mine": "1"}


@pytest.mark.parametrize("key", OPEN)
def test_other_annotations_are_left_alone(key: str) -> None:
    assert not is_assignment(key)
    assert without_assignment({key: "1"}) == {key: "1"}


def test_the_policy_recognizes_the_same_annotations_as_the_webhook() -> None:
    (pattern,) = re.findall(r'k\.matches\((".*?")\)', variable("forged"))
    expression = re.compile(json.loads(pattern))
    for key in (*GUARDED, *OPEN):
        assert is_assignment(key) == (key == RECORD or expression.search(key) is not None)
    assert f'k == "{RECORD}"' in variable("forged")
    assert f'((k == "{NUMBERS}" || k == "{AMOUNTS}") && !variables.creates)' in variable("forged")


def test_the_policy_protects_the_words_of_other_systems_but_those_that_a_plugin_writes_itself() -> None:
    protected = variable("forged")
    for word in foreign_records(SETTINGS.codec()):
        assert (f'"{word}"' in protected) == (word != "CAMBRICON_DSMLU_ASSIGNED")


def test_the_message_names_the_annotation() -> None:
    (rule,) = assignments()["validations"]
    assert rule["messageExpression"] == (
        f"'cotenant: annotation ' + string(variables.forged[0]) + \" {ONLY_THE_SCHEDULER}\""
    )
    assert rule["reason"] == "Forbidden"


def test_the_scheduler_is_the_only_user_whom_the_policy_lets_pass() -> None:
    (condition,) = assignments()["matchConditions"]
    assert condition["expression"] == f'request.userInfo.username != "{SCHEDULER_USER}"'
    assert '"system:nodes" in request.userInfo.groups' in variable("isMirror")


def test_all_words_of_all_dialects_are_known() -> None:
    words = foreign_records(KubeSettings().codec())
    names = {f"ALIYUN_COM_GPU_MEM_{word}" for word in ("IDX", "DEV", "POD", "ASSIGNED", "ASSUME_TIME")}
    names |= {f"ALIYUN_COM_GPU_{word}" for word in ("GROUP", "ASSIGNED", "ASSUME_TIME")}
    names |= {"CAMBRICON_DSMLU_PROFILE", "CAMBRICON_DSMLU_ASSIGNED", "scheduler.framework.gpushare.allocation"}
    names |= {"gpushare.alibabacloud.com/core-percentage"}
    names |= {f"topology.kubernetes.io/gpu-{word}" for word in ("group", "visible")}
    names |= {f"{system}/vgpu-devices-allocated" for system in ("hami.io", "4pd.io")}
    assert words == names


def test_no_user_claims_a_gpu_by_the_record_of_another_system() -> None:
    (listed,) = re.findall(r"k in (\[.*?\])", variable("forged", INHERITANCE))
    assert set(json.loads(listed)) == set(INHERITED)
    found = policy(INHERITANCE)
    (rule,) = found["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert rule["resources"] == ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
    scheduler, gpus = (one["expression"] for one in found["matchConditions"])
    assert scheduler == f'request.userInfo.username != "{SCHEDULER_USER}"'
    assert '"nvidia.com/gpumem"' in gpus
    selected = found["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert {"hami.io/webhook", "kubernetes.io/metadata.name"} <= {one["key"] for one in selected}
    assert set(INHERITED) <= set(json.loads(re.findall(r"k in (\[.*?\])", variable("forged"))[0])), "in bindings"
