# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The device plugins of a node in a folder, with a kubelet beside them."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from cotenant.core.model import ContainerKind, Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.agent.allocating import Folder, HostPlaces, at, slice_name
from cotenant.kube.agent.claim_driver import ReadClaim
from cotenant.kube.agent.plugin import Plugins
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import RECORD, Held, Record, Share, encode_record
from cotenant.node.devices.vendors import Vendor
from tests.kube.agent.kubelet import Kubelet, kubelet_in, until
from tests.kube.pods import UID, pod

GPU, COUNT = "nvidia.com/gpu", "aliyun.com/gpu-count"
MACHINE = Machine(
    name="n1",
    gpus=(
        Gpu(uuid="GPU-a", memory=MiB(1000), slots=3, numa=0),
        Gpu(uuid="GPU-b", memory=MiB(1000), slots=2, numa=1),
        Gpu(uuid="GPU-c", memory=MiB(1000), slots=2),
    ),
)


@dataclass
class Node:
    """What the agent around the plugins knows."""

    folder: Path
    machine: Machine = MACHINE
    pods: list[Pod] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """what went wrong"""

    @property
    def host(self) -> HostPlaces:
        return HostPlaces(
            lasting=at(self.folder / "lasting"),
            passing=Folder(seen=self.folder / "passing", host=Path("/host/passing")),
            kubelet=self.kubelet,
            cdi=self.folder / "cdi",
            lasting_cdi=self.folder / "lasting-cdi",
        )

    @property
    def kubelet(self) -> Path:
        return self.folder / "kubelet"

    @asynccontextmanager
    async def plugins(
        self,
        resources: Sequence[str] = (GPU,),
        *,
        strict: bool = False,
        by_cdi: bool = False,
        claims: bool = False,
        devices: bool = True,
        read_claim: ReadClaim | None = None,
        known_s: float = 20.0,
    ) -> AsyncIterator[Plugins]:
        """The plugins at work."""
        plugins = Plugins(
            lambda: self.machine,
            Vendor.NVIDIA,
            resources,
            self.host,
            lambda: self.pods,
            ErrorLog(self.said.append),
            strict=strict,
            by_cdi=by_cdi,
            claims=claims,
            devices=devices,
            read_claim=read_claim,
            look_s=0.05,
            known_s=known_s,
        )
        task = asyncio.create_task(plugins.run())
        try:
            yield plugins
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    """A node without a kubelet, in a folder with a short name, since paths of sockets must be short."""
    folder = Path(mkdtemp(prefix="node-"))
    try:
        yield Node(folder)
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def registered(
    *, strict: bool = False, by_cdi: bool = False, machine: Machine = MACHINE
) -> AsyncIterator[tuple[Node, Kubelet]]:
    """A node whose kubelet knows its GPUs."""
    async with node() as here, kubelet_in(here.kubelet) as kubelet:
        here.machine = machine
        async with here.plugins(strict=strict, by_cdi=by_cdi):
            await until(lambda: GPU in kubelet.devices)
            yield here, kubelet


def held(number: int, *gpus: str, kind: ContainerKind = ContainerKind.APP) -> Held:
    return Held(number=number, kind=kind, gpus=tuple(Share(gpu=gpu, memory=1, compute=0) for gpu in gpus))


def record(*containers: Held) -> Record:
    return Record(pod=UID, node="n1", containers=containers)


def bound(name: str, *containers: Held, init: int = 0, **metadata: str) -> Pod:
    """A pod that was just bound here; its first containers are init containers."""
    asked = [{GPU: str(len(one.gpus))} for one in containers]
    annotations = {RECORD: encode_record(record(*containers))} if containers else {}
    one = pod(*asked[init:], init=asked[:init], annotations=annotations, node="n1")
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, name=name, **metadata))


def region_of(host: HostPlaces, resource: str, ids: Iterable[str]) -> Path:
    """The usage region of the container with these devices, as the agent sees it."""
    return host.regions.seen / slice_name(resource, ids)
