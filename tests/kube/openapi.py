# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""OpenAPI documents of the scheduler's two ports, generated from the types that decode the requests."""

from typing import Any

import msgspec

from cotenant.kube.api.names import MUTATE, SCHEDULER_USER
from cotenant.kube.api.objects import EPHEMERAL_CONTAINERS
from cotenant.kube.install.policies import ANNOTATION_PATHS
from cotenant.kube.scheduler.protocol import (
    BindingArgs,
    BindingResult,
    ExtenderArgs,
    FilterResult,
    HostPriority,
    PreemptionArgs,
    PreemptionResult,
)
from cotenant.kube.webhook.review import KIND, VERSION, PodManifest, Resource, User

Json = dict[str, Any]

VERBS = {
    "filter": (ExtenderArgs, FilterResult),
    "prioritize": (ExtenderArgs, list[HostPriority]),
    "bind": (BindingArgs, BindingResult),
    "preempt": (PreemptionArgs, PreemptionResult),
}
TEXT: Json = {"text/plain; charset=utf-8": {"schema": {"type": "string"}}}


def extender() -> Json:
    """Return the document of the extender's port."""
    kinds = [kind for pair in VERBS.values() for kind in pair]
    schemas, parts = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    pairs = zip(schemas[::2], schemas[1::2], strict=True)
    return _document({verb: _post(*pair) for verb, pair in zip(VERBS, pairs, strict=True)}, parts)


def webhook() -> Json:
    """Return the document of the webhook's port."""
    (pod, resource, user), parts = msgspec.json.schema_components(
        [PodManifest, Resource, User], ref_template="#/components/schemas/{name}"
    )
    perhaps = {"anyOf": [pod, {"type": "null"}]}
    request = {
        "uid": {"type": "string"},
        "operation": {"enum": ["CREATE", "UPDATE", "DELETE", "CONNECT"]},
        "resource": {"anyOf": [{"const": {"group": "", "version": "v1", "resource": "pods"}}, resource]},
        "subResource": {"enum": ["", EPHEMERAL_CONTAINERS, *{path.partition("/")[2] for path in ANNOTATION_PATHS}]},
        "namespace": {"type": "string"},
        "userInfo": {"anyOf": [{"const": {"username": SCHEDULER_USER}}, user]},
        "object": perhaps,
        "oldObject": perhaps,
    }
    asked = _object({"apiVersion": {"const": VERSION}, "kind": {"const": KIND}, "request": _object(request, "uid")})
    status = {"code": {"const": 422}, "message": {"type": "string"}, "reason": {"type": "string"}}
    response = _object({"uid": {"type": "string"}, "allowed": {"type": "boolean"}}, "uid", "allowed")
    response["properties"]["status"] = _object({"status": {"const": "Failure"}, **status})
    answer = _object({"apiVersion": {"const": VERSION}, "kind": {"const": KIND}, "response": response})
    return _document({MUTATE: _post(asked, answer)}, parts)


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": [*(required or properties)]}


def _post(asked: Json, answer: Json) -> Json:
    body = {"required": True, "content": {"application/json": {"schema": asked}}}
    well = {"description": "answered", "content": {"application/json": {"schema": answer}}}
    return {"requestBody": body, "responses": {"200": well, "400": {"description": "nonsense", "content": TEXT}}}


def _document(posts: Json, parts: Json) -> Json:
    return {
        "openapi": "3.1.0",
        "info": {"title": "cotenant", "version": "1"},
        "paths": {f"/{name}": {"post": post} for name, post in posts.items()},
        "components": {"schemas": parts},
    }
