# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Without helm, the chart sees of a cluster what helm's `lookup` would show it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cotenant.errors import InputError
from cotenant.kube.api.client import Client, Limits, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.install.installing import Plan, plan_install

Json = dict[str, Any]
TAINT = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
VALUES: Json = {
    "agent": {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    "settings": {"webhook": {"runtime-class": "nvidia"}},
}


@dataclass
class Cluster:
    """An API server with these objects without a namespace."""

    objects: dict[str, list[Json]]
    limits: Limits = field(default_factory=Limits)

    async def read(self, path: str) -> bytes:
        return json.dumps({"gitVersion": "v1.34.4"} if path == "/version" else {"groups": []}).encode()

    async def get(self, kind: Kind[Any], name: str, *, namespace: str = "") -> Any:
        for one in self.objects.get(kind.plural, []):
            if one["metadata"]["name"] == name:
                return msgspec.convert(one, kind.of)
        raise ApiError("GET", 404, "NotFound")

    async def pages(self, kind: Kind[Any], which: Selection, *, page: int) -> AsyncIterator[Any]:
        found = self.objects.get(kind.plural, [])
        yield SimpleNamespace(items=msgspec.convert(found, list[kind.of]), unread=())  # type: ignore[name-defined]


def node(name: str, *taints: Json) -> Json:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"taints": list(taints)} if taints else {},
        "status": {"runtimeHandlers": [{"name": "runc"}]},
    }


def planned(*nodes: Json, hooks: tuple[Json, ...] = ()) -> Plan:
    objects: dict[str, list[Json]] = {
        "namespaces": [{"metadata": {"name": "kube-system"}}],
        "runtimeclasses": [{"metadata": {"name": "nvidia"}, "handler": "nvidia"}],
        "nodes": list(nodes),
        "mutatingwebhookconfigurations": list(hooks),
    }
    return asyncio.run(plan_install(cast(Client, Cluster(objects)), VALUES))


def test_a_tainted_node_that_gets_no_agent_needs_no_handler() -> None:
    assert planned(node("control-plane", TAINT)).objects
    with pytest.raises(InputError, match="has no handler nvidia on worker: install"):
        planned(node("control-plane", TAINT), node("worker"))


def test_an_installation_in_another_namespace_is_named() -> None:
    service = {"clientConfig": {"service": {"namespace": "elsewhere"}}}
    hooks = {"metadata": {"name": "cotenant-scheduler"}, "webhooks": [service]}
    with pytest.raises(InputError, match="has an installation of cotenant in namespace elsewhere"):
        planned(hooks=(hooks,))
