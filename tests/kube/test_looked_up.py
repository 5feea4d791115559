# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Without helm, the chart sees of a cluster what helm's `lookup` would show it."""

import asyncio
import json
import re
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
from cotenant.kube.install.installing import Plan, Release, helm_release, plan_install, refuse_second, require_release

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
        found = [one for one in self.objects.get(kind.plural, []) if matches(one, which.labels)]
        yield SimpleNamespace(items=msgspec.convert(found, list[kind.of]), unread=())  # type: ignore[name-defined]


def matches(made: Json, selector: str | None) -> bool:
    """Whether an object has these labels, as in `a=b,c!=d`."""
    terms = [re.fullmatch(r"(.+?)(!?)=(.*)", term) for term in (selector or "").split(",") if term]
    labels = made["metadata"].get("labels", {})
    return all(term and (labels.get(term[1]) == term[3]) is not bool(term[2]) for term in terms)


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


def revision(name: str, state: str) -> Json:
    return {"metadata": {"name": f"sh.helm.{name}", "labels": {"owner": "helm", "name": name, "status": state}}}


OF_HELM = {"metadata": {"name": "cotenant-configuration", "annotations": {"meta.helm.sh/release-name": "gpus"}}}


@pytest.mark.parametrize(
    ("secrets", "configuration", "release"),
    [
        ([], None, None),
        ([revision("ingress", "deployed")], None, None),
        ([revision("gpus", "deployed"), revision("ingress", "deployed")], OF_HELM, Release("gpus", False)),
        ([revision("cotenant", "failed")], None, Release("cotenant", True)),
        ([revision("cotenant", "superseded"), revision("cotenant", "failed")], None, Release("cotenant", False)),
        ([revision("cotenant", "uninstalled")], None, None),
    ],
    ids=["nothing", "another chart", "another name", "failed", "failed later", "history"],
)
def test_a_release_of_helm_is_ours_or_not(secrets: list[Json], configuration: Json | None, release: object) -> None:
    objects = {"secrets": secrets, "configmaps": [configuration] if configuration else []}
    assert asyncio.run(helm_release(cast(Client, Cluster(objects)))) == release


def test_what_helm_has_installed_is_upgraded_and_not_installed_again() -> None:
    installed = cast(Client, Cluster({"configmaps": [OF_HELM]}))
    with pytest.raises(InputError, match=r"\(release gpus\): `cotenant kube upgrade` changes it"):
        asyncio.run(refuse_second(installed))
    assert asyncio.run(require_release(installed)) == Release("gpus", False)


def test_an_installation_that_failed_is_repeated_and_not_upgraded() -> None:
    failed = cast(Client, Cluster({"secrets": [revision("cotenant", "failed")]}))
    assert asyncio.run(refuse_second(failed)) == Release("cotenant", True)
    with pytest.raises(InputError, match="`cotenant kube install` installs it"):
        asyncio.run(require_release(failed))
    with pytest.raises(InputError, match=r"an installation by helm failed .*`helm uninstall cotenant .* --no-hooks`"):
        asyncio.run(plan_install(failed, VALUES))
