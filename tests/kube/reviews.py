# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Admission reviews as the API server sends them, and the pods that result."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch

from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.mutation import mutate
from tests.kube.pods import Amounts, pod_object

Json = dict[str, Any]
SETTINGS = KubeSettings()
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
UNCHANGED = {"uid": UID, "allowed": True}


def review(
    made: object,
    old: object = None,
    *,
    operation: str = "CREATE",
    resource: str = "pods",
    namespace: str = "team",
    user: str = "alice",
    groups: Sequence[str] = ("system:authenticated",),
) -> bytes:
    """Return a review of the change from `old` to `made`; `pods/status` names a subresource."""
    whole, _, part = resource.partition("/")
    request = {
        "uid": UID,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": whole},
        "subResource": part,
        "name": "p",
        "namespace": namespace,
        "operation": operation,
        "userInfo": {"username": user, "groups": list(groups)},
        "object": made,
        "oldObject": old,
        "dryRun": False,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def response(answer: bytes) -> Json:
    """Return the response of a review."""
    said = json.loads(answer)
    assert (said["apiVersion"], said["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert said["response"]["uid"] == UID
    return dict(said["response"])


def without_warnings(answer: Json) -> Json:
    """Return the answer without the warnings for people, which name limits that nothing enforces."""
    return {key: value for key, value in answer.items() if key != "warnings"}


def refusal(answer: bytes) -> str:
    """Return the message of a refusal."""
    said = response(answer)
    assert said["allowed"] is False
    return str(said["status"]["message"])


def written(
    *containers: Amounts, init: Sequence[Amounts] = (), annotations: Mapping[str, str] | None = None, **spec: Any
) -> Json:
    """Return a pod as a user writes it."""
    return pod_object(containers, init, annotations or {}, None, spec)


def admitted(made: Json, settings: KubeSettings = SETTINGS, *, by_cdi: bool = False) -> Json:
    """Return the pod after admission."""
    return changed(made, mutate(review(made), settings, by_cdi=by_cdi))


def changed(made: Json, answer: bytes) -> Json:
    """Return the object after the response's patch."""
    said = response(answer)
    assert said["allowed"] is True, said
    if "patch" not in said:
        return made
    assert said["patchType"] == "JSONPatch"
    sent = json.loads(json.dumps(made))  # no part of it is in two places
    return dict(jsonpatch.apply_patch(sent, json.loads(base64.b64decode(said["patch"]))))


def environment(container: Json) -> dict[str, str]:
    """Return the variables of a container: the value, or the path of the field; the last of a name counts."""
    return {
        one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in one else one.get("value", "")
        for one in container.get("env", [])
    }
