# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What `cotenant kube status` reports: what is installed and ready, and until when certificates are valid."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from cotenant.kube.api.certificates import validity_of
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import NOT_FOUND, ApiError
from cotenant.kube.api.decoding import NODES, PODS
from cotenant.kube.api.keys import CERTIFICATE, SECRETS, SERVICES
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import AGENT, MPS, NAMESPACE, SCHEDULER, WEB, WEBHOOK, selector_of
from cotenant.kube.api.objects import is_ready
from cotenant.kube.codec.inventory import AWAY, INVENTORY
from cotenant.kube.install.installing import INVENTORY as INSTALLED
from cotenant.kube.install.installing import helm_release, replicas_of
from cotenant.kube.install.kinds import Key, found

OTHER = "other"
WORKLOADS = (
    *(Key("Deployment", name, NAMESPACE) for name in (SCHEDULER, WEBHOOK, WEB)),
    *(Key("DaemonSet", name, NAMESPACE) for name in (AGENT, MPS)),
)


class WorkloadStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A Deployment or a DaemonSet."""

    kind: str
    name: str
    ready: int
    wanted: int
    images: tuple[str, ...]


class CertificateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate of a service."""

    name: str
    expires: str | None
    """ISO 8601; null: it cannot be read"""


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The agent of one node."""

    node: str
    pod: str
    ready: bool
    reports: bool
    """Whether the node has the annotation with its GPUs."""


class InstallationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is installed in a cluster."""

    version: int = 1
    namespace: str
    installed: str | None
    """`helm`, `cotenant` or `other`: how it was installed; null: it is not"""
    chart: str | None
    """version of the chart"""
    workloads: tuple[WorkloadStatus, ...] = ()
    certificates: tuple[CertificateStatus, ...] = ()
    agents: tuple[AgentStatus, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Return whether all pods are ready."""
        return bool(self.workloads) and all(one.ready >= one.wanted for one in self.workloads)


async def read_status(client: Client) -> InstallationStatus:
    """Read what is installed."""
    seen = {key: one for key in WORKLOADS if (one := await found(client, key)) is not None}
    way = await _way(client)
    if not seen:
        return InstallationStatus(namespace=NAMESPACE, installed=None if way == OTHER else way, chart=None)
    labels = next(iter(seen.values())).metadata.labels
    workloads = []
    for key, one in seen.items():
        ready, wanted = replicas_of(key, one)
        containers = one.spec.get("template", {}).get("spec", {}).get("containers", [])
        images = tuple(str(container.get("image")) for container in containers)
        workloads.append(WorkloadStatus(kind=key.kind, name=key.name, ready=ready, wanted=wanted, images=images))
    return InstallationStatus(
        namespace=NAMESPACE,
        installed=way,
        chart=labels.get("helm.sh/chart", "").rpartition("-")[2] or None,
        workloads=tuple(workloads),
        certificates=tuple([await _certificate(client, name) for name in SERVICES if _has(seen, name)]),
        agents=await _agents(client),
    )


def _has(seen: Iterable[Key], name: str) -> bool:
    return any(key.name == name for key in seen)


async def _way(client: Client) -> str:
    if await found(client, INSTALLED) is not None:
        return "cotenant"
    release = await helm_release(client)
    return OTHER if release is None or release.has_failed else "helm"


async def _certificate(client: Client, name: str) -> CertificateStatus:
    try:
        text = (await client.get(SECRETS, name, namespace=NAMESPACE)).text(CERTIFICATE)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        text = ""
    validity = validity_of(text)
    expires = None if validity is None else datetime.fromtimestamp(validity[1], UTC).isoformat()
    return CertificateStatus(name=name, expires=expires)


async def _agents(client: Client) -> tuple[AgentStatus, ...]:
    pods, _ = await listed(client, PODS, Selection(namespace=NAMESPACE, labels=selector_of(AGENT)))
    nodes = {node.metadata.name: node for node in (await listed(client, NODES))[0]}
    made = []
    for pod in pods:
        name = pod.spec.node_name or ""
        notes = nodes[name].metadata.annotations if name in nodes else {}
        reports = INVENTORY in notes and AWAY not in notes
        made.append(AgentStatus(node=name, pod=pod.metadata.name, ready=is_ready(pod), reports=reports))
    return tuple(sorted(made, key=lambda one: one.node))
