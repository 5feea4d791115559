# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Removes what an agent has written on the object of its node."""

from cotenant.kube.api.client import Client
from cotenant.kube.api.decoding import NODES
from cotenant.kube.codec.inventory import OWN_TOTALS, SAID


async def take_back(client: Client, name: str) -> None:
    """Removes all that an agent has written on a node."""
    node = await client.get(NODES, name)
    own = node.metadata.annotations.get(OWN_TOTALS) or ""
    if gone := {one: None for one in own.split(",") if one}:
        await client.patch(NODES, name, {"status": {"capacity": gone, "allocatable": gone}}, part="status")
    ours = dict.fromkeys(SAID)
    await client.patch(NODES, name, {"metadata": {"annotations": ours}})
