# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Strict mode, for container runtimes that bring GPUs in by CDI and ignore the vendor's variable.

A container is promised a CDI device whose name follows from its device IDs. Just before the container starts, kubelet
calls the plugin once more. By then kubelet lists which pod has these device IDs, so the pod is known for certain, and
the GPUs of its record are written down as that CDI device.
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from cotenant.core.model import ContainerKind
from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import Unclaimed
from cotenant.kube.agent.podresources import Listed, PodKey
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import Share, record_of
from cotenant.kube.codec.request import container_names
from cotenant.node.devices.vendors import Vendor
from cotenant.node.limits import write_read_only

KIND = "cotenant.io/gpu"
PREFIX = "cotenant.io-gpu_"
"""Of the names of our own CDI files."""
MOST_BYTES = 4 * 1024 * 1024
OLDEST = "0.5.0"
"""Version of CDI that can express device nodes and variables."""
COMMON_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_SUFFIX = ".json"
SPECS = f"{PREFIX}*{_SUFFIX}"
"""All our CDI devices."""
_Edits = dict[str, list[Any]]
"""CDI's `containerEdits`: env, deviceNodes, mounts and hooks, each a list."""


class Owned(NamedTuple):
    """The GPUs of a container."""

    gpus: tuple[str, ...]
    sure: bool
    """False: GPUs of another container of its pod may be among them, and only the container's variable is exact."""
    shares: tuple[Share, ...] = ()
    """What it was given of them; if it is not sure, also what the other container was given."""


NOTHING = Owned((), sure=True)
UNSURE = Owned((), sure=False)


# Which container it is


def holders_of(resource: str, ids: frozenset[str], listed: Iterable[Listed]) -> set[PodKey]:
    """The pods that have some of these devices: several if kubelet gave a device away twice."""
    return {one.key for one in listed if one.resource == resource and one.devices & ids}


def pod_with(resource: str, ids: frozenset[str], listed: Iterable[Listed], pods: Iterable[Pod]) -> Pod | None:
    """The pod whose container has these devices; None if it is not known (yet)."""
    keys = holders_of(resource, ids, listed)
    found = [pod for pod in pods if (pod.metadata.namespace, pod.metadata.name) in keys]
    # A pod that has ended or is being deleted is an older one of the same name.
    alive = [pod for pod in found if not has_ended(pod) and pod.metadata.deletion_timestamp is None]
    return alive[0] if len(keys) == 1 and len(alive) == 1 else None


def owned_by(pod: Pod, resource: str, ids: frozenset[str], listed: Iterable[Listed]) -> Owned:
    """The GPUs of the pod's container with these devices; InputError if the record is not valid for this pod.

    Kubelet does not list plain init containers and uses their devices again, so one of them may be meant as well.
    """
    record = record_of(pod)
    if record is None:
        return NOTHING
    numbers = {name: number for number, name in enumerate(container_names(pod))}
    key = (pod.metadata.namespace, pod.metadata.name)
    named = {
        numbers.get(one.container) for one in listed if (one.key, one.resource, one.devices) == (key, resource, ids)
    }
    held = [
        held.gpus
        for held in record.containers
        if held.number in named or (held.kind is ContainerKind.INIT and len(held.gpus) == len(ids))
    ]
    possible = {tuple(share.gpu for share in shares) for shares in held}
    return Owned(
        tuple(dict.fromkeys(gpu for gpus in sorted(possible) for gpu in gpus)),
        sure=len(possible) < 2,
        shares=tuple(share for shares in held for share in shares),
    )


# Our CDI device


def device_name(resource: str, ids: Iterable[str]) -> str:
    """The name of the CDI device for these device IDs, within its kind."""
    return hashlib.sha256(" ".join([resource, *sorted(ids)]).encode()).hexdigest()[:32]


def write_spec(folder: Path, name: str, vendor: Vendor, owned: Owned, edits: "VendorEdits") -> None:
    """Writes the CDI device, whole or not at all; without GPUs, it overrides what the image requests."""
    visible, none = vendor.row.runtime_variable, vendor.row.runtime_none
    # The vendor's own edits set this variable to none, so that it does not bring in more; the other edits are right.
    others = [one for one in edits.edits.get("env", []) if not str(one).startswith(f"{visible}=")]
    # CDI accepts no device that changes nothing.
    own = f"{visible}={','.join(owned.gpus) or none}" if owned.sure else f"COTENANT_CDI={name}"
    all_edits = {**edits.edits, "env": [*others, own]}
    spec = {"cdiVersion": edits.version, "kind": KIND, "devices": [{"name": name, "containerEdits": all_edits}]}
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_read_only(spec_path(folder, name), msgspec.json.encode(spec).decode())
    except OSError as error:
        raise CotenantError(f"{folder}: a CDI device cannot be written there: {error.strerror}") from None


def spec_path(folder: Path, name: str) -> Path:
    return folder / f"{PREFIX}{name}{_SUFFIX}"


def forget_spec(folder: Path, name: str) -> None:
    """Removes a CDI device: device IDs that are given again name no GPUs until their container is known."""
    spec_path(folder, name).unlink(missing_ok=True)


def tidy_specs(folder: Path, listed: Iterable[Listed], unclaimed: Unclaimed, others: Iterable[str] = ()) -> None:
    """Removes CDI devices of containers that are gone; a runtime reads one only at a start, after it is written.
    `others` are names of devices that stay."""
    names = (*others, *(device_name(one.resource, one.devices) for one in listed))
    held = {spec_path(folder, name) for name in names}
    unclaimed.remove(path for path in folder.glob(SPECS) if path not in held)


# The vendor's CDI devices: device nodes, the driver's libraries, hooks. The vendor's tool writes them for each GPU (for
# NVIDIA `nvidia-ctk cdi generate`); they are handed on under a name of ours. If there are none, the device nodes that
# NVIDIA's driver lists are better than nothing.


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    container_edits: _Edits = {}


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    cdi_version: str
    devices: tuple[_Device, ...] = ()
    container_edits: _Edits = {}
    """For all of its devices."""


@dataclass(frozen=True, slots=True)
class VendorEdits:
    """What the vendor brings into a container, and the version of CDI in which it says so."""

    edits: _Edits = field(default_factory=dict)
    version: str = OLDEST

    def adding(self, more: "_Edits") -> "VendorEdits":
        """These and other edits."""
        return VendorEdits(_merged(self.edits, more), self.version) if more else self


def edits_for(
    vendor: Vendor,
    uuids: Sequence[str],
    folders: Sequence[Path],
    driver: Path = Path("/proc/driver/nvidia/gpus"),
    dev: Path = Path("/dev"),
) -> VendorEdits:
    """All that a container with these GPUs needs; empty if neither the vendor's tool nor the driver knows them."""
    if not uuids:
        return VendorEdits()
    for spec in _specs(vendor.row.cdi_kind or "", folders):
        devices = {device.name: device.container_edits for device in spec.devices}
        if devices.keys() >= set(uuids):
            return VendorEdits(_merged(spec.container_edits, *(devices[uuid] for uuid in uuids)), spec.cdi_version)
    own = [f"nvidia{minor}" for uuid, minor in _minors(driver) if uuid in uuids]
    common = [name for name in COMMON_NODES if own and (dev / name).exists()]
    return VendorEdits({"deviceNodes": [{"path": f"/dev/{name}"} for name in (*own, *common)]})


def _merged(*all_edits: _Edits) -> _Edits:
    """All edits in order, each value once."""
    found: _Edits = {}
    for edits in all_edits:
        for part, values in edits.items():
            there = found.setdefault(part, [])
            there += [value for value in values if value not in there]
    return found


def _specs(kind: str, folders: Sequence[Path]) -> Iterator[_Spec]:
    for folder in folders:
        for path in sorted([*folder.glob("*.json"), *folder.glob("*.yaml")]):
            if path.name.startswith(PREFIX):
                continue
            try:
                spec = _spec(kind, path, path.stat().st_mtime_ns)
            except OSError:  # it has just been removed
                continue
            if spec is not None:
                yield spec


@functools.lru_cache(maxsize=16)
def _spec(kind: str, path: Path, changed: int) -> _Spec | None:
    """The CDI devices of this kind in a file; None: the file has another kind, or cannot be understood."""
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES)
    if kind.encode() not in content:
        return None
    try:
        spec = msgspec.convert(yaml.safe_load(content), _Spec)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeError, RecursionError):
        return None
    return spec if spec.kind == kind else None


def _minors(driver: Path) -> Iterator[tuple[str, str]]:
    """The UUID of each NVIDIA GPU and the number of its device node."""
    for path in sorted(driver.glob("*/information")):
        lines = (line.partition(":") for line in path.read_text(errors="replace").splitlines())
        fields = {name.strip(): value.strip() for name, _, value in lines}
        if fields.get("Device Minor", "").isdecimal():
            yield fields.get("GPU UUID", ""), fields["Device Minor"]
