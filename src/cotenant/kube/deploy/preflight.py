# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a cluster must have before a demo runs in it: rights of the user, GPUs, our scheduler and our webhook."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cotenant.core.units import MiB
from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import FORBIDDEN, NOT_FOUND, ApiError
from cotenant.kube.api.decoding import NODES, Kind
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import LEASE, NAMESPACE
from cotenant.kube.api.objects import Metadata, Pod
from cotenant.kube.codec.inventory import machine_of
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.deploy.objects import seconds
from cotenant.kube.deploy.pods import container, pod_spec
from cotenant.kube.settings import DEFAULT_SCHEDULER
from cotenant.workloads.generator import PlannedJob

INSTALL = "`cotenant kube install` installs it"
STALE_S = 60.0
"""Age of a lease after which its scheduler is taken for dead; a living one renews it every few seconds."""


class Right(NamedTuple):
    """Something that a user may do, in one namespace or, without one, in the whole cluster."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    part: str = ""
    """Subresource."""

    def __str__(self) -> str:
        what = f"{self.verb} {self.resource}{'/' if self.part else ''}{self.part}"
        return f"{what} in namespace {self.namespace}" if self.namespace else what


def rights_for(namespace: str, *, make_namespace: bool, label_nodes: bool) -> list[Right]:
    """Return the rights that a demo in this namespace needs."""
    batch = [Right(verb, "jobs", "batch", namespace) for verb in ("create", "delete", "list", "watch")]
    pods = [Right(verb, "pods", "", namespace) for verb in ("create", "list", "watch")]
    found = [Right("list", "nodes"), *batch, *pods, Right("get", "pods", "", namespace, "log")]
    if make_namespace:
        found += [Right("create", "namespaces"), Right("delete", "namespaces")]
    if label_nodes:
        found.append(Right("patch", "nodes"))
    return found


class _Verdict(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: _Verdict = _Verdict()


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    renew_time: str | None = None


class _Lease(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: _LeaseSpec = _LeaseSpec()


_REVIEWS = Kind("selfsubjectaccessreviews", _Review, group="apis/authorization.k8s.io/v1", cluster_wide=True)
_LEASES = Kind("leases", _Lease, group="apis/coordination.k8s.io/v1")
_PODS = Kind("pods", Pod)
_CLAIMS = Kind("persistentvolumeclaims", _Review)


async def check_rights(client: Client, rights: Sequence[Right]) -> None:
    """CotenantError that names all rights that the user does not have."""

    async def is_missing(right: Right) -> bool:
        names = {"verb": right.verb, "resource": right.resource, "group": right.group, "subresource": right.part}
        attributes = {**names, "namespace": right.namespace}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        answer = await client.create(_REVIEWS, {**review, "spec": {"resourceAttributes": attributes}})
        return not answer.status.allowed

    missing = [
        right for right, lacks in zip(rights, await asyncio.gather(*map(is_missing, rights)), strict=True) if lacks
    ]
    if missing:
        raise CotenantError(
            f"you may not {', '.join(map(str, missing))}; ask an administrator of the cluster for these rights"
        )


async def check_volume(client: Client, namespace: str, claim: str) -> None:
    """InputError if the namespace has no such PersistentVolumeClaim."""
    try:
        await client.get(_CLAIMS, claim, namespace=namespace)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise InputError(f"--volume {claim}: namespace {namespace} has no PersistentVolumeClaim of this name") from None


class Location(NamedTuple):
    """Where a GPU is."""

    node: str
    number: int
    """Index on its node."""
    type: str
    memory: MiB
    """What its tenants can have together."""


async def gpus(client: Client) -> dict[str, Location]:
    """Return all GPUs that agents of ours have published, by UUID; CotenantError if there is none."""
    found: dict[str, Location] = {}
    for node in (await listed(client, NODES))[0]:
        try:
            known = machine_of(node)
        except InputError:
            continue  # of another version of the agent
        if known is not None:
            machine, _ = known
            found |= {
                gpu.uuid: Location(machine.name, index, gpu.type, MiB(gpu.memory * gpu.memory_scaling // 100))
                for index, gpu in enumerate(machine.gpus)
            }
    if not found:
        raise CotenantError(f"the cluster has no GPU that an agent of cotenant has published; {INSTALL}")
    return found


def check_memory(gpus: Mapping[str, Location], jobs: Iterable[PlannedJob]) -> None:
    """InputError if a job needs more memory than the largest GPU has."""
    largest, job = max(gpu.memory for gpu in gpus.values()), max(jobs, key=lambda job: job.memory)
    if job.memory > largest:
        raise InputError(f"{job.name} can never run here: it needs {job.memory} MiB; the largest GPU has {largest} MiB")


async def check_scheduling(client: Client, namespace: str, image: str) -> None:
    """CotenantError if the webhook does not prepare pods of this namespace, or if no scheduler of ours runs.

    A pod is created as a dry run, so the webhook reviews it and nothing is stored.
    """
    main = container(image, ("true",), {str(VGPU.count): 1, str(VGPU.memory): 1}, {})
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cotenant-check"}, "spec": pod_spec(main)}
    pod = await client.create(_PODS, body, namespace=namespace, dry_run=True)
    if pod.spec.scheduler_name in ("", DEFAULT_SCHEDULER) and not pod.spec.resource_claims:
        raise CotenantError(
            f"pods with GPUs are not sent to a scheduler of cotenant in namespace {namespace}; {INSTALL}"
        )
    try:
        lease = await client.get(_LEASES, LEASE, namespace=NAMESPACE)
    except ApiError as error:
        if error.status == FORBIDDEN:
            return  # only administrators may look; a pod that waits will say what is missing
        if error.status != NOT_FOUND:
            raise
        raise CotenantError(f"no scheduler of cotenant runs here: it has no lease {NAMESPACE}/{LEASE}") from None
    # Both times are of the API server's clock or of a node's, never of this machine's.
    now, renewed = seconds(pod.metadata.creation_timestamp), seconds(lease.spec.renew_time)
    if not lease.spec.holder_identity or renewed is None or (now is not None and now - renewed > STALE_S):
        raise CotenantError(
            f"no scheduler of cotenant runs here: the lease {NAMESPACE}/{LEASE} is not renewed; "
            f"see `kubectl get pods -n {NAMESPACE}`"
        )
