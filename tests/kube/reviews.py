# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Admission reviews as the API server sends them, and what comes of its pods."""

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
    """The question whether `old` may become `made`; of a resource, `pods/status` is a part."""
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
    """What an answer says."""
    said = json.loads(answer)
    assert (said["apiVersion"], said["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert said["response"]["uid"] == UID
    return dict(said["response"])


def refusal(answer: bytes) -> str:
    """The sentence of a refusal."""
    said = response(answer)
    assert said["allowed"] is False
    return str(said["status"]["message"])


def written(
    *containers: Amounts, init: Sequence[Amounts] = (), annotations: Mapping[str, str] | None = None, **spec: Any
) -> Json:
    """A pod as its author wrote it."""
    return pod_object(containers, init, annotations or {}, None, spec)


def admitted(made: Json, settings: KubeSettings = SETTINGS) -> Json:
    """The pod that becomes of it."""
    return changed(made, mutate(review(made), settings))


def changed(made: Json, answer: bytes) -> Json:
    """The object after what an answer says has been done to it."""
    said = response(answer)
    assert said["allowed"] is True, said
    if "patch" not in said:
        return made
    assert said["patchType"] == "JSONPatch"
    sent = json.loads(json.dumps(made))  # no part of it is in two places
    return dict(jsonpatch.apply_patch(sent, json.loads(base64.b64decode(said["patch"]))))


def environment(container: Json) -> dict[str, str]:
    """Its variables with the values, or the paths of the fields, that they have; the last of a name counts."""
    return {
        one["name"]: one["value"] if "value" in one else one["valueFrom"]["fieldRef"]["fieldPath"]
        for one in container.get("env", [])
    }
