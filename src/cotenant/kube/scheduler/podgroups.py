# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""PodGroups of Kubernetes 1.36: how many pods of a group start together.

They are an alpha feature, which few clusters have. So nothing is read before the first pod names a group: without the
feature, the API server removes that field from every pod. The role of kube-scheduler includes the right to read them.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn

import msgspec

from cotenant.core.model import Reason
from cotenant.kube.api.client import Client
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Metadata, Pod
from cotenant.kube.api.reflector import Pace, Reflector

VERSION = "scheduling.k8s.io/v1alpha2"


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


PODGROUPS = Kind("podgroups", PodGroup, group=f"apis/{VERSION}")


class PodGroups:
    """Follows the groups while `run` runs, from the first pod on that names one."""

    def __init__(self, client: Client, errors: ErrorLog, changed: Callable[[str, str], object], *, pace: Pace) -> None:
        self._named, self._changed = asyncio.Event(), changed
        self._reflector = Reflector(
            client, PODGROUPS, self._group_changed, pace=pace, report=lambda text: errors.report("watch", text)
        )

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        if new is not None and new.spec.scheduling_group is not None:
            self._named.set()

    def size_of(self, namespace: str, name: str) -> int | Reason:
        """How many pods of a group start together, 1 if its pods start one by one; or why that is not known."""
        if not self._reflector.synced.is_set():
            return Reason("gang", f"its PodGroup {name} is not known yet: {VERSION} could not be read so far")
        group = self._reflector.objects.get((namespace, name))
        if group is None:
            return Reason("gang", f"its PodGroup {name} does not exist")
        gang = group.spec.scheduling_policy.gang
        return 1 if gang is None else max(1, gang.min_count)

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        await self._named.wait()
        await self._reflector.run()
        raise AssertionError("reflectors never end")

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        about = (new or old or PodGroup()).metadata
        self._changed(about.namespace, about.name)
