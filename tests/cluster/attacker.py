# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Somebody who may edit one namespace, and what they are told when they try more."""

import json
from typing import Any

from cotenant.kube.api.names import NAMESPACE
from tests.cluster.api import Json, RefusedError, ask, wait_for
from tests.cluster.engine import Engine

TEAM = "team"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
EVERYTHING = "everything"
"""a ConfigMap that says so of GPUs"""
SLICE = {"nvidia.com/gpumem": 1000}
MORE_RIGHTS = (
    {"apiGroups": [""], "resources": ["pods/status", "pods/ephemeralcontainers", "pods/resize"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods/binding", "bindings"], "verbs": ["create"]},
)
"""so that rights alone refuse nothing of what is tried"""


def token_of_editor(engine: Engine, name: str) -> str:
    """The token of a new user who may edit one namespace, in which there is a ConfigMap to be read."""
    engine.cluster.add_user(name, TEAM, *MORE_RIGHTS)
    account = f"/api/v1/namespaces/{TEAM}/serviceaccounts/default"
    wait_for("the account that pods need", lambda: engine.cluster.get(account))
    values = {"metadata": {"name": EVERYTHING}, "data": {VISIBLE: "all"}}
    engine.cluster.post(f"/api/v1/namespaces/{TEAM}/configmaps", values)
    configured = json.loads((engine.cluster.credentials / f"{name}.kubeconfig").read_text())
    return str(configured["users"][0]["user"]["token"])


def token_of(engine: Engine, account: str, pod: Json | None = None) -> str:
    """A token of one of our accounts, bound to a pod as kubelet binds it."""
    about = {} if pod is None else pod["metadata"]
    who = {"apiVersion": "v1", "kind": "Pod", "name": about.get("name"), "uid": about.get("uid")}
    spec = {} if pod is None else {"boundObjectRef": who}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    return str(engine.cluster.post(path, {"spec": spec})["status"]["token"])


def refusal(
    engine: Engine, token: str, method: str, path: str, body: Json | None = None, headers: dict[str, str] | None = None
) -> str:
    """Why somebody was not let do something; nothing where they were."""
    try:
        ask(engine.cluster.door, method, path, body, {"Authorization": f"Bearer {token}", **(headers or {})})
    except RefusedError as error:
        return str(json.loads(str(error).partition(": ")[2])["message"])
    return ""


def annotated(name: str, annotations: Any, **more: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, **more}
