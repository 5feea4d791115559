# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Installs, upgrades and removes the objects of the chart without helm.

A ConfigMap lists the objects of the installation, with the values that they were made from. It is written before the
objects, so that an interrupted command can be repeated or undone.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from cotenant import __version__
from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.keys import create_missing
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import AGENT, CONFIGURATION, NAMESPACE, OUR_LABELS, SCHEDULER, Json
from cotenant.kube.api.objects import Metadata
from cotenant.kube.install.chart import (
    RELEASE,
    ClusterFacts,
    check_upgrade,
    checked_values,
    installed_objects,
    merged,
    namespace_object,
    newest,
    rendered,
)
from cotenant.kube.install.cleaning import clean_nodes
from cotenant.kube.install.kinds import Key, Seen, delete_found, found, found_as

MANAGER = "cotenant"
"""our field manager"""
INVENTORY = Key("ConfigMap", "cotenant-installation", NAMESPACE)
HOOKS = Key("MutatingWebhookConfiguration", SCHEDULER)
LOOKED_UP = (
    Key("Namespace", "kube-system"),
    Key("RuntimeClass", ""),
    Key("Node", ""),
    Key("ConfigMap", CONFIGURATION, NAMESPACE),
    HOOKS,
)
"""objects, or kinds without a name, that templates look up; the first one shows them that they can"""
KEEP = "helm.sh/resource-policy"
VERSION_LABEL = "app.kubernetes.io/version"
"""on every object of the chart"""
LOOK_S = 0.5
ADOPTED = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE},
}
"""What helm requires of an object that it did not create, so that it can be used by a later installation."""
RELEASE_NAME = "meta.helm.sh/release-name"
"""annotation by which helm marks the objects of a release"""
UNINSTALLED = "uninstalled"
"""state of a release whose history helm keeps"""
INSTALLED = {"deployed", "superseded"}
"""states of a revision that was installed"""
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Release:
    """A release of helm that is an installation of cotenant."""

    name: str
    has_failed: bool
    """whether it was never installed: a check or the first job refused it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a command would do."""

    objects: Sequence[Json]
    """to apply, in this order"""
    removed: Sequence[Key] = ()
    """objects of the present installation that the new one does not have"""
    values: Mapping[str, Any] = field(default_factory=dict)
    """what the user said, without defaults"""
    days: int | None = None
    """validity of new certificates; None: cert-manager makes them"""


class _Looked(msgspec.Struct, frozen=True, kw_only=True):
    """An object, with the parts that templates look at."""

    metadata: Metadata = Metadata()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
    webhooks: tuple[dict[str, Any], ...] = ()
    handler: str = ""
    """of a RuntimeClass"""
    scheduling: dict[str, Any] = {}
    """of a RuntimeClass"""


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str


class _Group(msgspec.Struct, frozen=True, rename="camel"):
    versions: tuple[dict[str, str], ...] = ()


class _Groups(msgspec.Struct, frozen=True):
    groups: tuple[_Group, ...] = ()


async def read_cluster(client: Client) -> ClusterFacts:
    """Ask the API server what templates ask of a cluster."""
    version = msgspec.json.decode(await client.read("/version"), type=_Version).git_version
    groups = msgspec.json.decode(await client.read("/apis"), type=_Groups).groups
    apis = {one["groupVersion"] for group in groups for one in group.versions}
    return ClusterFacts(version=version, apis=frozenset(apis))


async def _read_objects(client: Client) -> dict[tuple[str, str], list[Json]]:
    """Read the objects of the cluster that templates look up."""
    made: dict[tuple[str, str], list[Json]] = {}
    for key in LOOKED_UP:
        if key.name:
            one = await found_as(client, key, _Looked)
            objects = [] if one is None else [one]
        else:
            objects, _ = await listed(client, key.kind_of(_Looked))
        version = key.api.group.removeprefix("apis/").removeprefix("api/")
        made[version, key.kind] = [msgspec.to_builtins(one) for one in objects]
    return made


async def plan_install(client: Client, said: Mapping[str, Any]) -> Plan:
    """Return what an installation would do; InputError if it could not work, or if there is one."""
    await _refuse_helm(client)
    if await found(client, INVENTORY) is not None:
        raise InputError(f"cotenant is installed in namespace {NAMESPACE}: `cotenant kube upgrade` changes it")
    return await _plan(client, said)


async def plan_upgrade(client: Client, said: Mapping[str, Any], *, reset: bool = False) -> Plan:
    """Return what an upgrade would do. It keeps the values of the installation, unless they are to be reset."""
    await _refuse_helm(client)
    installed = await found(client, INVENTORY)
    if installed is None:
        raise InputError(f"cotenant is not installed in namespace {NAMESPACE}: `cotenant kube install` installs it")
    values = said if reset else merged(newest(json.loads(installed.data["values"]), "installed values"), said)
    plan = await _plan(client, values, upgrade=True)
    kept = {Key.of(one) for one in plan.objects}
    removed = [key for key in listed_keys(installed) if key not in kept]
    return Plan(objects=plan.objects, removed=removed, values=plan.values, days=plan.days)


async def check_installed(client: Client) -> None:
    """InputError if a version is installed that this one cannot follow."""
    seen = await found(client, Key("ConfigMap", CONFIGURATION, NAMESPACE))
    version = "" if seen is None else seen.metadata.labels.get(VERSION_LABEL, "")
    if version:
        check_upgrade(version)


def listed_keys(installed: Seen) -> list[Key]:
    """Return the objects that the inventory lists."""
    return [Key(*one) for one in json.loads(installed.data["objects"])]


async def _plan(client: Client, said: Mapping[str, Any], *, upgrade: bool = False) -> Plan:
    values = checked_values(said)
    facts = replace(await read_cluster(client), objects=await _read_objects(client))
    objects = installed_objects(rendered(values, facts, NAMESPACE, upgrade=upgrade))
    days = values["certificates"]["days"] if values["certificates"]["source"] == "own" else None
    return Plan(objects=objects, values=said, days=days)


async def _refuse_helm(client: Client) -> None:
    release = await helm_release(client)
    if release is not None and release.has_failed:
        raise InputError(
            f"an installation by helm failed in namespace {NAMESPACE} (release {release.name}): repeat it with helm, or"
            f" remove what it left by `helm uninstall {release.name} --namespace {NAMESPACE} --no-hooks`"
        )
    if release is not None:
        raise InputError(
            f"helm installed cotenant in namespace {NAMESPACE} (release {release.name}): upgrade and remove it with"
            " helm, or install helm and repeat this command"
        )


async def helm_release(client: Client) -> Release | None:
    """Return the release of helm in our namespace that is cotenant; None if there is none. Others may be there, too."""
    installed = await found(client, Key("ConfigMap", CONFIGURATION, NAMESPACE))
    name = None if installed is None else installed.metadata.annotations.get(RELEASE_NAME)
    if name is not None:
        return Release(name, has_failed=False)
    labels = f"owner=helm,name={RELEASE},status!={UNINSTALLED}"
    secrets, _ = await listed(client, Kind("secrets", Seen), Selection(namespace=NAMESPACE, labels=labels))
    states = {one.metadata.labels.get("status") for one in secrets}
    return Release(RELEASE, has_failed=not states & INSTALLED) if states else None


async def refuse_second(client: Client) -> Release | None:
    """InputError if helm has installed cotenant already; otherwise return the release of a failed installation."""
    release = await helm_release(client)
    if release is not None and not release.has_failed:
        raise InputError(
            f"helm installed cotenant in namespace {NAMESPACE} (release {release.name}): `cotenant kube upgrade`"
            " changes it"
        )
    return release


async def require_release(client: Client) -> Release:
    """Return the release of helm that is cotenant; InputError if it is not installed."""
    release = await helm_release(client)
    if release is None or release.has_failed:
        raise InputError(f"cotenant is not installed in namespace {NAMESPACE}: `cotenant kube install` installs it")
    return release


async def refuse_own(client: Client) -> None:
    """InputError if cotenant was installed without helm: helm would refuse to take its objects over."""
    if await found(client, INVENTORY) is not None:
        raise InputError(
            f"cotenant was installed in namespace {NAMESPACE} without helm: repeat this command with --no-helm, or"
            " remove that installation first"
        )


async def carry_out(client: Client, plan: Plan, say: Say) -> None:
    """Apply a plan; return when the API server has all objects."""
    await _apply(client, namespace_object())
    await _write_inventory(client, plan, [*map(Key.of, plan.objects), *plan.removed])
    for name in await create_missing(client, plan.days):
        say(f"Secret {name}: created")
    for one in plan.objects:
        await _apply(client, one)
        say(f"{Key.of(one)}: applied")
    for key in plan.removed:
        await delete_found(client, key)
        say(f"{key}: removed")
    await _write_inventory(client, plan, [Key.of(one) for one in plan.objects])


async def remove(client: Client, say: Say, *, purge: bool = False) -> None:
    """Remove an installation, last objects first. With `purge`, also the custom resource and its profiles."""
    installed = await found(client, INVENTORY)
    if installed is None:
        await _refuse_helm(client)
        raise InputError(f"cotenant is not installed in namespace {NAMESPACE}, or not by `cotenant kube install`")
    await clean_nodes(client, say, said=json.loads(installed.data["values"]))
    for key in reversed(listed_keys(installed)):
        seen = await found(client, key)
        if seen is None:
            continue
        if not purge and seen.metadata.annotations.get(KEEP) == "keep":
            await client.patch(key.api, key.name, {"metadata": ADOPTED})
            say(f"{key}: kept, with the profiles that were measured; --purge removes it")
            continue
        await delete_found(client, key)
        say(f"{key}: removed")
    await delete_found(client, Key("Namespace", NAMESPACE))
    say(f"Namespace {NAMESPACE}: removed")


async def wait_ready(client: Client, objects: Sequence[Json], seconds: float, say: Say) -> None:
    """Return when all pods are ready, which includes that the API server trusts the webhook; CotenantError if that
    takes too long."""
    until = time.monotonic() + seconds
    said = ""
    while reason := await _unready_reason(client, objects):
        if reason != said:
            say(f"waiting: {reason}")
        said = reason
        if time.monotonic() > until:
            raise CotenantError(f"not ready after {seconds:.0f} s: {reason}; `cotenant kube doctor` says more")
        await asyncio.sleep(LOOK_S)


async def _unready_reason(client: Client, objects: Sequence[Json]) -> str | None:
    for key in map(Key.of, objects):
        if key.kind not in ("Deployment", "DaemonSet"):
            continue
        seen = await found(client, key)
        if seen is None:
            return f"{key} is not there"
        ready, wanted = replicas_of(key, seen)
        if ready < wanted or (key.name == AGENT and not wanted):
            return f"{key} has {ready} of {wanted} pods ready"
        if seen.status.get("observedGeneration", 0) < seen.metadata.generation:
            return f"{key} is being changed"
    return None


def replicas_of(key: Key, seen: Seen) -> tuple[int, int]:
    """Return how many pods of a workload are ready and current, and how many there should be."""
    status = seen.status
    if key.kind == "DaemonSet":
        ready = min(status.get("numberReady", 0), status.get("updatedNumberScheduled", 0))
        if seen.spec.get("updateStrategy", {}).get("type") == "OnDelete":
            ready = status.get("numberReady", 0)
        return ready, status.get("desiredNumberScheduled", 0)
    return min(status.get("readyReplicas", 0), status.get("updatedReplicas", 0)), seen.spec.get("replicas", 1)


async def _apply(client: Client, made: Json) -> None:
    key = Key.of(made)
    await client.apply(key.api, key.name, made, manager=MANAGER, namespace=key.namespace)


async def _write_inventory(client: Client, plan: Plan, keys: Sequence[Key]) -> None:
    data = {"version": __version__, "values": json.dumps(plan.values), "objects": json.dumps(keys)}
    metadata = {"name": INVENTORY.name, "namespace": NAMESPACE, "labels": OUR_LABELS}
    await _apply(client, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
