# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Ends the agents of an installation that is being removed, and removes what they have written on their nodes."""

import asyncio
import time
from collections.abc import Callable

from cotenant.errors import CotenantError
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import NODES, PODS
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import AGENT, MPS, NAMESPACE, labels_of
from cotenant.kube.codec.inventory import SAID
from cotenant.kube.codec.withdrawing import take_back
from cotenant.kube.install.kinds import Key

LONGEST_S = 90.0
LOOK_S = 0.5
NOT_FOUND = 404


async def clean_nodes(client: Client, say: Callable[[str], object], longest_s: float = LONGEST_S) -> None:
    """End the agents, so that they write nothing more, then clean every node. What running pods use stays."""
    for name in (AGENT, MPS):
        try:
            key = Key("DaemonSet", name, NAMESPACE)
            await client.delete(key.api, name, namespace=NAMESPACE, cascade="Background")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
    await _wait_for_agents(client, longest_s)
    nodes, _ = await listed(client, NODES)
    for node in nodes:
        if node.metadata.annotations.keys() & set(SAID):
            await take_back(client, node.metadata.name)
            say(f"node {node.metadata.name}: cleaned")


async def _wait_for_agents(client: Client, longest_s: float) -> None:
    labels = ",".join(f"{key}={value}" for key, value in labels_of(AGENT).items())
    until = time.monotonic() + longest_s
    while left := (await listed(client, PODS, Selection(namespace=NAMESPACE, labels=labels)))[0]:
        if time.monotonic() > until:
            nodes = ", ".join(sorted(pod.spec.node_name for pod in left))
            raise CotenantError(f"agents have not ended after {longest_s:.0f} s, on {nodes}: repeat the command")
        await asyncio.sleep(LOOK_S)
