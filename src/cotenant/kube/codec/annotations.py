# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The annotations that a Binding carries: the assignment, and the variables and limits of each container.

Kubelet passes them on by the downward API, so each variable and each limits file is an annotation of its own. Their
content is what the one-machine engine gives to a process on the same GPUs; a dialect only selects and renames. Only the
scheduler may write them: they say, or make a container believe, which GPUs it has.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from cotenant.core.isolation import Rung
from cotenant.core.model import ContainerKind, Demand, Gpu, Gpus, Machine, Slot
from cotenant.core.units import MIB_BYTES, MiB, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.objects import Metadata, Pod, PodContainer, PodSpec, Resources
from cotenant.kube.codec.assignment import (
    RECORD,
    Record,
    Share,
    as_containers,
    encode_record,
    gpus_of,
    mps_rung,
    record_for,
)
from cotenant.kube.codec.dialect import ContainerAssignment, Dialect
from cotenant.kube.codec.inherited import INHERITED
from cotenant.kube.codec.isolation import enforced_limits, rung_by_annotations
from cotenant.kube.codec.keys import PREFIX, checked_annotations, container_key
from cotenant.kube.codec.paths import AGENT_SOCKET, GRANTS, LIMITS, LIMITS_FOLDER, PROCESSES
from cotenant.kube.codec.request import ContainerRequest, PodRequest, demand_for, request_of
from cotenant.kube.codec.settings import DEFAULTS, Settings, isolation_in
from cotenant.node.devices.vendors import REAL, Vendor
from cotenant.node.launch import ISOLATION, Launch, Paths, Slice, launch_for
from cotenant.node.limits import GpuLimit, limits_text
from cotenant.node.shares import Means, Shares

_NO_SHARES = Shares(Means.SLOTS, None, "")
"""Shares of real GPUs are in the limits file; no cgroup is made for them."""


def binding_annotations(
    pod: Pod,
    request: PodRequest,
    record: Record,
    machine: Machine,
    *,
    moment: int,
    region: Path | None = None,
    settings: Settings = DEFAULTS,
) -> dict[str, str]:
    """All annotations that a pod needs to run where the record says; `moment` is in nanoseconds since 1970."""
    annotations = {RECORD: encode_record(record)}
    allowed = isolation_in(pod.metadata.namespace, settings)
    assignments: dict[str, list[ContainerAssignment]] = {}
    # A container with several claims has an entry for each of their requests, and limits for all of them together.
    by_number = {one.number: one for one in reversed((*request.containers, *request.joined))}
    for one in sorted(by_number.values(), key=lambda one: one.number):
        if record.held_by(one.number):
            dialect, assignment = one.amounts.dialect, _assignment(pod, request, record, machine, one, region)
            limits = replace(
                assignment.launch.limits,
                overhead=settings.count_overhead,
                gpus=_limited(assignment.launch.limits.gpus, record.held_by(one.number), machine),
                grants=GRANTS if any(share.is_elastic for share in record.held_by(one.number)) else None,
            )
            limits = enforced_limits(limits, pod.metadata.annotations, allowed, mps_rung(record))
            rung = mps_rung(record) or rung_by_annotations(pod.metadata.annotations, allowed)
            own = {LIMITS: limits_text(limits), **_variables(dialect, assignment, rung)}
            annotations |= {container_key(one.number, name): value for name, value in own.items()}
            assignments.setdefault(dialect.name, []).append(assignment)
    dialects = {one.amounts.dialect.name: one.amounts.dialect for one in by_number.values()}
    for name, containers in assignments.items():
        annotations |= dialects[name].annotations(dialects[name], containers, moment)
    return checked_annotations(annotations, pod.metadata.annotations)


def rung_of(pod: Pod, record: Record, vendor: Vendor | None, settings: Settings) -> Rung | None:
    """What holds a placed pod to its limits; None: its GPUs have no isolation ladder."""
    if vendor is None or not vendor.row.preload:
        return None
    allowed = isolation_in(pod.metadata.namespace, settings)
    return mps_rung(record) or rung_by_annotations(pod.metadata.annotations, allowed)


def _limited(limits: Sequence[GpuLimit], shares: Sequence[Share], machine: Machine) -> tuple[GpuLimit, ...]:
    """The limits, with those of a container that claims no compute beside a server with a latency objective, and those
    above requests."""
    by_gpu = {share.gpu: share for share in shares}
    gpus = {gpu.uuid: gpu for gpu in machine.gpus}
    return tuple(_limit(limit, by_gpu[limit.uuid], gpus[limit.uuid]) for limit in limits)


def _limit(limit: GpuLimit, share: Share, gpu: Gpu) -> GpuLimit:
    if share.most and not share.compute:
        limit = limit._replace(compute=MilliGpu(share.most))
    if share.memory_limit <= share.memory or limit.memory_bytes is None:
        return limit
    # Nothing may be used before the agent grants it: until then allocations wait.
    most = share.most_memory(gpu)
    most = MiB(most - gpu.host_part(most))
    return limit._replace(memory_bytes=0, request_bytes=limit.memory_bytes, most_bytes=most * MIB_BYTES)


@lru_cache(maxsize=256)
def variable_names(dialect: Dialect, gpus: int) -> tuple[str, ...]:
    """The variables that a container with so many GPUs will have; the webhook declares them before a GPU is chosen."""
    machine = Machine(name="any", gpus=tuple(Gpu(uuid=f"GPU-{i}", memory=MiB(1)) for i in range(gpus)))
    shares = tuple(Share(gpu=gpu.uuid, memory=1, compute=0) for gpu in machine.gpus)
    launch = _launch("any", shares, machine, dialect.vendor, low=False, region=None)
    return tuple(
        _variables(
            dialect,
            ContainerAssignment(
                launch=launch,
                gpus=tuple(range(gpus)),
                pod_memory=MiB(1),
                low=False,
                unit=dialect.memory_unit,
                number=0,
                node="any",
            ),
            Rung.NONE,
        )
    )


def _variables(dialect: Dialect, assignment: ContainerAssignment, rung: Rung) -> Mapping[str, str]:
    ours = {"COTENANT_JOB": assignment.launch.env["COTENANT_JOB"]}
    if dialect.vendor.row.preload:
        ours[ISOLATION] = rung.value
    return {**ours, **dialect.variables(dialect, assignment)}


def _assignment(
    pod: Pod, request: PodRequest, record: Record, machine: Machine, one: ContainerRequest, region: Path | None
) -> ContainerAssignment:
    shares = record.held_by(one.number)
    staying = [held.gpus for held in record.containers if held.kind is not ContainerKind.INIT]
    apps = [container.name for container in pod.spec.containers]
    low = one.amounts.low or request.demand.priority < 0
    return ContainerAssignment(
        launch=_launch(record.pod, shares, machine, one.amounts.dialect.vendor, low=low, region=region),
        gpus=_present(shares, machine),
        pod_memory=MiB(sum(share.memory for gpus in staying for share in gpus)),
        low=low,
        unit=one.amounts.unit,
        number=one.number,
        node=record.node,
        app=apps.index(one.name) if one.name in apps else None,
    )


def _launch(
    job: str, shares: Sequence[Share], machine: Machine, vendor: Vendor, *, low: bool, region: Path | None
) -> Launch:
    return launch_for(
        machine,
        Slot(machine.name, _present(shares, machine)),
        demand_for(as_containers(ContainerKind.APP, shares), Demand(priority=-1 if low else 0)),
        job=job,
        paths=Paths(agent=AGENT_SOCKET),
        slice_=Slice(limits=LIMITS_FOLDER / LIMITS, region=region, processes=None if region is None else PROCESSES),
        vendor=vendor,
        cores=(),
        shares=_NO_SHARES,
    )


def _present(shares: Sequence[Share], machine: Machine) -> Gpus:
    gpus = gpus_of(shares, machine)
    absent = [share.gpu for share, gpu in zip(shares, gpus, strict=True) if gpu >= len(machine.gpus)]
    if absent:
        raise InputError(f"node {machine.name} has no GPU {absent[0]}")
    return gpus


CONTAINER_KEYS = rf"^{re.escape(PREFIX)}/[0-9]+[.]"
"""Regular expression of the annotations that containers read through the downward API. The admission policies use it
too, so it must mean the same in RE2, the syntax of CEL."""

RUNTIME_VARIABLES: Mapping[str, str] = {
    row.runtime_variable: row.runtime_none or "" for row in (vendor.row for vendor in REAL) if row.runtime_variable
}
"""Environment variables from which the container runtimes of the vendors read the GPUs of a container, each with the
value that means none. An image can set them too, so a container without GPUs must be given that value."""

_CONTAINER_KEYS = re.compile(CONTAINER_KEYS, re.ASCII)


def is_assignment(key: str) -> bool:
    """Return whether this annotation of ours says which GPUs a pod has."""
    return key == RECORD or _CONTAINER_KEYS.match(key) is not None


def foreign_records(codec: Settings) -> frozenset[str]:
    """Return the annotations by which programs of other systems read an assignment, for all dialects of a cluster, and
    those from which we read the assignments that other systems made."""
    return frozenset((*INHERITED, *(key for dialect in codec.dialects for key in _foreign_records(dialect))))


@lru_cache(maxsize=64)
def _foreign_records(dialect: Dialect) -> frozenset[str]:
    # Encoding the assignment of a sample pod yields the keys, so a dialect cannot write one that is missing here.
    codec = Settings(dialects=(dialect,))
    container = PodContainer(name="any", resources=Resources(limits={dialect.count: 1}))
    pod = Pod(metadata=Metadata(uid="any"), spec=PodSpec(containers=(container,)))
    machine = Machine(name="any", gpus=(Gpu(uuid="any", memory=MiB(1)),))
    request = request_of(pod, codec)
    record = record_for(pod, request, Slot(machine.name, (0,)), machine)
    annotations = binding_annotations(pod, request, record, machine, moment=0)
    return frozenset(key for key in annotations if not is_assignment(key))


def without_assignment(annotations: Mapping[str, str], foreign: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the annotations without an assignment, so that a copy of a placed pod is admitted as a new pod."""
    return {key: value for key, value in annotations.items() if not is_assignment(key) and key not in foreign}
