# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads nodes, pods and settings of a cluster once, with the rights of the user.

A user with fewer rights sees less: the pods of one namespace only, or the default settings. The result says what is
missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from cotenant.errors import CotenantError
from cotenant.kube.api.access import Access
from cotenant.kube.api.claims import CLAIMS, CLASSES, DeviceClass, ResourceClaim
from cotenant.kube.api.client import Client, Selection, connection_problem
from cotenant.kube.api.connection import FORBIDDEN, NOT_FOUND, ApiError
from cotenant.kube.api.decoding import NODES, PODS, Kind
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import CONFIGURATION, NAMESPACE, SETTINGS_FILE
from cotenant.kube.api.objects import Metadata, Node
from cotenant.kube.inspect.report import ClusterUse, cluster_use
from cotenant.kube.settings import KubeSettings, parse_settings
from cotenant.wire.text import counted

NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


class ConfigMap(msgspec.Struct, frozen=True, kw_only=True):
    """A ConfigMap."""

    metadata: Metadata = Metadata()
    data: Mapping[str, str] = {}


CONFIG_MAPS = Kind("configmaps", ConfigMap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to read."""

    node: str | None = None
    """Name of the node; None: all nodes, and the pending pods."""
    namespace: str | None = None
    """Namespace of the pods; None: all namespaces, if the user may list them."""
    settings: KubeSettings | None = None
    """None: the settings of the installation, if the user may read them."""


class NoSuchNodeError(CotenantError):
    """The cluster has no such node, or no agent has reported GPUs of it."""

    exit_code = 4


async def read_cluster(access: Access, query: Query) -> ClusterUse:
    """Read the cluster and return the use of its GPUs; CotenantError if it cannot be read."""
    client = Client(access, agent="cotenant-inspect")
    try:
        return await _read(client, access, query)
    except ApiError as error:
        raise CotenantError(_message(error)) from None
    finally:
        await client.close()


async def _read(client: Client, access: Access, query: Query) -> ClusterUse:
    nodes, malformed_nodes = (
        await listed(client, NODES) if query.node is None else ([await _node(client, query.node)], 0)
    )
    fields = NOT_ENDED if query.node is None else f"{NOT_ENDED},spec.nodeName={query.node}"
    namespace = query.namespace
    try:
        pods, malformed_pods = await listed(client, PODS, Selection(namespace=namespace or "", fields=fields))
    except ApiError as error:
        if error.status != FORBIDDEN or namespace is not None:
            raise
        namespace = access.namespace
        pods, malformed_pods = await listed(client, PODS, Selection(namespace=namespace, fields=fields))
    settings = query.settings or await _settings(client)
    by_claims, problem = None, ""
    if settings is not None and settings.claims.enabled:
        by_claims, problem = await _claims(client, namespace)
    seen = cluster_use(nodes, pods, settings or KubeSettings(), by_claims)
    if query.node is not None and not seen.nodes:
        why = seen.unread[0] if seen.unread else f"node {query.node}: no agent has reported GPUs of this node"
        raise NoSuchNodeError(why)
    malformed = tuple(
        f"{counted(count, what)} could not be decoded"
        for count, what in ((malformed_nodes, "node"), (malformed_pods, "pod"))
        if count
    ) + ((problem,) if problem else ())
    return msgspec.structs.replace(
        seen, namespace=namespace, policy=seen.policy if settings else None, unread=seen.unread + malformed
    )


async def _node(client: Client, name: str) -> Node:
    try:
        return await client.get(NODES, name)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise NoSuchNodeError(f"the cluster has no node {name}; `kubectl get nodes` lists its nodes") from None


async def _claims(
    client: Client, namespace: str | None
) -> tuple[tuple[list[ResourceClaim], list[DeviceClass]] | None, str]:
    """Return the claims and the device classes; None if the user may not list them, and a sentence that says so."""
    try:
        claims, _ = await listed(client, CLAIMS, Selection(namespace=namespace or ""))
        classes, _ = await listed(client, CLASSES)
    except ApiError as error:
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
        return None, f"pods that wait with ResourceClaims are not shown: {error}"
    return (claims, classes), ""


async def _settings(client: Client) -> KubeSettings | None:
    """Return the scheduler's settings; None if they do not exist or the user may not read them."""
    try:
        found = await client.get(CONFIG_MAPS, CONFIGURATION, namespace=NAMESPACE)
    except ApiError as error:
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
        return None
    return parse_settings(found.data.get(SETTINGS_FILE, "").encode(), f"ConfigMap {NAMESPACE}/{CONFIGURATION}")


def _message(error: ApiError) -> str:
    if error.status == FORBIDDEN:
        return f"you need the right to `list` nodes, and pods of at least one namespace (-n): {error}"
    return connection_problem(error, "--kubeconfig or --context") or str(error)
