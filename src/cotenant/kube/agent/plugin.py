# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The device plugins of a node: one socket for each resource name, through which kubelet hands out devices.

Kubelet never says for which pod it asks, so nothing is decided here. A device ID names a GPU, but only the record of
its pod says which GPUs a container uses. The plugin hands out what every tenant gets.
"""

import asyncio
from collections.abc import Callable, Sequence

from cotenant.core.model import ContainerKind, Machine
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.allocating import HostPlaces, Unclaimed, cut_regions, prepare, tidy_slices
from cotenant.kube.agent.podresources import Listed, list_devices
from cotenant.kube.agent.registration import LOOK_S, keep_registered
from cotenant.kube.agent.service import PluginState, Pods, Service
from cotenant.kube.agent.strict import tidy_specs
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import record_of
from cotenant.kube.codec.settings import Settings
from cotenant.node.devices.vendors import Vendor
from cotenant.node.preload import find_library

TIDY_S = 30.0
CUT_S = 2.0
"""Pause between two looks at the size of usage regions, which tenants can write to."""
KNOWN_S = 10.0


def count_resources(settings: Settings, vendor: Vendor) -> tuple[str, ...]:
    """The resource names that count GPUs of this vendor, one for each dialect."""
    return tuple(dialect.count for dialect in settings.dialects if dialect.vendor is vendor)


class Plugins:
    """The device plugins of a node, one for each resource name.

    Create it before any call of gRPC: it may fork, and gRPC does not survive a fork. `machine` and `pods` (all pods of
    this node, in any phase) are called often and must return at once. InputError or CotenantError if the folders of the
    host cannot be made.
    """

    def __init__(
        self,
        machine: Callable[[], Machine],
        vendor: Vendor,
        resources: Sequence[str],
        host: HostPlaces,
        pods: Pods,
        error_log: ErrorLog,
        *,
        strict: bool = False,
        on_watch_change: Callable[[], object] = lambda: None,
        look_s: float = LOOK_S,
        known_s: float = KNOWN_S,
    ) -> None:
        self._resources = tuple(resources)
        self._look_s = look_s
        self._state = PluginState(
            machine=machine,
            vendor=vendor,
            pods=pods,
            host=host,
            common=prepare(host, find_library()),
            strict=strict,
            known_s=known_s,
            error_log=error_log,
            on_watch_change=on_watch_change,
        )
        self._slices, self._specs = Unclaimed(), Unclaimed()
        self._services = [Service(resource, self._state) for resource in resources]

    def is_watched(self) -> bool:
        """Whether kubelet watches every resource, so that it can start containers with GPUs."""
        return all(service.is_watched() for service in self._services)

    async def run(self) -> None:
        """Serves kubelet until cancelled, and then removes the sockets."""
        async with asyncio.TaskGroup() as group:
            for resource, service in zip(self._resources, self._services, strict=True):
                group.create_task(
                    keep_registered(
                        self._state.host.plugins,
                        resource,
                        service.options,
                        service.handler,
                        self._state.error_log,
                        before=self.tidy,
                        watched=service.is_watched,
                        look_s=self._look_s,
                    )
                )
            group.create_task(self._keep_tidy())
            group.create_task(self._keep_cut())

    def changed(self) -> None:
        """Call it in the loop of `run` if the machine has changed: a GPU's health, one more or fewer."""
        self._state.changed.notify()

    async def listed(self) -> tuple[Listed, ...]:
        """The containers with devices of ours; CotenantError if kubelet does not answer."""
        return await list_devices(self._state.host.pod_resources, self._resources)

    async def tidy(self) -> None:
        """Makes files that a restart of the machine has removed, and removes those of containers that are gone."""
        host, error_log = self._state.host, self._state.error_log
        try:
            listed = await self.listed()
            # Kubelet does not list plain init containers, so nothing is removed while one may run.
            tidy_slices(host, listed, None if any(map(_is_initialising, self._state.pods())) else self._slices)
            tidy_specs(host.cdi, listed, self._specs)
        except (CotenantError, OSError) as error:
            error_log.report("tidying", str(error))

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_S)
            await self.tidy()

    async def _keep_cut(self) -> None:
        while True:
            await asyncio.sleep(CUT_S)
            try:
                for name in cut_regions(self._state.host):
                    self._state.error_log.report(
                        "regions", f"slice {name}: its tenant wrote too much; the file was truncated"
                    )
            except OSError as error:
                self._state.error_log.report("regions", str(error))


def _is_initialising(pod: Pod) -> bool:
    if pod.status.phase not in ("", "Pending"):
        return False
    try:
        record = record_of(pod)
    except InputError:
        return False
    return record is not None and any(held.kind is ContainerKind.INIT for held in record.containers)
