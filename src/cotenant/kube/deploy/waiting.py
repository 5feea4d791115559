# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps pods from running: a sentence for each obstacle, and whether it can pass without the user."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.listing import listed
from cotenant.kube.codec.queueing import hold_of, is_gated
from cotenant.kube.deploy.objects import EVENTS, OWN_PODS, TEMPLATE, OwnPod, condition_of, selector
from cotenant.wire.text import printable

SAID = frozenset(("NoRoom", "Queued", "GangWaits"))
"""Reasons of the Events in which our scheduler says what is missing."""
PERMANENT = {
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node",
    "InvalidImageName": "its image has an invalid name",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be started",
}
"""Reasons for which a container waits that only a change of the request removes."""
LONGEST = 600


class Obstacle(NamedTuple):
    """Why a pod does not run."""

    text: str
    permanent: bool
    """Whether waiting longer cannot help."""


async def pods_of(client: Client, namespace: str, label: str, name: str) -> list[OwnPod]:
    """Return the pods of a model server or a job, oldest first."""
    found, _ = await listed(client, OWN_PODS, Selection(namespace=namespace, labels=selector(label, name)))
    return sorted(found, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name))


def newest_version(pods: Sequence[OwnPod]) -> list[OwnPod]:
    """Return the pods of the latest version of a Deployment's template."""
    if not pods:
        return []
    latest = pods[-1].metadata.labels.get(TEMPLATE)
    return [pod for pod in pods if pod.metadata.labels.get(TEMPLATE) == latest]


async def first_obstacle(client: Client, pods: Iterable[OwnPod]) -> Obstacle | None:
    """Return what keeps these pods from running; what waiting cannot change comes first."""
    found = [one for one in [await _obstacle(client, pod) for pod in pods] if one is not None]
    return next((one for one in found if one.permanent), found[0] if found else None)


def permanent_obstacle(pods: Iterable[OwnPod]) -> Obstacle | None:
    """Return what keeps a container of these pods from ever starting."""
    for pod in pods:
        for one in pod.status.container_statuses if pod.metadata.deletion_timestamp is None else ():
            waits = one.state.waiting
            if waits is not None and waits.reason in PERMANENT:
                return _said(f"pod {pod.metadata.name}: {PERMANENT[waits.reason]}", waits.message, True)
    return None


async def _obstacle(client: Client, pod: OwnPod) -> Obstacle | None:
    name = pod.metadata.name
    if pod.metadata.deletion_timestamp is not None:
        return None
    if found := permanent_obstacle([pod]):
        return found
    for one in pod.status.container_statuses:
        ended = one.state.terminated or one.last_state.terminated
        if ended is not None and (ended.exit_code or ended.signal) and one.state.running is None:
            return _said(f"pod {name} ended with exit code {ended.exit_code}", ended.message or ended.reason, True)
    if pod.status.phase == "Failed":
        return _said(f"pod {name} failed", pod.status.message or pod.status.reason, True)
    placed = condition_of(pod.status.conditions, "PodScheduled")
    if placed is not None and placed.status == "False":
        return _said(f"pod {name} waits", await _waits_for(client, pod) or placed.message or placed.reason, False)
    return None


def _said(what: str, detail: str, permanent: bool) -> Obstacle:
    lines = [line.strip() for line in detail.splitlines() if line.strip()]
    text = printable("; ".join(lines))
    return Obstacle(f"{what}: {text[-LONGEST:]}" if text else what, permanent)


async def _waits_for(client: Client, pod: OwnPod) -> str:
    """Return who holds the pod, or the last sentence of our scheduler about it, if the user may read it."""
    if (hold := hold_of(pod)) is not None:
        return f"{hold}; `cotenant release` lets it start"
    fields = f"involvedObject.uid={pod.metadata.uid}"
    try:
        found, _ = await listed(client, EVENTS, Selection(namespace=pod.metadata.namespace, fields=fields))
    except ApiError:
        found = []
    said = [one for one in found if one.reason in SAID]
    if said:
        return max(said, key=lambda one: one.last_timestamp or "").message
    return "it waits in cotenant's queue" if is_gated(pod.spec.scheduling_gates) else ""
