# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The device plugins of a node: one socket for each resource name, through which kubelet hands out devices.

Kubelet never says for which pod it asks, so nothing is decided here. A device ID names a GPU, but only the record of
its pod says which GPUs a container uses. The plugin hands out what every tenant gets.

Kubelet forgets every plugin and removes its socket when it restarts. It may also start later than the agent, or be away
for long. So the agent looks at kubelet's socket once a second, and registers again if it is another one.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from cotenant.core.model import Machine
from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import HostPlaces, Unclaimed, prepare, tidy_slices
from cotenant.kube.agent.claim_driver import ClaimDriver, ReadClaim
from cotenant.kube.agent.claim_files import ClaimFiles
from cotenant.kube.agent.claim_health import Faults
from cotenant.kube.agent.mps import NodeMps
from cotenant.kube.agent.podresources import Listed, list_devices
from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.agent.regions import Regions
from cotenant.kube.agent.rpc import Handler, RpcError, Server, call, serve
from cotenant.kube.agent.service import PluginState, Pods, Service, init_sizes
from cotenant.kube.agent.strict import tidy_specs
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.codec.settings import Settings
from cotenant.node.devices.vendors import Vendor
from cotenant.node.preload import find_library

REGISTER = "/v1beta1.Registration/Register"
VERSION = "v1beta1"
KUBELET = "kubelet.sock"
STEM = "cotenant-"
SOCKETS = f"{STEM}*.sock"
"""Our sockets in kubelet's folder."""
LONGEST_NAME = 24
"""Characters of a resource in the name of a socket, whose whole path may have 107 bytes."""
LOOK_S = 1.0
MOST_LOOKS = 5
"""Looks within which kubelet must begin to watch the devices after a registration."""
LONGEST_PAUSE_S = 8.0
PATIENCE_S = 10.0
"""Time for kubelet's answer: it connects to the plugin before it answers."""


async def keep_registered(
    folder: Path,
    resource: str,
    options: pb.DevicePluginOptions,
    handler: Handler,
    error_log: ErrorLog,
    *,
    before: Callable[[], Awaitable[None]],
    watched: Callable[[], bool],
    say: Callable[[str], object] = to_stderr,
    look_s: float = LOOK_S,
) -> None:
    """Serves a plugin in kubelet's folder until cancelled; `before` is awaited before each registration.

    `watched` says whether kubelet watches the plugin's devices. If it does not, kubelet has dropped the plugin.
    """
    server: Server | None = None
    registered_with: tuple[int, ...] | None = None
    generation, unwatched, pause_s = 0, 0, look_s
    _remove_sockets(folder, resource)
    try:
        while True:
            kubelet = _identity(folder / KUBELET)
            unwatched = 0 if watched() else unwatched + 1
            if kubelet is None:
                error_log.report(f"no kubelet for {resource}", f"nothing at {folder / KUBELET}; waiting for it")
            elif server is None or kubelet != registered_with or unwatched > MOST_LOOKS or not server.path.exists():
                try:
                    if server is not None and not server.path.exists():
                        await server.stop()
                        server = None
                    if server is None:
                        # Each socket has a name of its own, because the old server may still remove its socket.
                        generation += 1
                        server = await serve(folder / _socket_name(resource, generation), handler)
                    await before()
                    await _register(folder / KUBELET, server.path.name, resource, options)
                    registered_with, unwatched, pause_s = kubelet, 0, look_s
                    say(f"device plugin: kubelet knows {resource} at {server.path.name}")
                except (OSError, RpcError) as error:
                    reason = str(error) or type(error).__name__
                    error_log.report(f"registration of {resource}", f"{reason}; trying again")
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)
    finally:
        if server is not None:
            await server.stop()


async def _register(kubelet: Path, endpoint: str, resource: str, options: pb.DevicePluginOptions) -> None:
    request = pb.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options)
    await call(kubelet, REGISTER, request, pb.Empty, timeout_s=PATIENCE_S)


def _identity(path: Path) -> tuple[int, ...] | None:
    """Which socket it is. The inode's number alone is not enough, since it may be used again."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_ctime_ns


def _socket_name(resource: str, generation: int) -> str:
    return f"{_stem(resource)}-{generation}.sock"


def _stem(resource: str) -> str:
    readable = re.sub(r"[^a-z0-9]+", "-", resource.lower())[:LONGEST_NAME]
    return f"{STEM}{readable}-{hashlib.sha256(resource.encode()).hexdigest()[:8]}"


def _remove_sockets(folder: Path, resource: str) -> None:
    """Removes sockets that a killed agent has left."""
    for path in folder.glob(f"{_stem(resource)}-*.sock"):
        path.unlink(missing_ok=True)


TIDY_S = 30.0
CUT_S = 1.0
"""Pause between two looks at the size of usage regions."""
KNOWN_S = 10.0


def count_resources(settings: Settings, vendor: Vendor) -> tuple[str, ...]:
    """The resources of which kubelet hands out devices on GPUs of this vendor, one for each dialect."""
    return tuple(dialect.handed_out for dialect in settings.dialects if dialect.vendor is vendor)


class Plugins:
    """The device plugins of a node, one for each resource name.

    Create it before any call of gRPC: it may fork, and gRPC does not survive a fork. `machine` and `pods` (all pods of
    this node, in any phase) are called often and must return at once. Without `devices`, kubelet hands out none, and
    all GPUs are given by claims. InputError or CotenantError if the folders of the host cannot be made.
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
        by_cdi: bool = False,
        mps: NodeMps | None = None,
        claims: bool = False,
        devices: bool = True,
        faults: Faults = dict,
        read_claim: ReadClaim | None = None,
        on_watch_change: Callable[[], object] = lambda: None,
        look_s: float = LOOK_S,
        known_s: float = KNOWN_S,
    ) -> None:
        self._resources, self._faults, self._read_claim = tuple(resources), faults, read_claim
        self._look_s = look_s
        self._state = PluginState(
            machine=machine,
            vendor=vendor,
            pods=pods,
            host=host,
            common=prepare(host, find_library()),
            strict=strict,
            by_cdi=strict or by_cdi,
            mps=mps,
            known_s=known_s,
            error_log=error_log,
            on_watch_change=on_watch_change,
            regions=Regions(host.regions.seen),
        )
        self._slices, self._specs = Unclaimed(), Unclaimed()
        self._services = {resource: Service(resource, self._state) for resource in resources if devices}
        self._claim_files = ClaimFiles(host, vendor, self._state.common, strict)
        self._driver = self._make_driver() if claims else None

    def _make_driver(self) -> ClaimDriver:
        state = self._state
        return ClaimDriver(
            self._claim_files,
            state.machine,
            state.pods,
            state.error_log,
            kubelet=state.host.kubelet,
            known_s=state.known_s,
            made=state.regions.hold,
            on_known_change=state.on_watch_change,
            faults=self._faults,
            mps=state.mps,
            read_claim=self._read_claim,
        )

    def pods_changed(self) -> None:
        """Call it in the loop of `run` if a pod of the node has changed."""
        if self._driver is not None:
            self._driver.pods_changed()

    def claims_problem(self) -> str | None:
        """What is wrong with ResourceClaims on this node; None: nothing, or they are not enabled."""
        return None if self._driver is None else self._driver.problem()

    def claims_away(self) -> str | None:
        """Why kubelet could not prepare claims on this node just now; None: it could, or they are not enabled."""
        return None if self._driver is None else self._driver.away()

    @property
    def hands_out_devices(self) -> bool:
        """Whether kubelet hands out devices; if not, all GPUs are given by claims."""
        return bool(self._services)

    def is_watched(self) -> bool:
        """Whether kubelet watches every resource, so that it can start containers with GPUs."""
        return all(service.is_watched() for service in self._services.values())

    async def run(self) -> None:
        """Serves kubelet until cancelled, and then removes the sockets."""
        async with asyncio.TaskGroup() as group:
            for resource, service in self._services.items():
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
            if self._driver is not None:
                group.create_task(self._driver.run())
            group.create_task(self._keep_tidy())
            group.create_task(self._keep_cut())

    def changed(self) -> None:
        """Call it in the loop of `run` if the machine has changed: a GPU's health, one more or fewer."""
        self._state.changed.notify()

    async def listed(self) -> tuple[Listed, ...]:
        """The containers with devices of ours; CotenantError if kubelet does not answer."""
        listed = await list_devices(self._state.host.pod_resources, self._resources)
        self._state.given.compare(listed)
        return listed

    async def tidy(self) -> None:
        """Makes files that a restart of the machine has removed, and removes those of containers that are gone."""
        host, error_log = self._state.host, self._state.error_log
        try:
            listed = await self.listed()
            if self._driver is not None:
                await self._driver.restore()
            # Also if claims were disabled since: the containers that have them run on, and need their limits.
            claims = self._claim_files.slices()
            # Kubelet does not list plain init containers, so nothing is removed while one may run.
            tidy_slices(host, listed, None if any(map(init_sizes, self._state.pods())) else self._slices, claims)
            tidy_specs(host.cdi, listed, self._specs, claims)
        except (CotenantError, OSError) as error:
            error_log.report("tidying", str(error))

    async def _keep_tidy(self) -> None:
        if not self._services:  # a service tidies before it is registered
            await self.tidy()
        while True:
            await asyncio.sleep(TIDY_S)
            await self.tidy()

    async def _keep_cut(self) -> None:
        regions, error_log = self._state.regions, self._state.error_log
        try:
            while True:
                await asyncio.sleep(CUT_S)
                cut = await asyncio.to_thread(regions.cut)  # giving back much memory takes a while
                for name in cut.grown:
                    error_log.report("regions", f"slice {name}: its tenant wrote too much; the file was truncated")
                for error in cut.errors:
                    error_log.report("regions", error)
        finally:
            regions.close()
