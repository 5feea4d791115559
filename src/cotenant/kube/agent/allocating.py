# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What every container with GPUs gets from its node, whichever GPUs its pod's record names.

That is the vGPU library and the file that preloads it, the job library, the agent's socket, the list of its processes,
and a usage region of its own: the only file of the node that it can write to. GPUs are not among it. The answer asks
the vendor's runtime for no GPU, so a container whose pod has no record sees none; the variable of a pod that has a
record is set later and wins.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cotenant.core.model import Gpu, Machine
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.jobs import PROCESSES_NAME
from cotenant.kube.agent.podresources import Listed
from cotenant.kube.agent.proto import deviceplugin_pb2 as pb
from cotenant.kube.codec.paths import (
    AGENT_FOLDER,
    AGENT_SOCKET,
    HOST_LASTING,
    HOST_PASSING,
    JOB_FOLDER,
    LIBRARY_FOLDER,
    PRELOAD_FILE,
    PROCESSES_FOLDER,
    REGION,
)
from cotenant.node.devices.vendors import Vendor
from cotenant.node.job_files import stage_job_library
from cotenant.node.limits import write_read_only
from cotenant.node.preload import preload, stage
from cotenant.node.region import make_region
from cotenant.wire.text import printable

MOST_DEVICES = 32_768
"""Devices of one resource: kubelet accepts messages of 4 MiB, and one device takes up to 80 bytes."""
GRACE_S = 60.0
"""Time that a file may be there before kubelet lists its container."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the host, which the agent in its container may see at another path."""

    seen: Path
    host: Path

    def __truediv__(self, name: str) -> "Folder":
        return Folder(self.seen / name, self.host / name)


def at(path: str | Path) -> Folder:
    """A folder that the agent sees at the same path."""
    return Folder(Path(path), Path(path))


_LASTING, _PASSING = at(HOST_LASTING), at(HOST_PASSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlaces:
    """Folders of a node. The agent creates those that are missing; all belong to root."""

    lasting: Folder = _LASTING
    """Outlives a restart of the machine, as do the containers that have files of it mounted."""
    passing: Folder = _PASSING
    """Does not outlive a restart: it holds what running processes use."""
    kubelet: Path = Path("/var/lib/kubelet")
    """As the agent sees it."""
    cdi: Path = Path("/run/cdi")
    """As the agent sees it; for strict mode."""
    lasting_cdi: Path = Path("/etc/cdi")
    """As the agent sees it; the vendor's tool may have written here as well."""

    @property
    def library(self) -> Folder:
        return self.lasting / "lib"

    @property
    def agent(self) -> Folder:
        """Holds the socket that jobs connect to."""
        return self.passing / "agent"

    @property
    def slices(self) -> Folder:
        """Holds a folder for each slice, which the tenant can read."""
        return self.passing / "slices"

    @property
    def regions(self) -> Folder:
        """Holds the usage region of each slice, which the tenant can write to."""
        return self.passing / "regions"

    @property
    def mps(self) -> Folder:
        """Holds a folder for each GPU with MPS, and the socket of the MPS supervisor."""
        return self.passing / "mps"

    @property
    def plugins(self) -> Path:
        return self.kubelet / "device-plugins"

    @property
    def cdi_folders(self) -> tuple[Path, ...]:
        return self.cdi, self.lasting_cdi

    @property
    def pod_resources(self) -> Path:
        return self.kubelet / "pod-resources" / "kubelet.sock"


_Made = tuple[Path, int, int]
"""Path, inode and time of change: the same name may be used again for another container."""


class Unclaimed:
    """Removes files that no container has claimed for a while, since kubelet lists a container only after its start.

    The age of a file is measured here and not taken from its time stamp: if the machine's clock is set forward, a
    container that is just being started would lose its files.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[_Made, float] = {}

    def remove(self, paths: Iterable[Path]) -> None:
        """Takes all files that are unclaimed now; removes those that have been for longer than the grace period."""
        now = self._clock()
        self._since = {made: self._since.get(made, now) for made in map(_made, paths)}
        for made, since in self._since.items():
            if now - since > GRACE_S:
                path = made[0]
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _made(path: Path) -> _Made:
    seen = path.stat()
    return path, seen.st_ino, seen.st_mtime_ns


CommonMounts = tuple[pb.Mount, ...]


def prepare(host: HostPlaces, library: Path | None) -> CommonMounts:
    """Installs what is the same for all containers; must run before gRPC is used, since it may fork.

    Without the vGPU library nothing is preloaded, and the limits of containers are not enforced.
    """
    mounts = [pb.Mount(container_path=str(AGENT_FOLDER), host_path=str(host.agent.host), read_only=True)]
    try:
        host.agent.seen.mkdir(mode=0o755, parents=True, exist_ok=True)
        for folder in (host.slices, host.regions):
            folder.seen.mkdir(mode=0o700, parents=True, exist_ok=True)
        job = str((host.library / stage_job_library(host.library.seen).name).host)
        mounts.append(pb.Mount(container_path=str(JOB_FOLDER), host_path=job, read_only=True))
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
    resource: str, ids: Sequence[str], machine: Machine, vendor: Vendor, host: HostPlaces, common: CommonMounts
) -> pb.ContainerAllocateResponse:
    """What one container gets; InputError if the node has no such device, CotenantError if files cannot be made."""
    if not ids:
        raise InputError(f"{resource}: the request names no device")
    gpus = {gpu.uuid: device_ids(gpu, machine) for gpu in machine.gpus if gpu.uuid in set(map(gpu_of, ids))}
    for device in ids:
        if device not in gpus.get(gpu_of(device), ()):
            raise InputError(f"{resource}: there is no device {printable(device[:80])!r} here")
    name = slice_name(resource, ids)
    _make_slice(host, name)
    return pb.ContainerAllocateResponse(
        envs={**no_gpus(vendor), "COTENANT_AGENT": str(AGENT_SOCKET)}, mounts=[*common, *own_mounts(host, name)]
    )


def own_mounts(host: HostPlaces, name: str) -> tuple[pb.Mount, ...]:
    """What the containers of one slice have for themselves."""
    # Only the file is mounted: in a folder, root in a container could make links, pipes and any number of files.
    region = (host.regions / name).host
    processes = (host.slices / name / PROCESSES_NAME).host
    return (
        pb.Mount(container_path=str(REGION), host_path=str(region), read_only=False),
        pb.Mount(container_path=str(PROCESSES_FOLDER), host_path=str(processes), read_only=True),
    )


def no_gpus(vendor: Vendor) -> dict[str, str]:
    """The variable by which the vendor's container runtime brings in no GPU; empty if it needs none for that."""
    row = vendor.row
    return {row.runtime_variable: row.runtime_none} if row.runtime_variable and row.runtime_none else {}


def renew_slice(host: HostPlaces, resource: str, ids: Iterable[str]) -> None:
    """Makes an empty slice for a container that is about to start, at the path that it was promised.

    Kubelet sometimes gives a device to two containers. The one with the older file keeps it for itself.
    """
    _make_slice(host, slice_name(resource, ids))


def device_ids(gpu: Gpu, machine: Machine) -> list[str]:
    """The device IDs of one GPU."""
    return [f"{gpu.uuid}::{k}" for k in range(min(gpu.slots, MOST_DEVICES // len(machine.gpus)))]


def gpu_of(device: str) -> str:
    """The UUID of the GPU in a device ID."""
    return device.rpartition("::")[0]


def slice_name(resource: str, ids: Iterable[str]) -> str:
    """The folder of the container that has these devices, in whatever order kubelet names them."""
    return hashlib.sha256(f"{resource} {min(ids)}".encode()).hexdigest()[:32]


def tidy_slices(
    host: HostPlaces,
    listed: Iterable[Listed],
    unclaimed: Unclaimed | None = None,
    others: Iterable[str] = (),
) -> None:
    """Makes slices that a restart of the machine has removed, and removes those of containers that are gone.

    Without `unclaimed`, none is removed. `others` are slices that stay.
    """
    held = set(others)
    for one in listed:
        held |= {slice_name(one.resource, [device]) for device in one.devices}
        name = slice_name(one.resource, one.devices)
        ensure_slice(host, name)
    if unclaimed is not None:
        made = chain(host.slices.seen.iterdir(), host.regions.seen.iterdir())
        unclaimed.remove(path for path in made if path.name not in held)


def ensure_slice(host: HostPlaces, name: str) -> None:
    """Makes a slice, unless it is there; a container runtime makes a folder of a missing mount source."""
    if not (host.regions.seen / name).is_file() or not (host.slices.seen / name).is_dir():
        _make_slice(host, name)


def remove_slice(host: HostPlaces, name: str) -> None:
    """Removes a slice, if it is there; OSError if it cannot be removed."""
    (host.regions.seen / name).unlink(missing_ok=True)
    if (host.slices.seen / name).exists():
        shutil.rmtree(host.slices.seen / name)


def _make_slice(host: HostPlaces, name: str) -> None:
    """Makes a folder and an empty region, and removes what another container left there."""
    folder, region = host.slices.seen / name, host.regions.seen / name
    try:
        for left in (folder, region):
            if left.is_dir():
                shutil.rmtree(left)
        folder.mkdir()
        folder.chmod(0o755)  # whatever the umask is: the container may run as any user
        (folder / PROCESSES_NAME).mkdir()
        (folder / PROCESSES_NAME).chmod(0o755)
        make_region(region, mode=0o666)
    except OSError as error:
        raise CotenantError(f"{error.filename or region}: a slice cannot be made there: {error.strerror}") from None


def _write_preload(path: Path) -> None:
    content = f"{preload(LIBRARY_FOLDER)}\n"
    if not path.is_file() or path.read_text() != content:  # containers have this very file mounted, so keep it
        write_read_only(path, content)
