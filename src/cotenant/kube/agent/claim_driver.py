# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The driver that kubelet calls before the containers of a ResourceClaim start, and after they have ended.

Nothing is decided here: what a claim has is in the record of its pod, which only the scheduler writes. A claim whose
pod has no record is not prepared, whichever program allocated it, so its pod does not start.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from cotenant.core.model import Machine
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.claim_files import ClaimFiles, PreparedClaim
from cotenant.kube.agent.proto import dra_pb2 as pb
from cotenant.kube.agent.proto import pluginregistration_pb2 as watcher
from cotenant.kube.agent.rpc import Context, Handler, RpcError, Server, handler_for, serve
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import Share, record_of
from cotenant.kube.codec.claims import DRIVER, claim_names, device_name, holder_of
from cotenant.kube.codec.request import container_names
from cotenant.wire.text import printable

SERVICE, REGISTRATION = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "pluginregistration.Registration"
PLUGIN_TYPE, VERSIONS = "DRAPlugin", ("v1.DRAPlugin",)
REGISTRATIONS = f"{DRIVER}-*.sock"
"""Our sockets in kubelet's folder of registrations."""
LOOK_S = 0.1
"""Seconds between two checks whether the API server has reported a pod."""
AGAIN_S = 5.0

Pods = Callable[[], Iterable[Pod]]


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
        say: Callable[[str], object] = to_stderr,
    ) -> None:
        """`made` is called after a usage region was made; a claim waits `known_s` until its pod is known."""
        self._files, self._machine, self._pods, self._error_log = files, machine, pods, error_log
        self._kubelet, self._known_s, self._made, self._say = kubelet, known_s, made, say
        self._endpoint = Path()

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
                servers.append(await serve(self._endpoint, self.handler))
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
        if request.plugin_registered:
            self._say(f"driver: kubelet knows {DRIVER}")
        else:
            self._error_log.report("claims", f"kubelet refused {DRIVER}: {printable(request.error[:200])}")
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
            pod, number, shares = await self._owner(claim)
            prepared = PreparedClaim(uid=claim.uid, pod=pod.metadata.uid, number=number)
            device = self._files.prepare(prepared, pod, shares)
        except CotenantError as error:
            self._error_log.report(f"claim {claim.namespace}/{claim.name}", str(error))
            return pb.NodePrepareResourceResponse(error=str(error))
        self._made()
        pool = self._machine().name
        return pb.NodePrepareResourceResponse(
            devices=[
                # One CDI device has everything, so it is named once.
                pb.Device(pool_name=pool, device_name=device_name(share.gpu), cdi_device_ids=[] if place else [device])
                for place, share in enumerate(shares)
            ]
        )

    def _unprepared(self, claim: pb.Claim) -> pb.NodeUnprepareResourceResponse:
        try:
            self._files.unprepare(claim.uid)
        except CotenantError as error:
            self._error_log.report(f"claim {claim.namespace}/{claim.name}", str(error))
            return pb.NodeUnprepareResourceResponse(error=str(error))
        return pb.NodeUnprepareResourceResponse()

    async def _owner(self, claim: pb.Claim) -> tuple[Pod, int, tuple[Share, ...]]:
        """The pod of a claim, the number of its container and what that was given; CotenantError if it has no record.

        Waits, since kubelet may know a pod earlier than the agent.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._known_s
        while not (users := list(self._users(claim))):
            if loop.time() >= until:
                raise CotenantError(f"no pod of this node that uses ResourceClaim {claim.name} is known")
            await asyncio.sleep(LOOK_S)
        if len(users) > 1:
            names = ", ".join(sorted(pod.metadata.name for pod, _ in users))
            raise InputError(f"pods {names} use one ResourceClaim, which serves one pod at a time")
        ((pod, name),) = users
        record = record_of(pod)
        numbers = {container: number for number, container in enumerate(container_names(pod))}
        number = numbers[holder_of(pod, name)]
        shares = () if record is None else record.held_by(number)
        if not shares:
            raise InputError(
                f"pod {pod.metadata.name} has no GPUs by cotenant's scheduler for this ResourceClaim, which another"
                " program allocated; delete the pod, and let cotenant allocate the claim"
            )
        here = {gpu.uuid for gpu in self._machine().gpus}
        if absent := [share.gpu for share in shares if share.gpu not in here]:
            raise CotenantError(f"this node has no GPU {absent[0]}")
        return pod, number, shares

    def _users(self, claim: pb.Claim) -> Iterable[tuple[Pod, str]]:
        """The pods that use a claim, and its name within each."""
        for pod in self._pods():
            if pod.metadata.namespace == claim.namespace and not has_ended(pod):
                yield from ((pod, name) for name, real in claim_names(pod).items() if real == claim.name)

    def pods_changed(self) -> None:
        """Writes the limits of claims whose pods were resized."""
        pods = {pod.metadata.uid: pod for pod in self._pods()}
        try:
            for claim in self._files.prepared():
                if claim.pod in pods:
                    self._files.write_limits(claim, pods[claim.pod])
        except (CotenantError, OSError) as error:
            self._error_log.report("claims", str(error))
