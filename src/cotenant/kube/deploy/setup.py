# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a demo creates in a cluster besides jobs, and removes again: its namespace, and labels of nodes."""

import asyncio
import time
from collections.abc import Iterable

import msgspec

from cotenant.errors import CotenantError
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import CONFLICT, FORBIDDEN, NOT_FOUND, ApiError
from cotenant.kube.api.decoding import NODES, Kind
from cotenant.kube.api.listing import listed
from cotenant.kube.api.objects import Metadata
from cotenant.kube.deploy.objects import MANAGED, RUN

GPU_LABEL = "gpushare"
"""Label that IADeep's and gpushare's guides put on nodes with GPUs; their manifests select nodes by it."""
GONE_S = 180.0
"""How long a deleted namespace may take to disappear."""
EVERY_S = 0.2


class Namespace(msgspec.Struct, frozen=True):
    """A namespace."""

    metadata: Metadata = Metadata()


NAMESPACES = Kind("namespaces", Namespace, cluster_wide=True)


async def has_namespace(client: Client, name: str) -> bool:
    """Return whether the namespace exists; a user who may not look has named an existing one."""
    try:
        await client.get(NAMESPACES, name)
    except ApiError as error:
        if error.status == NOT_FOUND:
            return False
        if error.status != FORBIDDEN:
            raise
    return True


async def make_namespace(client: Client, name: str, run: str) -> None:
    """Create the namespace of a run, unless it exists."""
    labels = {**MANAGED, RUN: run}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    try:
        await client.create(NAMESPACES, body)
    except ApiError as error:
        if error.status != CONFLICT:
            raise


async def remove_namespace(client: Client, name: str, run: str) -> None:
    """Delete the namespace that this run created, with all that it has, and return when it is gone; CotenantError if
    that takes too long."""
    until = time.monotonic() + GONE_S
    try:
        found = await client.get(NAMESPACES, name)
        if found.metadata.labels.get(RUN) != run:
            return
        await client.delete(NAMESPACES, name, uid=found.metadata.uid)
        while time.monotonic() < until:
            await client.get(NAMESPACES, name)
            await asyncio.sleep(EVERY_S)
    except ApiError as error:
        if error.status == NOT_FOUND:
            return
        raise
    raise CotenantError(
        f"namespace {name} is deleted but not gone after {GONE_S:g} s; see `kubectl get namespace {name} -o yaml`"
    )


async def without_label(client: Client, nodes: Iterable[str]) -> list[str]:
    """Return those of the nodes that do not have the label `gpushare`."""
    have = {node.metadata.name for node in (await listed(client, NODES))[0] if GPU_LABEL in node.metadata.labels}
    return sorted(set(nodes) - have)


async def label_nodes(client: Client, nodes: Iterable[str], value: str | None) -> None:
    """Set the label `gpushare` of nodes, or remove it; a node that is gone is left out."""
    for name in nodes:
        try:
            await client.patch(NODES, name, {"metadata": {"labels": {GPU_LABEL: value}}})
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
