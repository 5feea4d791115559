# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a container needs to use a GPU where nothing but CDI brings it in: device nodes, the driver's libraries, hooks.

The vendor's tool has written that down for each card (`nvidia-ctk cdi generate`); we hand it on under a name of our
own. Where it has not, there are at least the device nodes, of which the driver tells.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from cotenant.node.devices.vendors import Vendor

OWN = "cotenant.io-gpu_"
"""how the names of our own files begin"""
MOST_BYTES = 4 * 1024 * 1024
OLDEST = "0.5.0"
COMMON_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_Edits = dict[str, list[Any]]
"""as CDI calls them `containerEdits`: env, deviceNodes, mounts, hooks, each a list"""


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    container_edits: _Edits = {}


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    cdi_version: str
    devices: tuple[_Device, ...] = ()
    container_edits: _Edits = {}
    """for whichever of its devices"""


@dataclass(frozen=True, slots=True)
class Brought:
    """What is brought into a container, and the version of CDI that it takes to say so."""

    edits: _Edits = field(default_factory=dict)
    version: str = OLDEST


def brought_for(
    vendor: Vendor,
    uuids: Sequence[str],
    folders: Sequence[Path],
    driver: Path = Path("/proc/driver/nvidia/gpus"),
    dev: Path = Path("/dev"),
) -> Brought:
    """All that a container with these GPUs needs; nothing where neither the vendor nor a driver tells of them."""
    if not uuids:
        return Brought()
    for spec in _specs(vendor.row.cdi_kind or "", folders):
        devices = {device.name: device.container_edits for device in spec.devices}
        if devices.keys() >= set(uuids):
            return Brought(_together(spec.container_edits, *(devices[uuid] for uuid in uuids)), spec.cdi_version)
    own = [f"nvidia{minor}" for uuid, minor in _minors(driver) if uuid in uuids]
    common = [name for name in COMMON_NODES if own and (dev / name).exists()]
    return Brought({"deviceNodes": [{"path": f"/dev/{name}"} for name in (*own, *common)]})


def _together(*all_edits: _Edits) -> _Edits:
    """One after the other, what is said twice only once."""
    found: _Edits = {}
    for edits in all_edits:
        for part, values in edits.items():
            there = found.setdefault(part, [])
            there += [value for value in values if value not in there]
    return found


def _specs(kind: str, folders: Sequence[Path]) -> Iterator[_Spec]:
    for folder in folders:
        for path in sorted([*folder.glob("*.json"), *folder.glob("*.yaml")]):
            if path.name.startswith(OWN):
                continue
            try:
                spec = _spec(kind, path, path.stat().st_mtime_ns)
            except OSError:  # it has just gone
                continue
            if spec is not None:
                yield spec


@functools.lru_cache(maxsize=16)
def _spec(kind: str, path: Path, changed: int) -> _Spec | None:
    """What the vendor says in a file; None: it is somebody else's, or nothing that could be understood."""
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
    """The UUID of each card and the number of its device node."""
    for path in sorted(driver.glob("*/information")):
        lines = (line.partition(":") for line in path.read_text(errors="replace").splitlines())
        told = {name.strip(): value.strip() for name, _, value in lines}
        if told.get("Device Minor", "").isdecimal():
            yield told.get("GPU UUID", ""), told["Device Minor"]
