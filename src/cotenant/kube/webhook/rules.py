# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What admission policies and webhook configurations are made of: which writes they look at, and conditions in CEL."""

import json
from collections.abc import Iterable, Mapping

from cotenant.kube.install.names import Json, object_of
from cotenant.kube.webhook.pods import MIRROR

API = "admissionregistration.k8s.io/v1"
NO_MIRROR = f"!(has(object.metadata.annotations) && {json.dumps(MIRROR)} in object.metadata.annotations)"
"""CEL"""


def rule_for(operations: Iterable[str], resources: Iterable[str]) -> Json:
    """Which writes are looked at."""
    return {"apiGroups": [""], "apiVersions": ["v1"], "operations": [*operations], "resources": [*resources]}


def cel(value: str | list[str]) -> str:
    """A literal: CEL's strings and lists are written as those of JSON."""
    return json.dumps(value)


def if_there(path: str, otherwise: str) -> str:
    """CEL: a field, or something else where there is none."""
    return f"has({path}) ? {path} : {otherwise}"


def named(expressions: Mapping[str, str]) -> list[Json]:
    """Variables or conditions, each by its name."""
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]


def policy(name: str, constraints: Json, **rules: list[Json]) -> list[Json]:
    """An admission policy, and what puts it into force."""
    spec = {"failurePolicy": "Fail", "matchConstraints": constraints, **rules}
    force = {"policyName": name, "validationActions": ["Deny"]}
    return [
        object_of("ValidatingAdmissionPolicy", API, name, cluster_wide=True, spec=spec),
        object_of("ValidatingAdmissionPolicyBinding", API, name, cluster_wide=True, spec=force),
    ]
