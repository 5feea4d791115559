# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""PodGroups of Kubernetes 1.36 and later: how many pods of a group start together.

They are a feature that few clusters have. So nothing is read before the first pod names a group: without the feature,
the API server removes that field from every pod. Which version of the API it serves depends on the version of
Kubernetes. The role of kube-scheduler includes the right to read groups.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn

import msgspec

from cotenant.core.model import Reason
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Metadata, Pod
from cotenant.kube.api.reflector import Pace, Reflector

API = "scheduling.k8s.io"
VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2")
"""that are read, the best first: 1.37 has the first two, 1.36 the last"""


class GangPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All or nothing."""

    min_count: int = 1


class SchedulingPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the pods of a group are scheduled; one by one if no policy for gangs is there."""

    gang: GangPolicy | None = None


class PodGroupSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The spec of a group."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()


class PodGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Pods that are scheduled together."""

    metadata: Metadata = Metadata()
    spec: PodGroupSpec = PodGroupSpec()


class _Served(msgspec.Struct, frozen=True):
    version: str


class _Group(msgspec.Struct, frozen=True):
    versions: tuple[_Served, ...] = ()


class PodGroups:
    """Follows the groups while `run` runs, from the first pod on that names one."""

    def __init__(self, client: Client, errors: ErrorLog, changed: Callable[[str, str], object], *, pace: Pace) -> None:
        self._named, self._changed = asyncio.Event(), changed
        self._client, self._pace = client, pace
        self._report: Callable[[str], object] = lambda text: errors.report("watch", text)
        self._reflector: Reflector[PodGroup] | None = None

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        if new is not None and new.spec.scheduling_group is not None:
            self._named.set()

    def size_of(self, namespace: str, name: str) -> int | Reason:
        """How many pods of a group start together, 1 if its pods start one by one; or why that is not known."""
        if self._reflector is None or not self._reflector.synced.is_set():
            return Reason("gang", f"its PodGroup {name} is not known yet: {API} could not be read so far")
        group = self._reflector.objects.get((namespace, name))
        if group is None:
            return Reason("gang", f"its PodGroup {name} does not exist")
        gang = group.spec.scheduling_policy.gang
        return 1 if gang is None else max(1, gang.min_count)

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        await self._named.wait()
        while (version := await self._find_version()) is None:
            await asyncio.sleep(self._pace.lists_s)
        kind = Kind("podgroups", PodGroup, group=f"apis/{API}/{version}")
        self._reflector = Reflector(self._client, kind, self._group_changed, pace=self._pace, report=self._report)
        await self._reflector.run()
        raise AssertionError("reflectors never end")

    async def _find_version(self) -> str | None:
        """The version in which the API server has the groups; None if it has none, or does not answer."""
        try:
            group = msgspec.json.decode(await self._client.read(f"/apis/{API}"), type=_Group)
        except (ApiError, OSError, msgspec.MsgspecError) as error:
            self._report(f"PodGroups: {API}: {error}")
            return None
        served = {one.version for one in group.versions}
        found = next((version for version in VERSIONS if version in served), None)
        if found is None:
            self._report(
                f"PodGroups: a pod names one, and the API server serves none of {', '.join(VERSIONS)} of {API}"
            )
        return found

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        about = (new or old or PodGroup()).metadata
        self._changed(about.namespace, about.name)
