# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One node of a cluster as the pages show it: its GPUs and their tenants, with nothing left out yet."""

from collections.abc import Mapping
from typing import NamedTuple

from cotenant.core.cluster import Node as PlacedNode
from cotenant.core.footprint import claims
from cotenant.core.isolation import LADDER, Rung
from cotenant.core.links import link_word
from cotenant.core.model import Claim, Gpus
from cotenant.core.model import Gpu as PlacedGpu
from cotenant.core.model import Tenant as PlacedTenant
from cotenant.core.sharing.orders import company, tenants_on
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.api.objects import Node
from cotenant.kube.codec.annotations import rung_of
from cotenant.kube.codec.inventory import AWAY, NOT_KNOWN, MemoryInUse, machine_type, used_of
from cotenant.kube.scheduler.profiles import Profiles
from cotenant.kube.state.allocation import Allocation
from cotenant.node.devices.vendors import Vendor
from cotenant.web.kube.agents import (
    NO_GPU_READING,
    NO_TENANT_READING,
    NOTHING_READ,
    GpuReading,
    Reading,
    TenantKey,
)
from cotenant.web.kube.watch import ClusterWatch
from cotenant.web.model import Gpu, Health, Tenant
from cotenant.web.model import Node as ShownNode

GONE = "a deleted pod"
"""A tenant whose pod is gone and whose processes still run."""


class Speeds(NamedTuple):
    """The speed of a pod relative to running alone."""

    measured: float | None = None
    predicted: float | None = None
    batch: int | None = None


NO_SPEEDS = Speeds()


class Tile(NamedTuple):
    """A node, and what rows of its pods need to know."""

    node: ShownNode
    speeds: Mapping[str, Speeds]
    """By UID."""
    gpus: Mapping[str, Gpus]
    """By UID."""
    used: Mapping[str, MiB]
    """Memory in use, by UID, as far as it is known."""


def tile_of(node: Node, watch: ClusterWatch) -> Tile | None:
    """The tile of a node; None if no agent reports GPUs of it."""
    name, state = node.metadata.name, watch.state
    if name not in state.cluster.index:
        return None
    placed, known, vendor = state.cluster.node(name), state.allocations_on(name), state.vendors[name]
    use = _use_of(node)
    taken = {one.job: claims(one.demand, one.gpus, placed.machine.gpus) for one in placed.tenants}
    speeds = _speeds(placed, known, watch.profiles)
    reading = watch.agents.readings.get(name, NOTHING_READ)
    gpus = tuple(
        Gpu(
            index=index,
            uuid=gpu.uuid,
            type=gpu.type,
            memory_mib=gpu.memory_capacity,
            compute=gpu.compute_capacity,
            used_mib=_gpu_used(gpu, use, reading),
            utilisation=_gpu_reading(gpu, reading).busy_percent,
            temperature=_gpu_reading(gpu, reading).temperature,
            power_watts=_gpu_reading(gpu, reading).power_watts,
            health=Health.FAULT if not gpu.healthy else Health.CORDONED if gpu.cordoned else Health.OK,
            note=None if gpu.healthy else "the driver reports a fault, or no longer reports the GPU",
            rungs=_rungs(gpu) if vendor.row.preload else (),
            mig=gpu.mig,
            tenants=tuple(
                _tenant(one, known.get(one.job), taken[one.job][index], speeds.get(one.job, NO_SPEEDS), watch, gpu.uuid)
                for one in placed.tenants
                if index in taken[one.job]
            ),
        )
        for index, gpu in enumerate(placed.machine.gpus)
    )
    health, note = _health(node, state.closed)
    shown = ShownNode(
        name=name,
        gpus=gpus,
        health=health,
        note=note,
        links=_links(placed),
        facts=_facts(node, vendor),
        can_be_cordoned=True,
    )
    return Tile(shown, speeds, {one.job: one.gpus for one in placed.tenants}, _used(shown, known, use))


def _tenant(
    one: PlacedTenant, its: Allocation | None, claim: Claim, speeds: Speeds, watch: ClusterWatch, gpu: str
) -> Tenant:
    if its is None or not its.name:
        return Tenant(job="", name=GONE, memory_mib=claim.memory, compute=claim.compute)
    job, pod = f"{its.namespace}/{its.name}", watch.pods.get((its.namespace, its.name))
    reading = watch.agents.readings.get(its.node, NOTHING_READ).tenants.get(TenantKey(job, gpu), NO_TENANT_READING)
    return Tenant(
        job=job,
        name=its.name,
        user=its.namespace,
        memory_mib=claim.memory,
        used_mib=reading.used_mib,
        compute=claim.compute,
        used_compute=reading.compute,
        speed=speeds.measured,
        predicted=speeds.predicted,
        rung=None if pod is None else rung_of(pod, its.record, its.vendor, watch.codec),
        batch=speeds.batch,
    )


def _gpu_reading(gpu: PlacedGpu, reading: Reading) -> GpuReading:
    """What its agent measured; a value may date from before the GPU failed."""
    return reading.gpus.get(gpu.uuid, NO_GPU_READING) if gpu.healthy else NO_GPU_READING


def _gpu_used(gpu: PlacedGpu, use: MemoryInUse, reading: Reading) -> MiB | None:
    measured = _gpu_reading(gpu, reading).used_mib
    if measured is not None or not gpu.healthy or gpu.uuid not in use.mib:
        return measured
    return MiB(use.mib[gpu.uuid])


def _used(node: ShownNode, known: Mapping[str, Allocation], use: MemoryInUse) -> dict[str, MiB]:
    """The memory of pods: as measured, else what an agent wrote on its node about pods beyond their assignment."""
    measured: dict[str, int] = {}
    for gpu in node.gpus:
        for one in gpu.tenants:
            if one.used_mib is not None:
                measured[one.job] = measured.get(one.job, 0) + one.used_mib
    found = {uid: MiB(sum(by_gpu.values())) for uid, by_gpu in use.beyond.items()}
    names = {uid: f"{its.namespace}/{its.name}" for uid, its in known.items()}
    return found | {uid: MiB(measured[name]) for uid, name in names.items() if name in measured}


def _rungs(gpu: PlacedGpu) -> tuple[str, ...]:
    return tuple(str(rung) for rung in (Rung.MIG, *LADDER) if rung in gpu.rungs or (rung is Rung.MIG and gpu.mig))


def _speeds(placed: PlacedNode, known: Mapping[str, Allocation], profiles: Profiles) -> dict[str, Speeds]:
    """The speeds of all tenants that have one GPU: only these are measured and predicted."""
    found: dict[str, Speeds] = {}
    name = placed.machine.name
    for index in range(len(placed.machine.gpus)):
        here = sorted(tenants_on(placed, index), key=lambda one: str(one.demand.workload))
        alone = len(here) < 2
        beliefs = [] if alone else profiles.belief.speeds(company(placed, index, [one.demand for one in here]))
        for number, one in enumerate(here):
            if len(set(one.gpus)) != 1 or one.job not in known:
                continue
            said = profiles.reported(one.job, known[one.job].namespace, name)
            found[one.job] = Speeds(
                None if said is None or said.speed is None else round(said.speed, 3),
                None if alone or one.demand.workload is None else round(beliefs[number].mean, 3),
                None if said is None else said.batch,
            )
    return found


def _links(placed: PlacedNode) -> tuple[tuple[str, ...], ...]:
    links = placed.machine.links or ()
    return tuple(
        tuple("X" if a == b else link_word(score) for b, score in enumerate(row)) for a, row in enumerate(links)
    )


def _health(node: Node, closed: Mapping[str, Mapping[str, str]]) -> tuple[Health, str | None]:
    """The health of a node and a note. The note names no pod: not every viewer may know it."""
    reasons = closed.get(node.metadata.name, {})
    if AWAY in reasons:
        return Health.FAULT, reasons[AWAY]
    ready = next((one.status for one in node.status.conditions if one.type == "Ready"), "True")
    if ready != "True":
        return Health.FAULT, "kubelet is not ready"
    if reasons:
        return Health.FAULT, "an annotation of the node or of a pod on it cannot be read"
    if node.spec.unschedulable:
        return Health.CORDONED, "the node is cordoned"
    return Health.OK, None


def _facts(node: Node, vendor: Vendor) -> tuple[tuple[str, str], ...]:
    address = next((one.address for one in node.status.addresses if one.type == "InternalIP"), "")
    facts = (
        ("Address", address),
        ("Machine type", machine_type(node)),
        ("Vendor", vendor.row.title),
        ("Limits", vendor.row.unenforced() or ""),
    )
    return tuple((name, value) for name, value in facts if value)


def _use_of(node: Node) -> MemoryInUse:
    try:
        return used_of(node)
    except InputError:  # written by a newer agent
        return NOT_KNOWN
