# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Removes what an agent has written on the object of its node, and its ResourceSlices."""

from cotenant.kube.api.claims import SLICES
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import NODES
from cotenant.kube.api.listing import listed
from cotenant.kube.codec.claims import DRIVER
from cotenant.kube.codec.inventory import OWN_TOTALS, SAID

NONE_THERE = (403, 404)
"""Without claims, there is no slice, and no right to list and delete them."""


async def take_back(client: Client, name: str) -> None:
    """Removes all that an agent has written on a node."""
    try:
        of_node = Selection(fields=f"spec.nodeName={name},spec.driver={DRIVER}")
        for one in (await listed(client, SLICES, of_node))[0]:
            await client.delete(SLICES, one.metadata.name)
    except ApiError as error:
        if error.status not in NONE_THERE:
            raise
    node = await client.get(NODES, name)
    own = node.metadata.annotations.get(OWN_TOTALS) or ""
    if gone := {one: None for one in own.split(",") if one}:
        await client.patch(NODES, name, {"status": {"capacity": gone, "allocatable": gone}}, part="status")
    ours = dict.fromkeys(SAID)
    await client.patch(NODES, name, {"metadata": {"annotations": ours}})
