# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Ends the agents of an installation that is being removed, and removes what they have left on their nodes: their
annotations and amounts of resources, and their files."""

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Any

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.decoding import NODES, PODS
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import AGENT, CLEANUP, MPS, NAMESPACE, selector_of
from cotenant.kube.api.objects import Node, is_ready
from cotenant.kube.codec.inventory import SAID
from cotenant.kube.codec.withdrawing import take_back
from cotenant.kube.install.kinds import Key, delete_found, found
from cotenant.kube.install.node_files import FOLDERS, Say, removal_template, remove_files

AGENTS_S = 90.0
"""How long agents may take to end."""
LOOK_S = 0.5
WITHOUT_HOOKS = ("kubectl", "kustomize")
"""How the names of tools begin that apply hooks of a chart like all other objects: `helm template | kubectl apply`, or
Flux with a folder of manifests."""


async def why_no_removal(client: Client) -> str | None:
    """Return why the job of the chart must remove nothing: a tool that knows no hooks applied it with everything else,
    at the installation. None if it was created as a hook, or if there is no job."""
    job = await found(client, Key("Job", CLEANUP, NAMESPACE))
    tools = [str(one.get("manager", "")) for one in job.metadata.managed_fields] if job is not None else []
    applied = next((name for name in tools if name.startswith(WITHOUT_HOOKS)), None)
    if applied is None:
        return None
    return (
        f"{applied} applied this job, which is a hook for the uninstallation, so nothing is removed. Before you delete "
        "the objects of the chart, run `cotenant kube clean`"
    )


async def clean_nodes(
    client: Client, say: Say, *, named: Collection[str] = (), said: Mapping[str, Any] | None = None
) -> None:
    """End all agents, so that they write nothing more, then clean their nodes; or clean the named nodes only, which
    have no agent any more. What running pods use stays, and a node that is not ready keeps its files.

    `said` are values of the chart, for a cluster from which it was removed already.
    """
    nodes = {node.metadata.name: node for node in (await listed(client, NODES))[0]}
    ready = {name for name, node in nodes.items() if is_ready(node)}
    async with removal_template(client, said or {}) as template:
        if named:
            await _check_named(client, named, nodes)
            ours = set(named)
        else:
            for name in (AGENT, MPS):
                await delete_found(client, Key("DaemonSet", name, NAMESPACE))
            hosts = await _wait_for_agents(client, ready)
            ours = hosts & nodes.keys() | {name for name in nodes if _is_annotated(nodes[name])}
        await remove_files(client, template, sorted(ours & ready), say)
    for name in sorted(ours - ready):
        say(f"node {name} is not ready: {FOLDERS} stay; `cotenant kube clean --node {name}` removes them later")
    for name in sorted(ours):
        if _is_annotated(nodes[name]):
            await take_back(client, name)
            say(f"node {name}: annotations removed")


def _is_annotated(node: Node) -> bool:
    return bool(node.metadata.annotations.keys() & set(SAID))


async def _check_named(client: Client, named: Collection[str], nodes: Mapping[str, Node]) -> None:
    if unknown := sorted(set(named) - nodes.keys()):
        raise InputError(f"this cluster has no node {', '.join(unknown)}")
    if kept := sorted(await _hosts(client) & set(named)):
        raise InputError(f"node {', '.join(kept)}: it has an agent; remove the label by which agents select it first")


async def _hosts(client: Client) -> set[str]:
    """The nodes that have an agent."""
    found, _ = await listed(client, PODS, Selection(namespace=NAMESPACE, labels=selector_of(AGENT)))
    return {pod.spec.node_name for pod in found}


async def _wait_for_agents(client: Client, ready: Collection[str]) -> set[str]:
    """Return the nodes that had an agent, when none is left on a node that is ready: only kubelet could end others."""
    before = left = await _hosts(client)
    until = time.monotonic() + AGENTS_S
    while left := left & set(ready):
        if time.monotonic() > until:
            names = ", ".join(sorted(left))
            raise CotenantError(f"agents have not ended after {AGENTS_S:.0f} s, on {names}: repeat the command")
        await asyncio.sleep(LOOK_S)
        left = await _hosts(client)
    return before
