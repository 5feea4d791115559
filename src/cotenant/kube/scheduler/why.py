# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits, or is where it is: the scheduler's answer, and the client that asks through the API server.

The client needs no open port, and the kubeconfig authenticates the user. The API server does not forward the user, and
every pod of the cluster could call the scheduler directly. So the endpoint requires a key from a Secret: a user who may
read the Secret may ask.
"""

from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Limits, connection_problem
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind, Resource
from cotenant.kube.api.names import NAMESPACE, SCHEDULER, SERVICE_PORT, WHY, WHY_HEADER, WHY_KEY, Json
from cotenant.kube.api.objects import Pod, decode_pod
from cotenant.wire.explanation import GangView, NodeFit, NodeRefusal, SuggestionView, WhatIf

T = TypeVar("T", bound=Resource)

NO_SUCH_POD = "NoSuchPod"
MOST_TEMPLATE = 16 * 1024
"""characters of a template in the path of a what-if"""
REQUEST_LIMITS = Limits(answer_s=15.0, tries=2)


class Named(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The metadata of a pod."""

    name: str
    namespace: str
    uid: str = ""
    resource_version: str = ""


class GpuShareView(msgspec.Struct, frozen=True, kw_only=True):
    """What a container gets of one GPU."""

    container: int
    gpu: str
    memory_mib: int
    compute_percent: float
    """0 if it has no compute share"""
    limit_percent: float = 0.0
    """what it may use of the compute beside a server with a latency objective; 0: not limited"""
    memory_limit_mib: int = 0
    """what it may use while others leave it free; 0: no more than `memory_mib`"""
    compute_limit_percent: float = 0.0
    """the same of the compute; 0: no more than `compute_percent`"""


class LatencyView(msgspec.Struct, frozen=True, kw_only=True):
    """How a pod holds its latency objective."""

    percentile: int
    objective_ms: float
    latency_ms: float
    """of that percentile, as its program reported last"""
    held: bool


class EvictionView(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that must be evicted for the pod."""

    node: str
    pods: tuple[str, ...]
    under_way: bool
    """whether they are ending and the slot is reserved; otherwise this is what would have to be done"""


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """The pod itself or a neighbour on its GPU; None: not known. Speeds are relative to running alone."""

    pod: str
    """as namespace/name"""
    workload: str | None = None
    predicted: float | None = None
    """the speed that the scheduler expects beside the present neighbours"""
    measured: float | None = None
    """the speed that the pod reported last"""
    samples_per_second: float | None = None
    batch: int | None = None
    tuned: bool = False
    """whether the agent of the node chose the batch size"""


class WhyPod(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about one pod."""

    metadata: Named
    state: str
    """waiting, placing, placed, ended or elsewhere"""
    policy: str
    reason: str
    """the most important sentence"""
    node: str | None = None
    gpus: tuple[GpuShareView, ...] = ()
    isolation: str | None = None
    """the rung of the isolation ladder that it has; None: it is not placed, or its GPUs have none"""
    fits: tuple[NodeFit, ...] = ()
    """best first"""
    refusals: tuple[NodeRefusal, ...] = ()
    """nearest to fitting first"""
    eviction: EvictionView | None = None
    """if it fits nowhere because of pods of lower priority"""
    tenants: tuple[TenantView, ...] = ()
    """the pod itself, then its neighbours, if it has exactly one GPU"""
    latency: LatencyView | None = None
    """if it has an objective and reports its requests"""
    notes: tuple[str, ...] = ()
    """what the owner of the pod should know: limits that nothing enforces, memory that may be in another unit"""
    more: int = 0
    """number of nodes that are left out of the lists"""
    suggestions: tuple[SuggestionView, ...] = ()
    """what would make a waiting pod fit, the smallest change first"""
    gang: GangView | None = None
    """how much of its gang could start now, if it waits"""


class WhatIfPod(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about a pod that does not exist."""

    metadata: Named
    answer: WhatIf


class DecisionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines of a recording."""

    metadata: Named
    lines: list[str]
    next: str | None = None
    """where the next page begins; None: this is the last one"""


class _Secret(msgspec.Struct, frozen=True, kw_only=True):
    metadata: Named
    data: dict[str, str]


_SECRETS = Kind("secrets", _Secret)


async def ask_scheduler(access: Access, namespace: str, pod: str) -> WhyPod:
    """Ask the scheduler about a pod; CotenantError if it cannot be reached or does not know the pod."""
    return await _ask(access, "why", namespace, pod, WhyPod)


async def ask_what_if(access: Access, namespace: str, template: Json) -> WhatIf:
    """Ask the scheduler where a pod like this template would go; CotenantError if it cannot be reached.

    The template is a part of the path, because the role that allows `why` allows only to get.
    """
    encoded = urlsafe_b64encode(msgspec.json.encode(template)).decode().rstrip("=")
    return (await _ask(access, "whatif", namespace, encoded, WhatIfPod)).answer


def decode_template(text: str) -> Pod:
    """The pod in the path of a what-if; InputError if it is none."""
    if len(text) > MOST_TEMPLATE:
        raise InputError(f"a template of {len(text)} characters; expected at most {MOST_TEMPLATE}")
    try:
        content = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise InputError("expected the template of a pod as JSON in base64") from None
    return decode_pod(content)


async def _ask(access: Access, verb: str, namespace: str, pod: str, kind: type[T]) -> T:
    service = f"https:{SCHEDULER}:{SERVICE_PORT}"
    group = f"api/v1/namespaces/{NAMESPACE}/services/{service}/proxy/{verb}"
    try:
        async with client_with_key(access, WHY) as client:
            return await client.get(Kind(namespace, kind, group=group), pod)
    except ApiError as error:
        raise CotenantError(_message(error, namespace, pod)) from None


@asynccontextmanager
async def client_with_key(access: Access, secret: str) -> AsyncIterator[Client]:
    """A client whose requests carry the key of a Secret of the installation."""
    async with _client(access) as client:
        found = await client.get(_SECRETS, secret, namespace=NAMESPACE)
    key = {WHY_HEADER: b64decode(found.data[WHY_KEY]).decode("latin-1")}
    async with _client(access, key) as client:
        yield client


@asynccontextmanager
async def _client(access: Access, headers: Mapping[str, str] | None = None) -> AsyncIterator[Client]:
    client = Client(access, REQUEST_LIMITS, headers=headers)
    try:
        yield client
    finally:
        await client.close()


def _message(error: ApiError, namespace: str, pod: str) -> str:
    if error.reason == NO_SUCH_POD:
        return f"no pod {pod} in namespace {namespace}; select another namespace with -n"
    if error.status == 403:
        return (
            f"you may not ask the scheduler: you need the right to `get` services/proxy and the secret {WHY} in "
            f"namespace {NAMESPACE}; the role {WHY} grants both"
        )
    if error.status == 404:
        return f"no service {SCHEDULER} in namespace {NAMESPACE}: is cotenant installed in this cluster?"
    if error.status == 503:
        return f"the scheduler does not answer, or does not know the whole cluster yet: {error}"
    return connection_problem(error, "--kubeconfig") or str(error)
