# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what the doctor checks. Nothing is stored: the pod that it tries is a dry run."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable

import msgspec

from cotenant import __version__
from cotenant.errors import InputError
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import NOT_FOUND, ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import (
    CONFIGURATION,
    DECISIONS,
    LEASE,
    NAMESPACE,
    SCHEDULER,
    SETTINGS_FILE,
    WEBHOOK,
    WHY,
    Json,
)
from cotenant.kube.api.objects import Metadata, Pod, moment_of
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.install.chart import ClusterFacts, checked_values, installed_objects, rendered
from cotenant.kube.install.doctor.checks import examine
from cotenant.kube.install.doctor.facts import (
    AccountRight,
    Facts,
    ForeignPlugin,
    Trial,
    account_rights,
)
from cotenant.kube.install.kinds import PLURALS, Key, Seen
from cotenant.kube.settings import KubeSettings, parse_settings
from cotenant.wire.diagnosis import Diagnosis

CERT_MANAGER = "cert-manager.io/inject-ca-from"
"""Annotation that lets cert-manager write into the configuration of the webhook."""
FOREIGN_IMAGES = {
    "nvidia/k8s-device-plugin": "NVIDIA's device plugin",
    "nvidia-device-plugin": "NVIDIA's device plugin",
    "projecthami/hami": "HAMi",
    "4pdosc/k8s-device-plugin": "HAMi",
    "gpushare-device-plugin": "Aliyun's gpushare",
    "k8s-gpushare-plugin": "Aliyun's gpushare",
    "volcano-vgpu-device-plugin": "Volcano's vGPU plugin",
    "rocm/k8s-device-plugin": "AMD's device plugin",
    "iadeep": "IADeep",
}
"""part of the name of an image -> the system whose device plugin it contains"""
MOST_NODES = 5000
NODE_LEASES = "kube-node-lease"


class _Allowed(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: _Allowed = _Allowed()


_REVIEWS = Kind("subjectaccessreviews", _Review, group="apis/authorization.k8s.io/v1", cluster_wide=True)
_PODS = Kind("pods", Pod)


async def diagnose(client: Client, namespace: str) -> Diagnosis:
    """Read the installation and examine it; a pod is tried in this namespace."""
    return examine(await read_facts(client, namespace))


async def read_facts(client: Client, namespace: str) -> Facts:
    """Everything that the checks need."""
    reader = _Reader(client)
    installed = await reader.one(Key("Namespace", NAMESPACE))
    if installed is None:
        return Facts(objects={Key("Namespace", NAMESPACE): None}, unread=reader.unread, own_time=time.time())
    configuration = await reader.one(Key("ConfigMap", CONFIGURATION, NAMESPACE))
    settings, problem = _settings(configuration)
    made = expected_objects(await reader.one(Key("MutatingWebhookConfiguration", SCHEDULER)), settings)
    keys = [*_expected(made)]
    objects = dict(zip(keys, await asyncio.gather(*map(reader.one, keys)), strict=True))
    trial, server_time = await reader.trial(namespace, _count_resource(settings or KubeSettings()))
    leases = await reader.many("Lease", NODE_LEASES)
    return Facts(
        objects={Key("Namespace", NAMESPACE): installed} | objects,
        settings=settings,
        settings_problem=problem,
        nodes=tuple(await reader.nodes()),
        node_leases={one.metadata.name: one for one in leases},
        plugins=tuple([one async for one in reader.plugins()]),
        rights=await reader.rights(account_rights(made)),
        trial=trial,
        server_time=server_time,
        own_time=time.time(),
        unread=reader.unread,
        version=__version__,
    )


def expected_objects(hooks: Seen | None = None, settings: KubeSettings | None = None) -> list[Json]:
    """The objects that an installation with these settings for claims has. What else there is depends on its values;
    whether cert-manager renews the certificates is to be seen on the configuration of the webhook."""
    managed = hooks is not None and CERT_MANAGER in hooks.metadata.annotations
    said = {
        "web": {"enabled": False},
        "certificates": {"source": "cert-manager" if managed else "own"},
        "settings": {"claims": msgspec.to_builtins((settings or KubeSettings()).claims)},
    }
    return installed_objects(rendered(checked_values(said), ClusterFacts(apis=frozenset({"cert-manager.io/v1"}))))


def _expected(objects: Iterable[Json]) -> Iterable[Key]:
    left_out = ("PodDisruptionBudget", "NetworkPolicy")
    yield from (Key.of(one) for one in objects if one["kind"] not in left_out)
    yield from (Key("Secret", name, NAMESPACE) for name in (SCHEDULER, WEBHOOK, WHY, DECISIONS))
    yield Key("Lease", LEASE, NAMESPACE)


def _settings(seen: Seen | None) -> tuple[KubeSettings | None, str | None]:
    if seen is None:
        return None, "they are missing"
    try:
        return parse_settings(seen.data.get(SETTINGS_FILE, "").encode()), None
    except InputError as error:
        return None, str(error)


class _Reader:
    """Reads objects; what the user may not read is noted and taken to be as it should be."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.unread: dict[str, str] = {}

    async def one(self, key: Key) -> Seen | None:
        try:
            return await self._client.get(key.api, key.name, namespace=key.namespace)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            self._note(key.api.plural, error)
            return Seen()

    async def many(self, kind: str, namespace: str = "", labels: str = "") -> list[Seen]:
        plural, group = PLURALS.get(kind, (kind, "api/v1"))
        try:
            which = Selection(namespace=namespace, labels=labels)
            return (await listed(self._client, Kind(plural, Seen, group=group), which))[0]
        except ApiError as error:
            self._note(plural, error)
            return []

    async def nodes(self) -> list[Seen]:
        return (await self.many("nodes"))[:MOST_NODES]

    async def plugins(self) -> AsyncIterator[ForeignPlugin]:
        """The device plugins of other systems that run in the cluster."""
        for one in await self.many("DaemonSet"):
            system = _system_of(one)
            if system is None or one.metadata.namespace == NAMESPACE:
                continue
            chosen = one.spec.get("selector", {}).get("matchLabels", {})
            labels = ",".join(f"{name}={value}" for name, value in chosen.items())
            pods = await self.many("pods", one.metadata.namespace, labels)
            nodes = frozenset(str(pod.spec["nodeName"]) for pod in pods if pod.spec.get("nodeName"))
            yield ForeignPlugin(system, f"{one.metadata.namespace}/{one.metadata.name}", nodes)

    async def rights(self, wanted: list[AccountRight]) -> dict[AccountRight, bool]:
        """Whether each account has its rights; empty if the user may not ask."""

        async def allowed(right: AccountRight) -> bool:
            resource, _, part = right.resource.partition("/")
            attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": part}
            attributes |= {"name": right.name, "namespace": right.namespace}
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
            spec = {"user": right.account, "groups": _groups(right.account), "resourceAttributes": attributes}
            return (await self._client.create(_REVIEWS, {**body, "spec": spec})).status.allowed

        try:
            return dict(zip(wanted, await asyncio.gather(*map(allowed, wanted)), strict=True))
        except ApiError as error:
            self._note("subjectaccessreviews", error)
            return {}

    async def trial(self, namespace: str, resource: str) -> tuple[Trial | None, float | None]:
        """What becomes of a pod with a GPU, without storing it, and the clock of the API server."""
        try:
            pod = await self._client.create(_PODS, _trial_pod(resource), namespace=namespace, dry_run=True)
        except ApiError as error:
            if error.status == 403 and "failed calling" not in str(error) and "cotenant" not in str(error):
                self._note("pods", error)
                return None, None
            return Trial(problem=error.summary), None
        moment = moment_of(pod.metadata.creation_timestamp)
        return Trial(scheduler=pod.spec.scheduler_name, has_claims=bool(pod.spec.resource_claims)), moment or None

    def _note(self, what: str, error: ApiError) -> None:
        self.unread.setdefault(what, error.summary)


def _count_resource(settings: KubeSettings) -> str:
    """The resource by which pods request GPUs in the first dialect."""
    return next((one.count for one in settings.codec().dialects if one.count), None) or str(VGPU.count)


def _trial_pod(resource: str) -> Json:
    main = {"name": "main", "image": "cotenant-doctor", "resources": {"limits": {resource: "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "cotenant-doctor-"},
        "spec": {"containers": [main], "restartPolicy": "Never"},
    }


def _groups(account: str) -> list[str]:
    namespace = account.split(":")[2]
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]


def _system_of(daemon_set: Seen) -> str | None:
    containers = daemon_set.spec.get("template", {}).get("spec", {}).get("containers", [])
    images = [str(one.get("image", "")).lower() for one in containers if isinstance(one, dict)]
    return next((system for part, system in FOREIGN_IMAGES.items() if any(part in image for image in images)), None)
