# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What every container with GPUs gets from its node, whichever GPUs its pod's record names.

That is the vGPU library and the file that preloads it, the agent's socket, and a file of its own in which its
processes write down what they use: the only thing of its node that it can write to. GPUs are not among it: `void` here
means that a container whose pod has no record sees none, while the variable of a pod that has one comes later and wins.
"""

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.model import Gpu, Machine
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.podresources import Listed
from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.agent.unclaimed import Unclaimed
from cotenant.kube.codec.paths import (
    AGENT_FOLDER,
    AGENT_SOCKET,
    HOST_LASTING,
    HOST_PASSING,
    LIBRARY_FOLDER,
    PRELOAD_FILE,
    REGION,
)
from cotenant.node.limits import write_read_only
from cotenant.node.preload import preload, stage
from cotenant.node.region import cut_region, make_region
from cotenant.wire.text import printable

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID = "void"
MOST_DEVICES = 32_768
"""of one resource: kubelet takes messages of 4 MiB, and one device is up to 80 bytes of it"""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the host, which the agent in its container may see elsewhere."""

    seen: Path
    host: Path

    def __truediv__(self, name: str) -> "Folder":
        return Folder(self.seen / name, self.host / name)


def at(path: str | Path) -> Folder:
    """A folder that the agent sees where it is."""
    return Folder(Path(path), Path(path))


_LASTING, _PASSING = at(HOST_LASTING), at(HOST_PASSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlaces:
    """Where things are on a node. The agent makes what is missing; all of it is root's."""

    lasting: Folder = _LASTING
    """outlives a restart of the machine, as containers do that are told of it"""
    passing: Folder = _PASSING
    """does not: what running processes use"""
    kubelet: Path = Path("/var/lib/kubelet")
    """as the agent sees it"""
    cdi: Path = Path("/run/cdi")
    """as the agent sees it; for strict mode"""
    lasting_cdi: Path = Path("/etc/cdi")
    """as the agent sees it; where the vendor's tool may have written as well"""

    @property
    def library(self) -> Folder:
        return self.lasting / "lib"

    @property
    def agent(self) -> Folder:
        """where the socket is that jobs connect to"""
        return self.passing / "agent"

    @property
    def slices(self) -> Folder:
        return self.passing / "slices"

    @property
    def plugins(self) -> Path:
        return self.kubelet / "device-plugins"

    @property
    def cdi_folders(self) -> tuple[Path, ...]:
        return self.cdi, self.lasting_cdi

    @property
    def pod_resources(self) -> Path:
        return self.kubelet / "pod-resources" / "kubelet.sock"


CommonMounts = tuple[pb.Mount, ...]


def prepare(host: HostPlaces, library: Path | None) -> CommonMounts:
    """Puts in place what is the same for all containers; to be called before gRPC is used, since it may fork.

    Without the vGPU library there is nothing to preload, and nothing that holds containers to their limits.
    """
    mounts = [pb.Mount(container_path=str(AGENT_FOLDER), host_path=str(host.agent.host), read_only=True)]
    try:
        host.agent.seen.mkdir(mode=0o755, parents=True, exist_ok=True)
        host.slices.seen.mkdir(mode=0o700, parents=True, exist_ok=True)
        if library is not None:
            staged = stage(library, host.library.seen).name
            _write_preload(host.library.seen / PRELOAD_FILE.name)
            for place, name in ((LIBRARY_FOLDER, staged), (PRELOAD_FILE, PRELOAD_FILE.name)):
                source = str((host.library / name).host)
                mounts.append(pb.Mount(container_path=str(place), host_path=source, read_only=True))
    except OSError as error:
        raise CotenantError(f"{error.filename}: cannot be made: {error.strerror}") from None
    return tuple(mounts)


def answer_for(
    resource: str, ids: Sequence[str], machine: Machine, host: HostPlaces, common: CommonMounts
) -> pb.ContainerAllocateResponse:
    """What one container gets; InputError where a slot is not of this node, CotenantError where nothing can be made."""
    if not ids:
        raise InputError(f"{resource}: asked for no device at all")
    cards = {gpu.uuid: device_ids(gpu, machine) for gpu in machine.gpus if gpu.uuid in set(map(card_of, ids))}
    for device in ids:
        if device not in cards.get(card_of(device), ()):
            raise InputError(f"{resource}: there is no device {printable(device[:80])!r} here")
    name = slice_name(resource, ids)
    _make_slice(host.slices.seen / name)
    # The file alone: in a folder, root in a container could make links, pipes and as many files as it likes.
    region = (host.slices / name / REGION.name).host
    own = pb.Mount(container_path=str(REGION), host_path=str(region), read_only=False)
    told = {VISIBLE: VOID, "COTENANT_AGENT": str(AGENT_SOCKET)}
    return pb.ContainerAllocateResponse(envs=told, mounts=[*common, own])


def renew_slice(host: HostPlaces, resource: str, ids: Iterable[str]) -> None:
    """An empty slice for a container that is about to be made, with the file that it was promised.

    Kubelet now and then gives a slot to two containers: whoever has the older file keeps it, and it is nobody else's.
    """
    _make_slice(host.slices.seen / slice_name(resource, ids))


def device_ids(gpu: Gpu, machine: Machine) -> list[str]:
    """The slots of one card, as kubelet knows them."""
    return [f"{gpu.uuid}::{k}" for k in range(min(gpu.slots, MOST_DEVICES // len(machine.gpus)))]


def card_of(device: str) -> str:
    """The UUID in a slot's ID."""
    return device.rpartition("::")[0]


def slice_name(resource: str, ids: Iterable[str]) -> str:
    """The folder of the container that has these slots; kubelet sorts them in no way."""
    return hashlib.sha256(f"{resource} {min(ids)}".encode()).hexdigest()[:32]


def region_of(host: HostPlaces, resource: str, ids: Iterable[str]) -> Path:
    """Where the processes of the container with these slots write down what they use, as the agent sees it."""
    return host.slices.seen / slice_name(resource, ids) / REGION.name


def tidy_slices(host: HostPlaces, listed: Iterable[Listed], unclaimed: Unclaimed | None = None) -> None:
    """Makes what a container's slice has lost (the machine was restarted), and removes slices that nobody has, unless
    none may be removed now."""
    held = set()
    for one in listed:
        held |= {slice_name(one.resource, [device]) for device in one.devices}
        folder = host.slices.seen / slice_name(one.resource, one.devices)
        if not (folder / REGION.name).is_file():  # a runtime makes a folder of what is not there
            _make_slice(folder)
    if unclaimed is not None:
        unclaimed.remove(path for path in host.slices.seen.iterdir() if path.name not in held)


def cut_regions(host: HostPlaces) -> list[str]:
    """Cuts off what tenants have added to their regions, which would fill the memory of the node; says which did."""
    grown, failed = [], None
    for path in sorted(host.slices.seen.glob(f"*/{REGION.name}")):
        try:
            if cut_region(path):
                grown.append(path.parent.name)
        except FileNotFoundError:  # it has just been removed
            continue
        except OSError as error:  # of one tenant: the others' regions are cut all the same
            failed = error
    if failed is not None and not grown:
        raise failed
    return grown


def _make_slice(folder: Path) -> None:
    """A folder with an empty region in it, whoever had the slot before."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        folder.chmod(0o755)  # whatever the umask says: the container's user may be any
        make_region(folder / REGION.name, mode=0o666)
    except OSError as error:
        raise CotenantError(f"{folder}: a slice cannot be made there: {error.strerror}") from None


def _write_preload(path: Path) -> None:
    content = f"{preload(LIBRARY_FOLDER)}\n"
    if not path.is_file() or path.read_text() != content:  # a container has the file itself: it is left alone
        write_read_only(path, content)
