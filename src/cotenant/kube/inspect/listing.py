# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster read once, with the rights of whoever asks: nodes, pods, and how pods are placed there.

Fewer rights show less: of the pods one namespace only, of the settings the defaults. What is missing is said.
"""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from cotenant.errors import CotenantError
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import ALL, Client, Selection, unheard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import NODES, PODS, Kind, T
from cotenant.kube.api.names import CONFIGURATION, NAMESPACE, SETTINGS_FILE
from cotenant.kube.api.objects import Metadata, Node
from cotenant.kube.api.reflector import GONE
from cotenant.kube.inspect.report import ClusterUse, cluster_use
from cotenant.kube.settings import KubeSettings, parse_settings

TRIES = 3
"""to read a list that is longer than the server's memory"""
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
FORBIDDEN, NOT_FOUND = 403, 404


class ConfigMap(msgspec.Struct, frozen=True, kw_only=True):
    """Files in a cluster."""

    metadata: Metadata = Metadata()
    data: Mapping[str, str] = {}


CONFIG_MAPS = Kind("configmaps", ConfigMap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be read."""

    node: str | None = None
    """None: all of them, and the pods that wait"""
    namespace: str | None = None
    """None: of all, where that is allowed"""
    settings: KubeSettings | None = None
    """None: those of the installation, where they can be read"""


class NoSuchNodeError(CotenantError):
    """The cluster has no such node, or it has no GPUs that we know of."""

    exit_code = 4


async def read_cluster(access: Access, wish: Wish) -> ClusterUse:
    """What there is to see; CotenantError in a sentence where it cannot be read."""
    client = Client(access, agent="cotenant-inspect")
    try:
        return await _read(client, access, wish)
    except ApiError as error:
        raise CotenantError(_sentence(error)) from None
    finally:
        await client.close()


async def _read(client: Client, access: Access, wish: Wish) -> ClusterUse:
    nodes, bad_nodes = await _listed(client, NODES) if wish.node is None else ([await _node(client, wish.node)], 0)
    fields = NOT_ENDED if wish.node is None else f"{NOT_ENDED},spec.nodeName={wish.node}"
    namespace = wish.namespace
    try:
        pods, bad_pods = await _listed(client, PODS, Selection(namespace=namespace or "", fields=fields))
    except ApiError as error:
        if error.status != FORBIDDEN or namespace is not None:
            raise
        namespace = access.namespace
        pods, bad_pods = await _listed(client, PODS, Selection(namespace=namespace, fields=fields))
    settings = wish.settings or await _settings(client)
    seen = cluster_use(nodes, pods, settings or KubeSettings())
    if wish.node is not None and not seen.nodes:
        why = seen.unread[0] if seen.unread else f"node {wish.node}: no agent has told of GPUs there"
        raise NoSuchNodeError(why)
    bad = tuple(
        f"{what} that are not as Kubernetes defines them: {count}"
        for count, what in ((bad_nodes, "nodes"), (bad_pods, "pods"))
        if count
    )
    return msgspec.structs.replace(
        seen, namespace=namespace, policy=seen.policy if settings else None, unread=seen.unread + bad
    )


async def _node(client: Client, name: str) -> Node:
    try:
        return await client.get(NODES, name)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise NoSuchNodeError(f"the cluster has no node {name}; kubectl get nodes lists them") from None


async def _listed(client: Client, kind: Kind[T], which: Selection = ALL) -> tuple[list[T], int]:
    """All objects, page by page, and how many more there are that cannot be decoded."""
    for trial in range(1, TRIES + 1):
        found: list[T] = []
        bad = 0
        try:
            # Larger pages when it has to begin anew: the last ones were too many to be read in time.
            async with aclosing(client.pages(kind, which, page=client.limits.page * 4 ** (trial - 1))) as pages:
                async for page in pages:
                    found += page.items
                    bad += len(page.unread)
            return found, bad
        except ApiError as error:
            if error.status != GONE or trial == TRIES:
                raise
    raise AssertionError("the last trial returns or raises")


async def _settings(client: Client) -> KubeSettings | None:
    """Those that the scheduler runs with, None where they are not there or not for us to read."""
    try:
        found = await client.get(CONFIG_MAPS, CONFIGURATION, namespace=NAMESPACE)
    except ApiError as error:
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
        return None
    return parse_settings(found.data.get(SETTINGS_FILE, "").encode(), f"ConfigMap {NAMESPACE}/{CONFIGURATION}")


def _sentence(error: ApiError) -> str:
    if error.status == FORBIDDEN:
        return f"you may not read this: it takes the right to `list` nodes, and pods of a namespace (-n): {error}"
    return unheard(error, "--kubeconfig or --context") or str(error)
