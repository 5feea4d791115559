# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The driver that kubelet calls before the containers of a ResourceClaim start, and after they have ended.

Nothing is decided here: what a claim has is in the record of its pod, which only the scheduler writes. A claim whose
pod has no record is not prepared, whichever program allocated it, so its pod does not start. The exception are claims
with `adminAccess`, which show GPUs to administrators and take nothing: kube-scheduler allocates them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from cotenant.core.model import Machine
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.claim_files import ClaimFiles, PreparedClaim
from cotenant.kube.agent.claim_health import SERVICE as HEALTH
from cotenant.kube.agent.claim_health import Faults, health_handler
from cotenant.kube.agent.claim_uses import GivenClaim, chosen_use, in_use, shared_besides, users_of
from cotenant.kube.agent.mps import NodeMps
from cotenant.kube.agent.proto import dra_pb2 as pb
from cotenant.kube.agent.proto import pluginregistration_pb2 as watcher
from cotenant.kube.agent.rpc import Context, Handler, RpcError, Server, handler_for, serve
from cotenant.kube.api.claims import ResourceClaim
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.claims import DRIVER, device_name, devices_for_admins
from cotenant.wire.text import printable

SERVICE, REGISTRATION = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "pluginregistration.Registration"
PLUGIN_TYPE, VERSIONS = "DRAPlugin", ("v1.DRAPlugin", HEALTH)
REGISTRATIONS = f"{DRIVER}-*.sock"
"""Our sockets in kubelet's folder of registrations."""
LOOK_S = 0.1
"""Seconds between two checks whether the API server has reported a pod."""
AGAIN_S = 5.0
UNKNOWN_S = 30.0
"""Kubelet looks into the folder of registrations at once; if it has not for so long, it serves no claims."""

Pods = Callable[[], Iterable[Pod]]
ReadClaim = Callable[[str, str], Awaitable[ResourceClaim]]
"""Reads a claim by namespace and name from the API server; CotenantError if it cannot."""


def folders_in(kubelet: Path) -> tuple[Path, Path]:
    """The folder of our driver, and kubelet's folder of registrations."""
    return kubelet / "plugins" / DRIVER, kubelet / "plugins_registry"


class ClaimDriver:
    """Serves kubelet while `run` runs. `machine` and `pods` (all pods of this node) must return at once."""

    def __init__(
        self,
        files: ClaimFiles,
        machine: Callable[[], Machine],
        pods: Pods,
        error_log: ErrorLog,
        *,
        kubelet: Path,
        known_s: float,
        made: Callable[[], object] = lambda: None,
        on_known_change: Callable[[], object] = lambda: None,
        faults: Faults = dict,
        mps: NodeMps | None = None,
        read_claim: ReadClaim | None = None,
        say: Callable[[str], object] = to_stderr,
    ) -> None:
        """`made` is called after a usage region was made, `on_known_change` if kubelet has registered the driver, or
        not any more; a claim waits `known_s` until its pod is known."""
        self._files, self._machine, self._pods, self._error_log = files, machine, pods, error_log
        self._kubelet, self._known_s, self._made, self._say = kubelet, known_s, made, say
        self._endpoint, self._on_known_change = Path(), on_known_change
        self._mps, self._read_claim = mps, read_claim
        self._health = health_handler(machine, faults)
        self._known, self._since = False, time.monotonic()
        self._refusal = ""

    @property
    def handler(self) -> Handler:
        return handler_for(
            SERVICE,
            {
                "NodePrepareResources": (self.prepare, pb.NodePrepareResourcesRequest),
                "NodeUnprepareResources": (self.unprepare, pb.NodeUnprepareResourcesRequest),
            },
            {},
        )

    @property
    def registration(self) -> Handler:
        return handler_for(
            REGISTRATION,
            {
                "GetInfo": (self.get_info, watcher.InfoRequest),
                "NotifyRegistrationStatus": (self.registered, watcher.RegistrationStatus),
            },
            {},
        )

    def away(self) -> str | None:
        """Why kubelet could not have a claim prepared here just now; None if it could."""
        if self._known:
            return None
        return f"kubelet has not registered driver {DRIVER}{': ' if self._refusal else ''}{self._refusal}"

    def problem(self) -> str | None:
        """Why kubelet has no claims prepared here; None: it does, or was not asked for long."""
        if self._known or time.monotonic() < self._since + UNKNOWN_S:
            return None
        why = self._refusal or "it may be older than Kubernetes 1.34, or have DynamicResourceAllocation disabled"
        return f"kubelet has not registered driver {DRIVER}, so pods with ResourceClaims get no GPUs here: {why}"

    async def run(self) -> NoReturn:
        """Serves kubelet until cancelled. Kubelet watches the folder of registrations, also after it restarts."""
        folder, watched = folders_in(self._kubelet)
        while True:
            servers: list[Server] = []
            try:
                for old in (*folder.glob("*.sock"), *watched.glob(REGISTRATIONS)):
                    old.unlink(missing_ok=True)  # of an agent that was killed, or is about to end
                folder.mkdir(mode=0o750, parents=True, exist_ok=True)
                name = f"{time.time_ns():x}.sock"  # its own, because the old agent may still remove its socket
                self._endpoint = folder / name
                servers.append(await serve(self._endpoint, self.handler, self._health))
                self._known, self._since = False, time.monotonic()
                self._on_known_change()
                servers.append(await serve(watched / f"{DRIVER}-{name}", self.registration))
                while all(server.path.exists() for server in servers):
                    await asyncio.sleep(AGAIN_S)
            except (OSError, RpcError) as error:
                self._error_log.report("claims", f"{error}; trying again")
                await asyncio.sleep(AGAIN_S)
            finally:
                for server in reversed(servers):
                    await server.stop()

    async def get_info(self, request: watcher.InfoRequest, context: Context) -> watcher.PluginInfo:
        return watcher.PluginInfo(
            type=PLUGIN_TYPE, name=DRIVER, endpoint=str(self._endpoint), supported_versions=VERSIONS
        )

    async def registered(
        self, request: watcher.RegistrationStatus, context: Context
    ) -> watcher.RegistrationStatusResponse:
        self._known, self._refusal = request.plugin_registered, printable(request.error[:200])
        self._on_known_change()
        if request.plugin_registered:
            self._say(f"driver: kubelet knows {DRIVER}")
        else:
            self._error_log.report("claims", f"kubelet refused {DRIVER}: {self._refusal}")
        return watcher.RegistrationStatusResponse()

    async def prepare(
        self, request: pb.NodePrepareResourcesRequest, context: Context
    ) -> pb.NodePrepareResourcesResponse:
        answers = await asyncio.gather(*(self._prepared(claim) for claim in request.claims))
        uids = (claim.uid for claim in request.claims)
        return pb.NodePrepareResourcesResponse(claims=dict(zip(uids, answers, strict=True)))

    async def unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        return pb.NodeUnprepareResourcesResponse(
            claims={claim.uid: self._unprepared(claim) for claim in request.claims}
        )

    async def _prepared(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        try:
            gpus, device = await self._given(claim)
        except CotenantError as error:
            self._error_log.report(f"claim {claim.namespace}/{claim.name}", str(error))
            return pb.NodePrepareResourceResponse(error=str(error))
        self._made()
        pool = self._machine().name
        return pb.NodePrepareResourceResponse(
            devices=[
                # One CDI device has everything, so it is named once.
                pb.Device(pool_name=pool, device_name=name, cdi_device_ids=[] if place or device is None else [device])
                for place, name in enumerate(dict.fromkeys(map(device_name, gpus)))
            ]
        )

    async def _given(self, claim: pb.Claim) -> tuple[tuple[str, ...], str | None]:
        """The GPUs of a claim, and the CDI device with everything that it brings."""
        users = await self._users(claim)
        try:
            use = self._checked(chosen_use(claim.uid, users))
        except InputError:
            if not (gpus := await self._shown(claim)):
                raise
            prepared = PreparedClaim(uid=claim.uid, pod=users[0][0].metadata.uid, number=0, carries=False, admin=gpus)
            return gpus, self._files.prepare_for_admin(prepared)
        return use.gpus, await self._make(use)

    async def _shown(self, claim: pb.Claim) -> tuple[str, ...]:
        """The GPUs that a claim shows to an administrator; none if it is another claim."""
        found = None if self._read_claim is None else await self._read_claim(claim.namespace, claim.name)
        if found is None or found.metadata.uid != claim.uid:
            return ()
        machine = self._machine()
        names = devices_for_admins(found, machine.name)
        gpus = tuple(gpu.uuid for gpu in machine.gpus if device_name(gpu.uuid) in names)
        if len(gpus) < len(names):
            raise CotenantError(f"this node has no GPU {min(names - set(map(device_name, gpus)))}")
        return gpus

    async def _make(self, use: GivenClaim) -> str | None:
        more = {} if self._mps is None or not use.carries else await self._mps.start(use.pod, use.shares)
        prepared = PreparedClaim(uid=use.uid, pod=use.pod.metadata.uid, number=use.number, carries=use.carries)
        return self._files.prepare(prepared, use.pod, use.shares, more)

    def _unprepared(self, claim: pb.Claim) -> pb.NodeUnprepareResourceResponse:
        try:
            self._files.unprepare(claim.uid)
        except CotenantError as error:
            self._error_log.report(f"claim {claim.namespace}/{claim.name}", str(error))
            return pb.NodeUnprepareResourceResponse(error=str(error))
        return pb.NodeUnprepareResourceResponse()

    async def _users(self, claim: pb.Claim) -> list[tuple[Pod, str]]:
        """The pods that use a claim, and its name in each; CotenantError if there are none.

        Waits, since kubelet may know a pod earlier than the agent.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._known_s
        while not (users := users_of(claim.namespace, claim.name, self._pods())):
            if loop.time() >= until:
                raise CotenantError(f"no pod of this node that uses ResourceClaim {claim.name} is known")
            await asyncio.sleep(LOOK_S)
        return users

    def _checked(self, use: GivenClaim) -> GivenClaim:
        """The same; CotenantError if this node cannot give it."""
        here = {gpu.uuid for gpu in self._machine().gpus}
        if absent := [gpu for gpu in use.gpus if gpu not in here]:
            raise CotenantError(f"this node has no GPU {absent[0]}")
        if shared := shared_besides(use, self._pods()):
            raise InputError(
                f"pod {use.pod.metadata.name} uses a ResourceClaim of pod {shared} and another one in one container; a"
                " claim that several pods share must be the only claim to GPUs of its containers"
            )
        return use

    def pods_changed(self) -> None:
        """Writes the limits of claims whose pods were resized."""
        for claim, use in in_use(self._files.prepared(self._report), self._pods()):
            with self._reported():
                if claim.carries:
                    self._files.write_limits(claim, use.pod, use.number)

    async def restore(self) -> None:
        """Makes files of prepared claims again that were removed, because their containers may start again."""
        broken = [claim for claim in self._files.prepared(self._report) if not self._files.is_whole(claim)]
        for _, use in in_use(broken, self._pods()):
            with self._reported():
                await self._make(use)
        for claim in broken:
            with self._reported():
                if claim.admin:
                    self._files.prepare_for_admin(claim)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """A claim whose files cannot be written keeps no other from its own."""
        try:
            yield
        except (CotenantError, OSError) as error:
            self._report(str(error))

    def _report(self, text: str) -> None:
        self._error_log.report("claims", text)
