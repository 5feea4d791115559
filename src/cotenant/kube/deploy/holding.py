# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Holds the pods of a job in the queue, or a single pod, with the rights of the user, and releases them.

Kubernetes adds no scheduling gate to a pod that exists. So only a pod can be held that still waits at the gate that it
got when it was created.
"""

import time

import msgspec

from cotenant.errors import InputError
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import NOT_FOUND, ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.objects import Metadata, moment_of
from cotenant.kube.codec.queueing import NOT_HOLDABLE, hold_of, hold_patch, hold_text, is_gated
from cotenant.kube.deploy.jobs import find, view_of
from cotenant.kube.deploy.objects import JOB, OWN_PODS, OwnPod
from cotenant.kube.deploy.session import NoSuchObjectError
from cotenant.kube.deploy.waiting import pods_of
from cotenant.wire.job_views import JobView

POD = "pod/"


class _Username(msgspec.Struct, frozen=True):
    username: str = ""


class _UserInfo(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _Username = _Username()


class _SelfReview(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: _UserInfo = _UserInfo()


_SELF_REVIEWS = Kind("selfsubjectreviews", _SelfReview, group="apis/authentication.k8s.io/v1", cluster_wide=True)


async def hold(client: Client, namespace: str, name: str) -> JobView:
    """Hold the pods of a job that wait in the queue, or `pod/NAME`; InputError if none does."""
    pods = await _pods(client, namespace, name)
    waiting = [pod for pod in pods if is_gated(pod.spec.scheduling_gates)]
    if not waiting:
        raise InputError(f"{name} cannot be held: {NOT_HOLDABLE}")
    text = hold_text(await _user(client), time.time())
    held = [await _annotate(client, pod, text) for pod in waiting if hold_of(pod) is None]
    if held and all(hold_of(pod) is None for pod in held):
        raise InputError(f"{name} cannot be held: it left the queue at this moment")
    return await _view(client, namespace, name)


async def release(client: Client, namespace: str, name: str) -> JobView:
    """Let the held pods of a job start, or `pod/NAME`; InputError if none is held."""
    held = [pod for pod in await _pods(client, namespace, name) if hold_of(pod) is not None]
    if not held:
        raise InputError(f"{name} is not held")
    for pod in held:
        await _annotate(client, pod, None)
    return await _view(client, namespace, name)


async def _pods(client: Client, namespace: str, name: str) -> list[OwnPod]:
    if not name.startswith(POD):
        await find(client, namespace, name)
        return await pods_of(client, namespace, JOB, name)
    try:
        return [await client.get(OWN_PODS, name.removeprefix(POD), namespace=namespace)]
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise NoSuchObjectError(f"no pod {name.removeprefix(POD)} in namespace {namespace}") from None


async def _annotate(client: Client, pod: OwnPod, text: str | None) -> OwnPod:
    about = pod.metadata
    return await client.patch(OWN_PODS, about.name, hold_patch(about, text), namespace=about.namespace)


async def _user(client: Client) -> str:
    """The user's name as the API server knows it; empty if it does not tell."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        return (await client.create(_SELF_REVIEWS, body)).status.user_info.username
    except ApiError:
        return ""


async def _view(client: Client, namespace: str, name: str) -> JobView:
    pods = await _pods(client, namespace, name)
    holds = [one for one in map(hold_of, pods) if one is not None]
    reason = str(holds[0]) if holds else None
    if not name.startswith(POD):
        return msgspec.structs.replace(
            view_of(await find(client, namespace, name), pods), held=bool(holds), reason=reason
        )
    about, phase = pods[0].metadata, pods[0].status.phase
    state = "queued" if is_gated(pods[0].spec.scheduling_gates) or phase == "Pending" else phase.lower()
    submitted = moment_of(about.creation_timestamp)
    return JobView(id=name, name=about.name, state=state, submitted=submitted, held=bool(holds), reason=reason)
