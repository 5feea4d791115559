# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The device plugin: what kubelet knows of a node's GPUs, over one socket for each resource name.

Kubelet never says for which pod it asks, so nothing is decided here. A slot's ID names its GPU, but which GPUs a
container uses is in its pod's record alone; all that is handed out is what every tenant gets.
"""

import asyncio
from collections.abc import Callable, Sequence

from cotenant.core.model import ContainerKind, Machine
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.allocating import HostPlaces, cut_regions, prepare, tidy_slices
from cotenant.kube.agent.podresources import Listed, list_devices
from cotenant.kube.agent.registration import LOOK_S, keep_registered
from cotenant.kube.agent.service import Pods, Service, Surroundings
from cotenant.kube.agent.strict import tidy_specs
from cotenant.kube.agent.unclaimed import Unclaimed
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import record_of
from cotenant.kube.codec.dialect import Vendor
from cotenant.kube.codec.settings import Settings
from cotenant.node.preload import find_library

TIDY_S = 30.0
CUT_S = 2.0
"""a tenant can write to a file of the node, and far more than it needs"""
KNOWN_S = 10.0


def count_resources(settings: Settings, vendor: Vendor) -> tuple[str, ...]:
    """The resource names that a node with cards of this vendor has: one for each dialect."""
    return tuple(dialect.count for dialect in settings.dialects if dialect.vendor is vendor)


class Plugins:
    """All resource names of a node. Made before gRPC is used by anybody, since this may fork and gRPC bears no fork.

    `machine` and `pods` (all of this node that the agent knows, in any state) are asked whenever they are needed and
    must answer at once. InputError or CotenantError where the host's folders cannot be made.
    """

    def __init__(
        self,
        machine: Callable[[], Machine],
        resources: Sequence[str],
        host: HostPlaces,
        pods: Pods,
        error_log: ErrorLog,
        *,
        strict: bool = False,
        heard: Callable[[], object] = lambda: None,
        look_s: float = LOOK_S,
        known_s: float = KNOWN_S,
    ) -> None:
        self._resources = tuple(resources)
        self._look_s = look_s
        self._around = Surroundings(
            machine=machine,
            pods=pods,
            host=host,
            common=prepare(host, find_library()),
            strict=strict,
            known_s=known_s,
            error_log=error_log,
            heard=heard,
        )
        self._slices, self._specs = Unclaimed(), Unclaimed()
        self._services = [Service(resource, self._around) for resource in resources]

    def is_followed(self) -> bool:
        """Whether kubelet can start containers with GPUs: it follows every resource; `heard` tells of changes."""
        return all(service.is_watched() for service in self._services)

    async def run(self) -> None:
        """Serves kubelet until cancelled; its sockets are then gone."""
        async with asyncio.TaskGroup() as group:
            for resource, service in zip(self._resources, self._services, strict=True):
                group.create_task(
                    keep_registered(
                        self._around.host.plugins,
                        resource,
                        service.options,
                        service.handler,
                        self._around.error_log,
                        before=self.tidy,
                        watched=service.is_watched,
                        look_s=self._look_s,
                    )
                )
            group.create_task(self._keep_tidy())
            group.create_task(self._keep_cut())

    def changed(self) -> None:
        """The machine is another now (a card's health, one more or less); to be called in the loop of `run`."""
        self._around.bell.ring()

    async def listed(self) -> tuple[Listed, ...]:
        """Which containers have devices of ours; CotenantError where kubelet does not answer."""
        return await list_devices(self._around.host.pod_resources, self._resources)

    async def tidy(self) -> None:
        """Gives containers back what a restart of the machine took from them, and removes what nobody has."""
        host, error_log = self._around.host, self._around.error_log
        try:
            listed = await self.listed()
            # Kubelet does not list plain init containers: nothing is removed while one may need it.
            tidy_slices(host, listed, None if any(map(_is_initialising, self._around.pods())) else self._slices)
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
                for name in cut_regions(self._around.host):
                    self._around.error_log.report("regions", f"slice {name}: its tenant wrote too much; it was cut off")
            except OSError as error:
                self._around.error_log.report("regions", str(error))


def _is_initialising(pod: Pod) -> bool:
    if pod.status.phase not in ("", "Pending"):
        return False
    try:
        record = record_of(pod)
    except InputError:
        return False
    return record is not None and any(held.kind is ContainerKind.INIT for held in record.containers)
