# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Building blocks of webhook configurations and admission policies: rules, CEL expressions, policies with bindings."""

import json
from collections.abc import Iterable, Mapping

from cotenant.kube.api.names import Json, object_of
from cotenant.kube.api.objects import MIRROR

API = "admissionregistration.k8s.io/v1"
NOT_MIRROR = f"!(has(object.metadata.annotations) && {json.dumps(MIRROR)} in object.metadata.annotations)"
"""CEL: the pod is not the mirror of a static pod."""


def rule_for(operations: Iterable[str], resources: Iterable[str]) -> Json:
    """Return the rule that matches these operations on these resources of the core API group."""
    return {"apiGroups": [""], "apiVersions": ["v1"], "operations": [*operations], "resources": [*resources]}


def cel(value: str | list[str]) -> str:
    """Return the CEL literal of a string or a list of strings; CEL writes them as JSON does."""
    return json.dumps(value)


def optional(path: str, default: str) -> str:
    """CEL: a field, or the default if the object has no such field."""
    return f"has({path}) ? {path} : {default}"


def named_expressions(expressions: Mapping[str, str]) -> list[Json]:
    """Return variables or match conditions as the API lists them."""
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]


def policy_with_binding(name: str, constraints: Json, **rules: list[Json]) -> list[Json]:
    """Return an admission policy and the binding that enforces it on the whole cluster."""
    spec = {"failurePolicy": "Fail", "matchConstraints": constraints, **rules}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        object_of("ValidatingAdmissionPolicy", API, name, cluster_wide=True, spec=spec),
        object_of("ValidatingAdmissionPolicyBinding", API, name, cluster_wide=True, spec=binding),
    ]
