# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Creates, lists, changes and deletes model servers in a cluster, and waits until they are ready."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from cotenant.core.units import MiB, Percent
from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import CONFLICT, NOT_FOUND, ApiError
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import Json
from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.gpushare import GPUSHARE
from cotenant.kube.deploy.objects import (
    DEPLOYMENTS,
    FRAMEWORK,
    SERVICES,
    SERVING,
    Deployment,
    Service,
    belongs,
    condition_of,
    seconds,
    selector,
)
from cotenant.kube.deploy.pods import check_image
from cotenant.kube.deploy.serving import limits
from cotenant.kube.deploy.session import NoSuchObjectError
from cotenant.kube.deploy.waiting import first_obstacle, newest_version, pods_of
from cotenant.wire.text import counted

EVERY_S = 0.5
Report = Callable[[str], None]


class NotReadyError(CotenantError):
    """A model server is not ready, for a reason that the message names."""


class ServingView(msgspec.Struct, frozen=True, kw_only=True):
    """A model server."""

    name: str
    namespace: str
    framework: str
    state: str
    """starting, running or stopped (no replicas)."""
    replicas: int
    ready: int
    memory_mib: int | None
    """GPU memory of each replica."""
    compute_percent: int | None
    image: str
    address: str
    """Host and port of the Service, inside the cluster."""
    submitted: float


async def create(client: Client, namespace: str, objects: Sequence[Json]) -> None:
    """Create the Deployment and the Service, or none of them."""
    deployment, service = objects
    name = deployment["metadata"]["name"]
    made = await _create(client, DEPLOYMENTS, "Deployment", name, deployment, namespace)
    try:
        await _create(client, SERVICES, "Service", name, service, namespace)
    except CotenantError:
        await client.delete(DEPLOYMENTS, name, namespace=namespace, uid=made.metadata.uid)
        raise


async def _create(client: Client, kind: Any, word: str, name: str, body: Json, namespace: str) -> Any:
    try:
        return await client.create(kind, body, namespace=namespace)
    except ApiError as error:
        if error.status != CONFLICT:
            raise
        raise InputError(
            f"--name {name}: namespace {namespace} already has a {word} of this name; choose another name, or see "
            "`cotenant serve list`, `update` and `delete`"
        ) from None


async def wait_until_ready(client: Client, namespace: str, name: str, report: Report, most_s: float) -> None:
    """Wait until all replicas of the current version are ready; NotReadyError if they cannot become so."""
    until = time.monotonic() + most_s
    said = ""
    while True:
        found = await find(client, namespace, name)
        wanted, status = int(found.spec.get("replicas", 1)), found.status
        if status.observed_generation >= found.metadata.generation:
            if status.updated_replicas == status.available_replicas == status.replicas == wanted:
                return
            text = f"{name}: {status.available_replicas} of {counted(wanted, 'replica')} ready"
            failed = condition_of(status.conditions, "ReplicaFailure")
            if failed is not None and failed.status == "True":
                raise NotReadyError(f"{name}: the cluster refused its pods: {failed.message}")
            if status.updated_replicas:  # before that, all pods are of an earlier version
                pods = newest_version(await pods_of(client, namespace, SERVING, name))
                obstacle = await first_obstacle(client, pods)
                if obstacle is not None and obstacle.permanent:
                    raise NotReadyError(f"{name}: {obstacle.text}")
                text = text if obstacle is None else f"{text}; {obstacle.text}"
            if text != said:
                report(text)
                said = text
        if time.monotonic() > until:
            raise NotReadyError(f"not ready after {most_s:g} s: {said or name}")
        await asyncio.sleep(EVERY_S)


async def servings(client: Client, namespace: str) -> list[ServingView]:
    """Return all model servers of a namespace (``: of all namespaces) that our commands created, by name."""
    which = Selection(namespace=namespace, labels=selector(SERVING))
    (deployments, _), (services, _) = await listed(client, DEPLOYMENTS, which), await listed(client, SERVICES, which)
    fronts = {(one.metadata.namespace, one.metadata.name): one for one in services}
    views = [_view(one, fronts.get((one.metadata.namespace, one.metadata.name))) for one in deployments]
    return sorted(views, key=lambda view: (view.namespace, view.name))


async def find(client: Client, namespace: str, name: str) -> Deployment:
    """Return the Deployment of a model server; NoSuchObjectError if there is none of ours."""
    try:
        found = await client.get(DEPLOYMENTS, name, namespace=namespace)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise NoSuchObjectError(f"no model server {name} in namespace {namespace}; see `cotenant serve list`") from None
    if not belongs(found.metadata.labels, SERVING, name):
        raise NoSuchObjectError(f"Deployment {name} in namespace {namespace} was not created by `cotenant serve`")
    return found


async def update(
    client: Client,
    namespace: str,
    name: str,
    *,
    replicas: int | None = None,
    memory: MiB | None = None,
    compute: Percent | None = None,
    image: str | None = None,
) -> None:
    """Change a model server; CotenantError if it was changed at the same moment."""
    found = await find(client, namespace, name)
    spec: Json = {} if replicas is None else {"replicas": replicas}
    if memory is not None or compute is not None or image is not None:
        main = dict(_main(found))
        if image is not None:
            main["image"] = check_image(image)
        old = _limits(found)
        chosen = limits(
            MiB(old[str(GPUSHARE.memory)]) if memory is None else memory,
            _percent(old) if compute is None else compute,
        )
        main["resources"] = {"limits": chosen}
        # A merge patch replaces lists as a whole; our pods have one container.
        spec["template"] = {"spec": {"containers": [main]}}
    patch = {"metadata": {"resourceVersion": found.metadata.resource_version}, "spec": spec}
    try:
        await client.patch(DEPLOYMENTS, name, patch, namespace=namespace)
    except ApiError as error:
        if error.status != CONFLICT:
            raise
        raise CotenantError(f"{name} was changed at the same moment; try again") from None


async def delete(client: Client, namespace: str, name: str) -> None:
    """Delete the Deployment and the Service of a model server; the cluster then ends its pods."""
    found = await find(client, namespace, name)
    try:
        front = await client.get(SERVICES, name, namespace=namespace)
        if belongs(front.metadata.labels, SERVING, name):
            await client.delete(SERVICES, name, namespace=namespace, uid=front.metadata.uid)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
    await client.delete(DEPLOYMENTS, name, namespace=namespace, uid=found.metadata.uid)


def _view(found: Deployment, front: Service | None) -> ServingView:
    about, amounts = found.metadata, _limits(found)
    wanted, ready = int(found.spec.get("replicas", 1)), found.status.available_replicas
    ports = [] if front is None else front.spec.get("ports", [])
    return ServingView(
        name=about.name,
        namespace=about.namespace,
        framework=about.labels.get(FRAMEWORK, ""),
        state="stopped" if not wanted else "running" if ready >= wanted else "starting",
        replicas=wanted,
        ready=ready,
        memory_mib=amounts.get(str(GPUSHARE.memory)),
        compute_percent=_percent(amounts),
        image=_main(found).get("image", ""),
        address="" if not ports else f"{about.name}.{about.namespace}:{ports[0]['port']}",
        submitted=seconds(about.creation_timestamp) or 0.0,
    )


def _main(found: Deployment) -> Mapping[str, Any]:
    """Return the container of a model server."""
    containers = found.spec.get("template", {}).get("spec", {}).get("containers", [])
    if not containers:
        raise CotenantError(f"Deployment {found.metadata.name} has no container")
    main: Mapping[str, Any] = containers[0]
    return main


def _limits(found: Deployment) -> Mapping[str, int]:
    """Return the limits of the container as numbers: the API server stores 3000 as 3k."""
    limits = _main(found).get("resources", {}).get("limits", {})
    return {name: int(parse_quantity(amount)) for name, amount in limits.items()}


def _percent(amounts: Mapping[str, int]) -> Percent | None:
    percent = amounts.get(str(GPUSHARE.compute))
    return None if percent is None else Percent(percent)
