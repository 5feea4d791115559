# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that get GPUs by ResourceClaims: made, waited for, read."""

import json
from typing import Any

from cotenant.kube.api.claims import VERSION
from cotenant.kube.codec.claims import DRIVER, PARAMETERS, SHARED, WHOLE
from tests.cluster.api import Json
from tests.cluster.engine import Engine
from tests.cluster.pods import container, create_pod, path_of, pod_in

API = f"/apis/{VERSION}"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
IGNORED = {"cotenant.io/webhook": "ignore"}
"""labels of a pod that skips the webhook"""
VOID = [
    {"name": name, "value": "void" if name.startswith("NVIDIA") else ""}
    for name in ("NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "CAMBRICON_VISIBLE_DEVICES")
]
"""what such a pod must say itself: that it sees no GPU"""


def spec_of(memory: str | None, compute: int = 0, **more: Any) -> Json:
    """What a claim requests: so much of a shared GPU, or a whole one; `more` are further parameters."""
    request = {"name": "gpu", "exactly": {"deviceClassName": WHOLE if memory is None else SHARED}}
    share = {"apiVersion": PARAMETERS, "kind": "GpuShare", "memory": memory, "compute": compute, **more}
    config = [] if memory is None else [{"opaque": {"driver": DRIVER, "parameters": share}}]
    return {"devices": {"requests": [request], "config": config}}


def make_claim(engine: Engine, name: str, spec: Json) -> None:
    claim = {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    engine.cluster.kubectl("create", "-f", "-", feed=json.dumps(claim))


def make_template(engine: Engine, name: str, spec: Json, namespace: str = "default") -> None:
    body = {"apiVersion": VERSION, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": spec}}
    engine.cluster.post(f"{API}/namespaces/{namespace}/resourceclaimtemplates", body)


def create(engine: Engine, name: str, code: str, *, env: Any = (), **more: Any) -> None:
    """A pod whose container has one claim: of its own name, or by `template`."""
    template = more.pop("template", None)
    source = (
        {"resourceClaimName": more.pop("claim", name)} if template is None else {"resourceClaimTemplateName": template}
    )
    main = container("main", code, env=list(env))
    main["resources"] = {"claims": [{"name": "gpu"}]}
    create_pod(engine.cluster, name, main, resourceClaims=[{"name": "gpu", **source}], **more)


def allocation(engine: Engine, claim: str) -> Json:
    return dict(engine.cluster.get(f"{CLAIMS}/{claim}").get("status", {}).get("allocation") or {})


def events_of(engine: Engine, name: str) -> str:
    found = engine.cluster.get(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{name}")["items"]
    return "\n".join(event.get("message", "") for event in found)


def started(engine: Engine, name: str) -> None:
    """Waits until a pod runs; if it does not, says what became of it and its claims."""
    try:
        pod_in(engine.cluster, name, "Running", "Succeeded", seconds=60)
    except TimeoutError as error:
        pod = engine.cluster.get(path_of(name))
        about = {key: pod[key] for key in ("metadata", "spec", "status")}
        about["metadata"].pop("managedFields", None)
        lines = [
            str(error),
            json.dumps(about),
            json.dumps(engine.cluster.get(CLAIMS)["items"]),
            events_of(engine, name),
        ]
        raise TimeoutError("\n".join([*lines, engine.scheduler_log(), engine.agent_log("node1")])) from None
