# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits, or is where it is: what the scheduler answers, and how it is asked through the API server.

No port is opened, and the kubeconfig says who asks. The API server does not hand that on, and every pod of the cluster
could ask the scheduler itself: so there is a key, in a Secret, and whoever may read it may ask.
"""

from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from cotenant.errors import CotenantError
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Limits, connection_problem
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.names import NAMESPACE, SCHEDULER, SERVICE_PORT, WHY, WHY_HEADER, WHY_KEY

NO_SUCH_POD = "NoSuchPod"
WITHIN = Limits(answer_s=15.0, tries=2)


class Named(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Which pod it is about."""

    name: str
    namespace: str
    uid: str = ""
    resource_version: str = ""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a container has of one GPU."""

    container: int
    gpu: str
    memory_mib: int
    compute_percent: float
    """0: no claim"""


class FitView(msgspec.Struct, frozen=True, kw_only=True):
    """A node on which it would fit now."""

    node: str
    gpus: tuple[int, ...]
    score: tuple[float, ...]


class RefusalView(msgspec.Struct, frozen=True, kw_only=True):
    """A node on which it does not fit."""

    node: str
    check: str
    text: str
    needed: int = 0
    available: int = 0


class EvictionView(msgspec.Struct, frozen=True, kw_only=True):
    """Who has to go for it."""

    node: str
    pods: tuple[str, ...]
    under_way: bool
    """they are leaving, and their place is reserved; else that is what would have to be done"""


class WhyPod(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to say about a pod."""

    metadata: Named
    state: str
    """waiting, placing, placed, ended or elsewhere"""
    policy: str
    reason: str
    """the sentence that matters most"""
    node: str | None = None
    gpus: tuple[Given, ...] = ()
    fits: tuple[FitView, ...] = ()
    """best first"""
    refusals: tuple[RefusalView, ...] = ()
    """nearest to fitting first"""
    eviction: EvictionView | None = None
    """where it fits nowhere, and pods of lower priority are in its way"""
    notes: tuple[str, ...] = ()
    """what its owner should know: limits that nothing enforces"""
    more: int = 0
    """nodes that are not in the lists, where there are very many"""


class _Secret(msgspec.Struct, frozen=True, kw_only=True):
    metadata: Named
    data: dict[str, str]


_SECRETS = Kind("secrets", _Secret)


async def ask_scheduler(access: Access, namespace: str, pod: str) -> WhyPod:
    """What the scheduler says; CotenantError where it cannot be asked, or knows no such pod."""
    service = f"https:{SCHEDULER}:{SERVICE_PORT}"
    group = f"api/v1/namespaces/{NAMESPACE}/services/{service}/proxy/why"
    try:
        async with _asking(access) as client:
            secret = await client.get(_SECRETS, WHY, namespace=NAMESPACE)
        shown = {WHY_HEADER: b64decode(secret.data[WHY_KEY]).decode("latin-1")}
        async with _asking(access, shown) as client:
            return await client.get(Kind(namespace, WhyPod, group=group), pod)
    except ApiError as error:
        raise CotenantError(_sentence(error, namespace, pod)) from None


@asynccontextmanager
async def _asking(access: Access, headers: Mapping[str, str] | None = None) -> AsyncIterator[Client]:
    client = Client(access, WITHIN, headers=headers)
    try:
        yield client
    finally:
        await client.close()


def _sentence(error: ApiError, namespace: str, pod: str) -> str:
    if error.reason == NO_SUCH_POD:
        return f"no pod {pod} in namespace {namespace}; -n names another namespace"
    if error.status == 403:
        return (
            f"you may not ask the scheduler: it takes the right to `get` services/proxy and the secret {WHY} in "
            f"namespace {NAMESPACE}, which the role {WHY} gives"
        )
    if error.status == 404:
        return f"no service {SCHEDULER} in namespace {NAMESPACE}: is cotenant installed in this cluster?"
    if error.status == 503:
        return f"the scheduler does not answer, or does not know the whole cluster yet: {error}"
    return connection_problem(error, "--kubeconfig") or str(error)
