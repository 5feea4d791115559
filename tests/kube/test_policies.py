# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The admission policies protect every annotation that says which GPUs a pod has; tests/cluster has the API server
enforce them."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.kube.api.names import SCHEDULER_USER
from cotenant.kube.codec.annotations import foreign_records, is_assignment, without_assignment
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.cel.parser import parse
from cotenant.kube.codec.cel.values import Budget
from cotenant.kube.codec.claim_requests import DRIVER
from cotenant.kube.codec.inherited import INHERITED
from cotenant.kube.codec.moved import AMOUNTS
from cotenant.kube.codec.queueing import GATE, HOLD
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.install.admission import terms_of
from cotenant.kube.install.claims import CLAIMS, claim_objects
from cotenant.kube.install.policies import ASSIGNMENTS, INHERITANCE, ONLY_THE_SCHEDULER, QUEUE, admission_policies
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


USERS = (SCHEDULER_USER, "alice")
KEYS = (RECORD, "cotenant.io/0.limits", NUMBERS, INHERITED[0], "mine")
ANNOTATIONS = st.none() | st.dictionaries(st.sampled_from(KEYS), st.sampled_from("ab"))


def policy(name: str) -> Json:
    terms = terms_of(SETTINGS)
    (found,) = [
        one["spec"]
        for one in (*admission_policies(terms), *claim_objects(terms))
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


def outcome(name: str, user: str, new: Json, old: Json | None, *, operation: str = "UPDATE") -> str:
    """What a policy makes of a write of a pod or a claim, as the API server evaluates it: no variable is known to the
    match conditions, and nothing else is evaluated if one of them is false."""
    found = policy(name)
    about = {"username": user, "groups": []}
    request = {"userInfo": about, "operation": operation, "resource": {"resource": "pods"}}
    known: dict[str, Any] = {"object": new, "oldObject": old, "request": request}

    def value(expression: str, known: Mapping[str, Any]) -> Any:
        return parse(expression).evaluate(known, Budget(100_000))

    if not all(value(one["expression"], known) for one in found["matchConditions"]):
        return "skipped"
    variables: dict[str, Any] = {}
    for one in found.get("variables", []):
        variables[one["name"]] = value(one["expression"], known | {"variables": variables})
    known |= {"variables": variables}
    return "accepted" if all(value(one["expression"], known) for one in found["validations"]) else "refused"


def written_pod(annotations: Mapping[str, str] | None, *, gated: bool = False, gpus: bool = True) -> Json:
    """A pod that we place."""
    limits = {"nvidia.com/gpu": 1} if gpus else {"cpu": 1}
    spec: Json = {"schedulerName": SETTINGS.scheduler.name, "containers": [{"resources": {"limits": limits}}]}
    spec |= {"schedulingGates": [{"name": GATE}]} if gated else {}
    return {"metadata": {} if annotations is None else {"annotations": dict(annotations)}, "spec": spec}


def changed_keys(new: Mapping[str, str] | None, old: Mapping[str, str] | None) -> set[str]:
    now, then = new or {}, old or {}
    return {key for key in now.keys() | then.keys() if now.get(key) != then.get(key)}


@given(st.sampled_from(USERS), ANNOTATIONS, ANNOTATIONS)
def test_only_the_scheduler_changes_assignments_and_a_write_without_annotations_is_not_evaluated(
    user: str, new: Mapping[str, str] | None, old: Mapping[str, str] | None
) -> None:
    changed = changed_keys(new, old)
    expected = "skipped" if user == SCHEDULER_USER or not changed else "refused" if changed - {"mine"} else "accepted"
    assert outcome(ASSIGNMENTS, user, written_pod(new), written_pod(old)) == expected


@given(st.sampled_from(USERS), ANNOTATIONS, ANNOTATIONS, st.booleans())
def test_only_the_scheduler_changes_records_of_other_systems_on_pods_with_gpus(
    user: str, new: Mapping[str, str] | None, old: Mapping[str, str] | None, gpus: bool
) -> None:
    changed = changed_keys(new, old)
    is_skipped = user == SCHEDULER_USER or not changed or not gpus
    expected = "skipped" if is_skipped else "refused" if INHERITED[0] in changed else "accepted"
    assert outcome(INHERITANCE, user, written_pod(new, gpus=gpus), written_pod(old, gpus=gpus)) == expected


@pytest.mark.parametrize("name", [ASSIGNMENTS, INHERITANCE])
def test_a_new_pod_is_compared_with_a_pod_without_annotations(name: str) -> None:
    for user in USERS:
        assert outcome(name, user, written_pod(None), None, operation="CREATE") == "skipped"
    forged = written_pod({INHERITED[0]: "1"})
    assert outcome(name, "alice", forged, None, operation="CREATE") == "refused"
    assert outcome(name, SCHEDULER_USER, forged, None, operation="CREATE") == "skipped"


@given(st.sampled_from(USERS), st.booleans(), st.booleans(), st.sampled_from([None, "", "alice", "false"]))
def test_only_the_scheduler_removes_the_gate_and_not_from_a_pod_that_is_held(
    user: str, was: bool, stays: bool, hold: str | None
) -> None:
    new, old = written_pod(None if hold is None else {HOLD: hold}, gated=stays), written_pod(None, gated=was)
    is_held = hold not in (None, "false")
    wrongly = was and not stays and (user != SCHEDULER_USER or is_held)
    assert outcome(QUEUE, user, new, old) == ("refused" if wrongly else "skipped")


ALLOCATIONS: st.SearchStrategy[Json | None] = st.sampled_from([None, {}, {"devices": {}}]) | st.builds(
    lambda driver, admin: {
        "devices": {"results": [{"driver": driver, **({} if admin is None else {"adminAccess": admin})}]}
    },
    st.sampled_from([DRIVER, "other"]),
    st.sampled_from([None, False, True]),
)


@given(st.sampled_from(USERS), ALLOCATIONS, ALLOCATIONS, st.booleans())
def test_only_the_scheduler_allocates_our_devices_and_other_writes_of_claims_are_not_evaluated(
    user: str, new: Json | None, old: Json | None, has_status: bool
) -> None:
    def claim(allocation: Json | None) -> Json:
        if allocation is None:
            return {"status": {"reservedFor": []}} if has_status else {}
        return {"status": {"allocation": allocation}}

    found = outcome(CLAIMS, user, claim(new), claim(old))
    if user == SCHEDULER_USER or new == old:
        assert found == "skipped"
    else:
        results = ((new or {}).get("devices") or {}).get("results", [])
        ours = any(one["driver"] == DRIVER and not one.get("adminAccess") for one in results)
        assert found == ("refused" if ours else "accepted")


def test_no_policy_of_pods_evaluates_what_a_kubelet_reports() -> None:
    """A kubelet writes the status of each pod several times."""
    pod = written_pod({RECORD: "given", NUMBERS: "[]"})
    terms = terms_of(SETTINGS)
    names = [
        one["metadata"]["name"]
        for one in (*admission_policies(terms), *claim_objects(terms))
        if any(
            "pods/status" in rule["resources"]
            for rule in one["spec"].get("matchConstraints", {}).get("resourceRules", [])
        )
    ]
    assert names == [ASSIGNMENTS, INHERITANCE]
    for name in names:
        assert outcome(name, "system:node:node1", {**pod, "status": {"phase": "Running"}}, pod) == "skipped"


def test_a_kubelet_may_create_a_mirror_pod_with_any_annotation() -> None:
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
    (condition,) = (one["expression"] for one in found["matchConditions"])
    assert '"nvidia.com/gpumem"' in condition
    selected = found["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert {"hami.io/webhook", "kubernetes.io/metadata.name"} <= {one["key"] for one in selected}
    assert set(INHERITED) <= set(json.loads(re.findall(r"k in (\[.*?\])", variable("forged"))[0])), "in bindings"
