# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What our accounts ask of an API server, from its audit log, and what the roles of the chart allow them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cotenant.kube.api.names import NAMESPACE

Json = dict[str, Any]
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": [f"system:serviceaccounts:{NAMESPACE}"]}, {"level": "None"}],
}
FORBIDDEN = 403


class Call(NamedTuple):
    """A kind of request of an account."""

    account: str
    verb: str
    group: str
    resource: str
    """with its subresource"""


def server_options(folder: Path) -> list[str]:
    """Options of an API server that writes the requests of our accounts to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.yaml").write_text(yaml.safe_dump(POLICY))
    return [f"--audit-policy-file={folder / 'policy.yaml'}", f"--audit-log-path={folder / 'log'}"]


def events(folder: Path) -> list[Json]:
    """All requests of our accounts so far."""
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def call_of(event: Json) -> Call | None:
    """The request as a role names it; None for paths that are no resource."""
    where = event.get("objectRef")
    if where is None:
        return None
    part = f"/{where['subresource']}" if "subresource" in where else ""
    account = event["user"]["username"].rpartition(":")[2]
    return Call(account, event["verb"], where.get("apiGroup", ""), f"{where['resource']}{part}")


def refused(found: Iterable[Json]) -> set[str]:
    """The requests that the roles do not allow."""
    return {
        f"{one['user']['username']} {one['verb']} {one['requestURI']}"
        for one in found
        if one.get("responseStatus", {}).get("code") == FORBIDDEN
        and one.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    }


def allowed(objects: Iterable[Json]) -> set[Call]:
    """What the roles of the chart that are bound to our accounts allow; a role has the name of its account."""
    return {
        Call(one["metadata"]["name"], verb, group, resource)
        for one in objects
        if one["kind"] in ("Role", "ClusterRole")
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
