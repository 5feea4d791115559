# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Removes the files of agents from their nodes, by a pod on each node that ends at once.

The chart has the template of these pods. A pod says in its last lines why files stay.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import NAMESPACE, REMOVAL, Json, selector_of
from cotenant.kube.codec.paths import HOST_LASTING, HOST_PASSING
from cotenant.kube.install.chart import checked_values, namespace_object, rendered
from cotenant.kube.install.kinds import Key, Seen, delete_found, found

FOLDERS = f"{HOST_LASTING} and {HOST_PASSING}"
REMOVAL_S = 60.0
"""How long the pods may take, from their creation to their end."""
LOOK_S = 0.5
ENDED = ("Succeeded", "Failed")

Say = Callable[[str], object]


@asynccontextmanager
async def removal_template(client: Client, said: Mapping[str, Any]) -> AsyncIterator[Json]:
    """Return the template of the pods. If the chart was removed, it is rendered with these values, and our namespace is
    there for as long as it is needed."""
    key = Key("PodTemplate", REMOVAL, NAMESPACE)
    installed = await found(client, key)
    if installed is not None:
        yield installed.template
        return
    (made,) = (one for one in rendered(checked_values(said), namespace=NAMESPACE) if Key.of(one) == key)
    namespace = Key("Namespace", NAMESPACE)
    is_new = await found(client, namespace) is None
    if is_new:
        await client.create(namespace.api, namespace_object())
    try:
        yield made["template"]
    finally:
        if is_new:
            await delete_found(client, namespace)


async def remove_files(
    client: Client, template: Json, nodes: Sequence[str], say: Say, longest_s: float = REMOVAL_S
) -> None:
    """Run a pod on each of these nodes, and say for each of them what became of its files."""
    await _delete_pods(client)  # those of a command that was interrupted
    kind = Key("Pod", "", NAMESPACE).api
    for node in nodes:
        # The scheduler is not asked: it would pass over nodes that are cordoned or full.
        body = {
            "metadata": {**template.get("metadata", {}), "generateName": f"{REMOVAL}-"},
            "spec": {**template["spec"], "nodeName": node},
        }
        await client.create(kind, body, namespace=NAMESPACE)
    until = time.monotonic() + longest_s
    pods = await _pods(client)
    while not all(_phase(one) in ENDED for one in pods) and time.monotonic() < until:
        await asyncio.sleep(LOOK_S)
        pods = await _pods(client)
    for pod in sorted(pods, key=lambda one: str(one.spec["nodeName"])):
        node = pod.spec["nodeName"]
        if _phase(pod) == "Succeeded":
            say(f"node {node}: files removed")
            continue
        reason = await _named_pods(client, node, _message(pod)) if _phase(pod) == "Failed" else _silence(pod, longest_s)
        say(f"node {node}: {reason}; `cotenant kube clean --node {node}` removes them later")
    await _delete_pods(client)


def _phase(pod: Seen) -> str:
    return str(pod.status.get("phase", "Pending"))


def _states(pod: Seen, name: str) -> list[Json]:
    states = (one.get("state", {}) for one in pod.status.get("containerStatuses", []))
    return [state[name] for state in states if name in state]


def _message(pod: Seen) -> str:
    said = [str(one.get("message") or one.get("reason", "")) for one in _states(pod, "terminated")]
    text = " ".join([*said, str(pod.status.get("message", ""))]).strip()
    return " ".join(text.split()).removeprefix("cotenant: ") or f"{FOLDERS} stay, for a reason that is not known"


def _silence(pod: Seen, longest_s: float) -> str:
    why = ", ".join(str(one.get("reason")) for one in _states(pod, "waiting")) or _phase(pod)
    return f"{FOLDERS} stay: the pod that removes them has not ended after {longest_s:.0f} s ({why})"


async def _named_pods(client: Client, node: str, text: str) -> str:
    """Replace the UIDs of pods in a text by their names; a pod that the API server has no longer keeps its UID."""
    for pod in (await listed(client, PODS, Selection(fields=f"spec.nodeName={node}")))[0]:
        text = text.replace(pod.metadata.uid, f"{pod.metadata.namespace}/{pod.metadata.name}")
    return text


async def _pods(client: Client) -> list[Seen]:
    kind = Key("Pod", "", NAMESPACE).api
    return (await listed(client, kind, Selection(namespace=NAMESPACE, labels=selector_of(REMOVAL))))[0]


async def _delete_pods(client: Client) -> None:
    """Delete the pods at once: those that have ended, and those whose node does not answer."""
    for pod in await _pods(client):
        await delete_found(client, Key("Pod", pod.metadata.name, NAMESPACE), grace_s=0)
