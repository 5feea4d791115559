# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent reports of its node as annotations: its GPUs, their links and their use."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import msgspec

from cotenant.core.isolation import Offer
from cotenant.core.model import Gpu, Link, Machine
from cotenant.core.units import WHOLE_GPU, MiB, Percent, format_memory
from cotenant.errors import InputError
from cotenant.kube.codec.inventory import (
    GPU_TOPOLOGY,
    HAMI_REGISTER,
    INVENTORY,
    MOST_NODE_GPUS,
    inventory_for,
    used_for,
)
from cotenant.kube.codec.settings import Settings
from cotenant.kube.codec.topology import TOPOLOGY
from cotenant.kube.codec.vgpu import VGPU, hami_annotations
from cotenant.kube.settings import KubeSettings
from cotenant.node.devices.backend import Backend, GpuUsage
from cotenant.node.devices.vendors import Vendor

USE_S = 30.0
"""Pause between two looks at the use of GPUs."""
MUCH = 50
"""A change of use is published if it is at least one part in so many of a GPU's memory."""
NOT_SCALED = Percent(100)
_NVLINKS = ("Single NVLink", "Two NVLinks", "Three NVLinks", "Four NVLinks", "Five NVLinks", "Six NVLinks")
_LINKS = {
    Link.SYS: "Cross CPU socket",
    Link.NODE: "Same CPU socket",
    Link.PHB: "Host PCI bridge",
    Link.PXB: "Multiple PCI switches",
    Link.PIX: "Single PCI switch",
    Link.PSB: "Same board",
}


# The inventory


def shared_machine(
    found: Machine, node: str, settings: KubeSettings, vendor: Vendor, *, simulated: bool = False
) -> Machine:
    """The GPUs that a node hands out, each shared as the settings say; hidden ones are left out.

    Only the vGPU library can put memory of the host behind a GPU, so no more than there is of other GPUs is handed out.
    """
    strategy = settings.mig_strategy_of(node)
    ways = [settings.sharing_of(node, gpu.uuid, index) for index, gpu in enumerate(found.gpus)]
    hidden = [
        way is None or (gpu.mig is not None and strategy == "none") for way, gpu in zip(ways, found.gpus, strict=True)
    ]
    shown = [index for index, out in enumerate(hidden) if not out]
    if len(shown) > MOST_NODE_GPUS:  # instances that were removed need no place
        shown = [index for index in shown if found.gpus[index].healthy or found.gpus[index].mig is None]
    if len(shown) > MOST_NODE_GPUS:
        raise InputError(f"node {node} has {len(shown)} GPUs, expected at most {MOST_NODE_GPUS}; hide some")
    gpus = tuple(
        replace(
            _named_by(node, gpu) if simulated else _as_handed_out(gpu, strategy),
            slots=way.split,
            memory_scaling=Percent(way.memory_scaling if vendor.row.preload else min(way.memory_scaling, NOT_SCALED)),
            compute_scaling=Percent(way.compute_scaling),
            offer=None if way.isolation is None else Offer(preload=vendor.row.preload, only=way.isolation),
        )
        for index in shown
        for gpu, way in [(found.gpus[index], ways[index])]
        if way is not None
    )
    links = found.links and tuple(tuple(found.links[a][b] for b in shown) for a in shown)
    return Machine(name=node, gpus=gpus, links=links)


def scaling_note(found: Machine, node: str, settings: KubeSettings, vendor: Vendor) -> str | None:
    """A sentence if the settings scale the memory of GPUs that have no virtual memory; else None."""
    ways = [settings.sharing_of(node, gpu.uuid, index) for index, gpu in enumerate(found.gpus)]
    if vendor.row.preload or all(way is None or way.memory_scaling <= NOT_SCALED for way in ways):
        return None
    none = f"memory-scaling above {NOT_SCALED} has no effect on {vendor.row.title} GPUs"
    return f"{none}; only NVIDIA GPUs have virtual memory"


def host_memory_note(machine: Machine, host: MiB) -> str | None:
    """A sentence if pods can be assigned more memory of the host than it has; else None."""
    assigned = MiB(sum(gpu.host_part(gpu.memory_capacity) for gpu in machine.gpus))
    if assigned <= host:
        return None
    return (
        f"memory-scaling assigns up to {format_memory(assigned)} of the host's memory to pods, and the host has "
        f"{format_memory(host)}: lower memory-scaling of node {machine.name}, or pods can exhaust its memory"
    )


def _as_handed_out(gpu: Gpu, strategy: str) -> Gpu:
    """A MIG instance counts as a whole GPU if all instances of the node are requested as GPUs."""
    return replace(gpu, mig=None, part=WHOLE_GPU) if gpu.mig is not None and strategy == "single" else gpu


def _named_by(node: str, gpu: Gpu) -> Gpu:
    """Simulated GPUs have the same UUIDs on every machine, and those of a cluster must differ."""
    return replace(gpu, uuid=f"SIM-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{gpu.uuid}.{node}')}")


def annotations_for(machine: Machine, vendor: Vendor, settings: Settings) -> dict[str, str | None]:
    """The node's annotations about its GPUs; None: the annotation should not exist."""
    ours = [dialect for dialect in settings.dialects if dialect.vendor is vendor]
    topology = any(dialect.name == TOPOLOGY.name for dialect in ours)
    # Without the setting, the annotation may be of a HAMi that still runs on this node.
    hami = any(dialect.annotations is hami_annotations for dialect in ours)
    return {
        INVENTORY: inventory_for(machine, vendor),
        GPU_TOPOLOGY: topology_text(machine) if topology and machine.links is not None else None,
        **({HAMI_REGISTER: hami_text(machine)} if hami else {}),
    }


def hami_text(machine: Machine) -> str:
    """The GPUs in the words of HAMi."""
    gpus = [
        {
            "id": gpu.uuid,
            "index": index,
            "count": gpu.slots,
            "devmem": gpu.memory_capacity,
            "devcore": gpu.compute_capacity // 10,
            "type": f"{VGPU.type_prefix}{gpu.type}",
            "numa": gpu.numa or 0,
            "mode": VGPU.modes[0] if gpu.mig is None else VGPU.mig_mode,
            "health": gpu.healthy,
        }
        for index, gpu in enumerate(machine.gpus)
    ]
    return msgspec.json.encode(gpus).decode()


def topology_text(machine: Machine) -> str:
    """How each pair of GPUs is linked, in the words of the topology dialect, which knows six NVLinks at most."""
    pairs = {}
    for a, b in combinations(range(len(machine.gpus)), 2):
        score = machine.links[a][b] if machine.links is not None else 0
        short, text = _link(score)
        pairs[f"GPU_{short}_{a}_{b}"] = text
    return msgspec.json.encode(pairs).decode()


def _link(score: int) -> tuple[str, str]:
    if score >= Link.NVLINK:
        several = min(score // Link.NVLINK, len(_NVLINKS))
        return f"NV{several}", _NVLINKS[several - 1]
    best = max((link for link in _LINKS if link <= score), default=None)
    return ("N-A", "N/A") if best is None else (best.name, _LINKS[best])


# Memory in use


Beyond = Mapping[str, Mapping[str, int]]
"""MiB by the UID of a pod and the UUID of a GPU"""


class UsageReport:
    """Publishes how much memory of each GPU is in use, and which pods use more than they were assigned, for people who
    look.

    Every change of a node reaches all programs that watch nodes. So the use is published seldom, and only if it has
    changed much.
    """

    def __init__(self, publish: Callable[[str], object], look_s: float = USE_S) -> None:
        self._publish, self._look_s = publish, look_s
        self._due = float("-inf")
        self._seen: Sequence[GpuUsage] = ()
        self.latest: Sequence[GpuUsage] = ()
        """The use of the GPUs at the last look that read it; what is published may be older."""
        self.faults: Mapping[str, str] = {}
        """Why GPUs are not healthy, by UUID, at the last look."""
        self.absent: frozenset[str] = frozenset()
        """UUIDs of GPUs that no longer exist, at the last look."""
        self._judged: Sequence[GpuUsage] | None = None
        """The use that was last compared with what is published."""
        self._published: Mapping[tuple[str, str], int] = {}
        """MiB by the UID of a pod and the UUID of a GPU; without a UID: of all processes."""

    def look(self, backend: Backend) -> Machine:
        """The machine and its use: the driver never gets two queries at a time.

        The use is read at every look if the vGPU library enforces limits, which must know the processes of each slice.
        """
        machine = backend.machine()
        self.faults = {} if backend.vendor is Vendor.SIMULATED else backend.faults()
        self.absent = backend.absent()
        due = time.monotonic() >= self._due
        # Memory that pods use of simulated GPUs cannot be told from other memory of the host.
        if backend.vendor is not Vendor.SIMULATED and (due or backend.vendor.row.preload):
            self.latest = backend.usage()
            if due:
                self._seen, self._due = self.latest, time.monotonic() + self._look_s
        return machine

    def publish(self, machine: Machine, beyond: Callable[[Sequence[GpuUsage]], Beyond] = lambda _usage: {}) -> None:
        """Publishes the use of these GPUs, unless it is about the same as before."""
        if self._seen is self._judged:
            return
        self._judged = self._seen
        sizes = {gpu.uuid: gpu.memory for gpu in machine.gpus}
        used = {one.uuid: one.used_mib for one in self._seen if one.uuid in sizes and one.used_mib is not None}
        pods = beyond(self._seen)
        amounts: dict[tuple[str, str], int] = {("", gpu): mib for gpu, mib in used.items()}
        amounts |= {(uid, gpu): mib for uid, gpus in pods.items() for gpu, mib in gpus.items() if gpu in sizes}
        before = self._published
        if amounts.keys() != before.keys() or any(
            abs(amounts[key] - mib) * MUCH >= sizes[key[1]] for key, mib in before.items()
        ):
            self._published = amounts
            self._publish(used_for(used, pods))
