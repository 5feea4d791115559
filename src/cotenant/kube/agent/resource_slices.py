# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Publishes the GPUs of a node as a ResourceSlice, for users and programs that read the standard API.

The scheduler does not read it: it knows the GPUs from the inventory of the node, which says more than a slice can.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from cotenant.core.model import Gpu, Machine
from cotenant.kube.api.claims import SLICES, VERSION
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.codec.claims import DRIVER, device_name, slice_name

MANAGER = "cotenant-agent"
MOST_DEVICES = 128
"""Of one ResourceSlice."""
LONGEST_TEXT = 64
"""Characters of an attribute."""
AGAIN_S = 10.0


def slice_for(machine: Machine, uid: str) -> dict[str, Any]:
    """The ResourceSlice of a node, which is deleted with the node of this UID."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": machine.name, "uid": uid}
    return {
        "apiVersion": VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name(machine.name), "ownerReferences": [owner]},
        "spec": {
            "driver": DRIVER,
            "nodeName": machine.name,
            "pool": {"name": machine.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [_device(gpu) for gpu in machine.gpus[:MOST_DEVICES]],
        },
    }


def _device(gpu: Gpu) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "type": {"string": gpu.type[:LONGEST_TEXT]},
        "uuid": {"string": gpu.uuid[:LONGEST_TEXT]},
        "healthy": {"bool": gpu.healthy},
    }
    if gpu.numa is not None:
        attributes["numaNode"] = {"int": gpu.numa}
    if gpu.mig is not None:
        attributes["migProfile"] = {"string": gpu.mig[:LONGEST_TEXT]}
    capacity = {"memory": {"value": f"{gpu.memory_capacity}Mi"}, "compute": {"value": f"{gpu.compute_capacity // 10}"}}
    return {"name": device_name(gpu.uuid), "attributes": attributes, "capacity": capacity}


async def keep_published(
    client: Client,
    machine: Callable[[], Machine],
    uid: Callable[[], str | None],
    report: Callable[[str], object],
    every_s: float = AGAIN_S,
) -> NoReturn:
    """Publishes the GPUs whenever they have changed; `uid` is that of the node, None if it is not known yet."""
    published = None
    while True:
        node, now = uid(), machine()
        if node is not None and (now, node) != published:
            try:
                await client.apply(SLICES, slice_name(now.name), slice_for(now, node), manager=MANAGER)
                published = now, node
            except ApiError as error:
                report(str(error))
        await asyncio.sleep(every_s if published is not None else 1.0)
