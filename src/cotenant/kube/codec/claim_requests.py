# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a ResourceClaim requests: for each request a number of GPUs, the amounts on each, and which GPUs they may be.

The amounts of a shared GPU are requests of capacity, or parameters of our driver in the claim or its class, because
Kubernetes 1.34 counts no capacity. If a request leaves a choice, the claim has several options, the first that fits
counts: alternatives (`firstAvailable`), all GPUs of a node, of which nodes have different numbers, and common values of
an attribute.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from cotenant.core.model import ANY_PROFILE, Container
from cotenant.core.units import MIB_BYTES, WHOLE_GPU, WHOLE_MEMORY, MiB, MilliGpu, Percent
from cotenant.errors import InputError
from cotenant.kube.api.claims import ClaimConfiguration, DeviceClaim, DeviceClass, DeviceConstraint, ExactRequest
from cotenant.kube.codec.amounts import AUTO, parse_quantity
from cotenant.kube.codec.selecting import Fleet, Selected
from cotenant.kube.codec.settings import MOST_MEMORY
from cotenant.wire.text import printable

DRIVER = "gpu.cotenant.io"
SHARED, WHOLE = DRIVER, f"whole.{DRIVER}"
"""Device classes: a share of a GPU of the size that the claim states, and a GPU that no other tenant uses."""
MIG = f"mig.{DRIVER}"
"""The device class of MIG instances that no other tenant uses; selectors choose the profile."""
ADMIN = f"admin.{DRIVER}"
"""The device class of requests with `adminAccess`, which take nothing; kube-scheduler allocates them."""
CLASSES = (SHARED, WHOLE, MIG, ADMIN)
PARAMETERS = f"{DRIVER}/v1"
NUMA = f"{DRIVER}/numaNode"
MOST_REQUESTS = 32
"""Of one claim, as in Kubernetes."""
MOST_DEVICES = 32
"""Of one claim, as in Kubernetes, which keeps no larger allocation."""
MOST_OPTIONS = 16
"""Of one claim, and of all claims of a pod together."""
UUIDS_PER_STEP = 50
"""GPUs in two sets are compared so many at a time."""
MOST_VALUES = 256
"""Of an attribute in which GPUs agree; a claim with so many choices would have more options anyway."""

FindClass = Callable[[str], DeviceClass | None]
"""Returns a device class by name; None if there is none."""


class GpuShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The parameters of a claim: what it needs of each of its GPUs."""

    api_version: Literal["gpu.cotenant.io/v1"]
    kind: Literal["GpuShare"]
    memory: str | int = ""
    """A quantity of bytes, such as 4Gi. `auto`: what the profile of the pod's workload says."""
    memory_percent: Annotated[int, Meta(ge=1, le=99)] | None = None
    """Of the memory of each GPU, instead of an amount."""
    compute: Annotated[int, Meta(ge=0, le=100)] = 0
    """Percent of the compute; 0 claims none and is not limited."""
    memory_limit: str | int = ""
    """What the containers may use while others leave it free; they are guaranteed `memory`."""
    memory_limit_percent: Annotated[int, Meta(ge=1, le=100)] | None = None
    """The same as a percentage, beside `memoryPercent`."""
    compute_limit: Annotated[int, Meta(ge=1, le=100)] | None = None
    """Percent of the compute that they may have while no other container requests it; they are guaranteed `compute`."""


class Part(NamedTuple):
    """One request of a claim."""

    request: str
    container: Container
    automatic: bool = False
    """Whether a profile says how much memory it needs. Until there is one, it is as much as the container states."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a claim requests."""

    options: tuple[tuple[Part, ...], ...]
    """The first that fits counts."""
    one_numa: bool = False
    """Whether all GPUs of the claim are on one NUMA node."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a claim is read with."""

    find_class: FindClass
    fleet: Callable[[], Fleet] | None
    """The GPUs of the cluster, for claims that select among them; None: its GPUs were chosen before."""


def names_our_driver(found: DeviceClass) -> bool:
    """Whether a class that an administrator made is for our GPUs: a selector or its parameters name our driver."""
    texts = (one.cel.expression for one in found.spec.selectors if one.cel is not None)
    return any(DRIVER in text for text in texts) or any(_is_for_us(one) for one in found.spec.config)


def _is_for_us(one: ClaimConfiguration) -> bool:
    return one.opaque is not None and one.opaque.driver == DRIVER


def class_names(devices: DeviceClaim) -> Iterator[str]:
    """The device classes that a claim names."""
    for request in devices.requests:
        for one in (request.exactly, *request.first_available):
            if one is not None:
                yield one.device_class_name


def is_for_admins(devices: DeviceClaim) -> bool:
    """Whether a claim only gives administrators a view of GPUs. It takes nothing, so kube-scheduler may allocate it."""
    return all(
        one.exactly is not None
        and one.exactly.admin_access
        and one.exactly.device_class_name not in (SHARED, WHOLE, MIG)
        for one in devices.requests
    )


def is_ours(devices: DeviceClaim, find_class: FindClass) -> bool:
    """Whether a claim requests our GPUs, correctly or not, so that only we allocate it."""
    if is_for_admins(devices):
        return False
    for name in class_names(devices):
        if name in CLASSES or ((found := find_class(name)) is not None and names_our_driver(found)):
            return True
    return False


def read_claim(devices: DeviceClaim, around: Surroundings) -> ClaimRequest:
    """What a claim requests; InputError if it cannot be satisfied."""
    if not 1 <= len(devices.requests) <= MOST_REQUESTS:
        raise InputError(f"{len(devices.requests)} requests, expected 1 to {MOST_REQUESTS}")
    choices = []
    for request in devices.requests:
        if request.exactly is not None:
            choices.append(list(_alternatives(devices, request.name, request.name, request.exactly, around)))
        else:
            subs = [(f"{request.name}/{one.name}", one) for one in request.first_available]
            choices.append(_first_available(devices, request.name, subs, around))
    options = _combined(choices)
    if around.fleet is not None:
        options = _small(options)
    one_numa = False
    for constraint in devices.constraints if around.fleet is not None else ():
        if _is_one_numa(constraint, devices):
            one_numa = True
        else:
            options = _with_common_value(options, constraint, around)
    return ClaimRequest(tuple(options), one_numa)


def _combined(choices: Iterable[Iterable[Part]]) -> list[tuple[Part, ...]]:
    found = list(islice(product(*choices), MOST_OPTIONS + 1))
    return _bounded(found)


def _small(options: list[tuple[Part, ...]]) -> list[tuple[Part, ...]]:
    """The options that Kubernetes can allocate."""
    counts = [sum(part.container.gpus for part in option) for option in options]
    found = [option for option, count in zip(options, counts, strict=True) if count <= MOST_DEVICES]
    if not found:
        raise InputError(f"{min(counts)} GPUs, expected at most {MOST_DEVICES} by one claim; use several claims")
    return found


def _bounded(options: list[tuple[Part, ...]]) -> list[tuple[Part, ...]]:
    if len(options) > MOST_OPTIONS:
        raise InputError(f"more than {MOST_OPTIONS} ways to satisfy its requests; leave fewer choices")
    return options


def _first_available(
    devices: DeviceClaim, request: str, subs: list[tuple[str, ExactRequest]], around: Surroundings
) -> list[Part]:
    """All alternatives that are possible; InputError if none is."""
    found: list[Part] = []
    failed: InputError | None = None
    for name, one in subs:
        try:
            found += _alternatives(devices, request, name, one, around)
        except InputError as error:
            failed = failed or InputError(f"request {_short(name)}: {error}")
    if not found:
        raise failed or InputError(f"request {_short(request)}: it states neither exactly nor firstAvailable")
    return found


def _alternatives(
    devices: DeviceClaim, request: str, name: str, one: ExactRequest, around: Surroundings
) -> Iterator[Part]:
    """The ways to satisfy one request: several only if it wants all GPUs of a node."""
    if one.admin_access:
        raise InputError(f"requests with adminAccess need the device class {ADMIN}, and a claim without other requests")
    if one.device_class_name == ADMIN:
        raise InputError(f"class {ADMIN} is for requests with adminAccess; use class {SHARED} or {WHOLE}")
    own = None if one.device_class_name in CLASSES else around.find_class(one.device_class_name)
    if own is None and one.device_class_name not in CLASSES:
        raise InputError(f"there is no device class {_short(one.device_class_name)}")
    if own is not None and not names_our_driver(own):
        raise InputError(
            f"device class {_short(one.device_class_name)} is for other devices; request them by a claim of their own"
        )
    part = _amounts(devices, request, name, one, own)
    conditions = (*(() if own is None else own.spec.selectors), *one.selectors)
    texts = tuple(each.cel.expression for each in conditions if each.cel is not None)
    if around.fleet is None:
        yield part
        return
    if one.allocation_mode == "All":
        yield from _all_of_a_node(part, around.fleet().selected(texts))
        return
    if one.allocation_mode not in ("", "ExactCount"):
        raise InputError(f"allocationMode: {_short(one.allocation_mode)} is not known; write ExactCount or All")
    if not 1 <= one.count <= MOST_DEVICES:
        raise InputError(f"{one.count} GPUs, expected 1 to {MOST_DEVICES}, which is the most for one claim")
    container = replace(part.container, gpus=one.count)
    if texts:
        container = _among(container, around.fleet().selected(texts))
    yield part._replace(container=container)


def _among(container: Container, selected: Selected) -> Container:
    return container if selected.every else replace(container, use_uuids=selected.uuids)


def _all_of_a_node(part: Part, selected: Selected) -> Iterator[Part]:
    """All selected GPUs of a node, the nodes with most of them first."""
    counts: dict[int, set[str]] = {}
    for uuids in selected.by_node.values():
        counts.setdefault(len(uuids), set()).update(uuids)
    for count in sorted(counts, reverse=True):
        found = replace(part.container, gpus=count, use_uuids=frozenset(counts[count]))
        yield part._replace(container=found)


# Amounts


def _amounts(devices: DeviceClaim, request: str, name: str, one: ExactRequest, own: DeviceClass | None) -> Part:
    """What a request needs of each GPU: by its capacity requests, by parameters of the claim, by those of its class."""
    asked = _capacity(one)
    stated = _parameters(devices.config, {request, name}) or (
        None if own is None else _parameters(own.spec.config, set())
    )
    whole = Container(memory_percent=WHOLE_MEMORY, memory=MiB(0), compute=WHOLE_GPU)
    if one.device_class_name in (WHOLE, MIG):
        if stated is not None or asked:
            what = "GPUs" if one.device_class_name == WHOLE else "MIG instances"
            raise InputError(
                f"class {one.device_class_name} is for whole {what}; remove the amounts, or use class {SHARED}"
            )
        return Part(name, whole if one.device_class_name == WHOLE else replace(whole, mig=ANY_PROFILE))
    if stated is None and "memory" not in asked:
        if one.device_class_name == SHARED:
            raise InputError(
                f"class {SHARED} needs the memory, as a capacity request or as parameters such as {{apiVersion:"
                f" {PARAMETERS}, kind: GpuShare, memory: 4Gi}}; for whole GPUs, use class {WHOLE}"
            )
        return Part(name, whole)
    share = GpuShare(api_version="gpu.cotenant.io/v1", kind="GpuShare") if stated is None else stated
    compute = _compute(asked["compute"]) if "compute" in asked else MilliGpu(share.compute * 10)
    if share.memory == AUTO:
        if "memory" in asked or share.memory_percent is not None or _limits(share):
            raise InputError(f"memory: {AUTO} leaves the amount to a profile; remove the other amounts of memory")
        return Part(name, replace(whole, compute=compute), automatic=True)
    if "memory" in asked and (share.memory != "" or share.memory_percent is not None):
        raise InputError("the memory is stated both as a capacity and as a parameter; remove one of them")
    return Part(name, _with_limits(_requested(asked, share, compute), share))


def _requested(asked: Mapping[str, str | int], share: GpuShare, compute: MilliGpu) -> Container:
    """What is guaranteed."""
    if "memory" in asked:
        return Container(memory=_memory("memory", asked["memory"]), compute=compute)
    if (share.memory == "") is (share.memory_percent is None):
        raise InputError("parameters need either memory or memoryPercent")
    if share.memory_percent is not None:
        return Container(memory_percent=Percent(share.memory_percent), compute=compute)
    return Container(memory=_memory("memory", share.memory), compute=compute)


def _limits(share: GpuShare) -> bool:
    """Whether limits above requests are stated."""
    return share.memory_limit != "" or share.memory_limit_percent is not None or share.compute_limit is not None


def _with_limits(container: Container, share: GpuShare) -> Container:
    """The container with its limits, if they are above what it requests."""
    in_percent = container.memory_percent is not None
    if (share.memory_limit != "" and in_percent) or (share.memory_limit_percent is not None and not in_percent):
        raise InputError("the memory and its limit are stated in different units; use two amounts or two percentages")
    if share.memory_limit != "":
        most = _memory("memoryLimit", share.memory_limit)
        _check_limit("memoryLimit", container.memory, most, "MiB")
        container = replace(container, memory_limit=most if most > container.memory else None)
    if share.memory_limit_percent is not None and container.memory_percent is not None:
        percent = Percent(share.memory_limit_percent)
        _check_limit("memoryLimitPercent", container.memory_percent, percent, "%")
        container = replace(container, memory_limit_percent=percent if percent > container.memory_percent else None)
    if share.compute_limit is not None:
        if not container.compute:
            raise InputError("computeLimit: no compute is requested; write compute as well, which is guaranteed")
        _check_limit("computeLimit", container.compute // 10, share.compute_limit, "%")
        limit = MilliGpu(share.compute_limit * 10)
        container = replace(container, compute_limit=limit if limit > container.compute else None)
    return container


def _check_limit(what: str, request: int, limit: int, unit: str) -> None:
    if limit < request:
        raise InputError(f"{what}: {limit} {unit} is below the request of {request} {unit}; write no less than it")


def _capacity(one: ExactRequest) -> Mapping[str, str | int]:
    requests = {} if one.capacity is None else one.capacity.requests
    found = {name.removeprefix(f"{DRIVER}/"): amount for name, amount in requests.items()}
    if unknown := sorted(set(found) - {"memory", "compute"}):
        raise InputError(f"capacity {_short(unknown[0])}: these GPUs have memory and compute")
    if len(found) < len(requests):
        raise InputError(f"capacity: an amount is stated with and without {DRIVER}/ before its name; remove one")
    return found


def _parameters(config: Iterable[ClaimConfiguration], requests: set[str]) -> GpuShare | None:
    found = [
        one.opaque.parameters
        for one in config
        if one.opaque is not None and _is_for_us(one) and (not one.requests or requests & set(one.requests))
    ]
    if len(found) > 1:
        raise InputError(f"{len(found)} configurations for driver {DRIVER}, expected 1")
    try:
        return msgspec.json.decode(found[0], type=GpuShare) if found else None
    except (ValueError, RecursionError) as error:  # it may not even be UTF-8
        raise InputError(f"parameters for driver {DRIVER}: {printable(str(error)[:200])}") from None


def _memory(what: str, written: str | int) -> MiB:
    try:
        mib = -(-parse_quantity(written) // MIB_BYTES)
    except ValueError as error:
        raise InputError(f"{what}: {error}") from None
    if not 1 <= mib <= MOST_MEMORY:
        raise InputError(f"{what}: {printable(str(written)[:40])}, expected an amount below 1 TiB, such as 4Gi")
    return MiB(int(mib))


def _compute(written: str | int) -> MilliGpu:
    try:
        percent = -(-parse_quantity(written) // 1)
    except ValueError as error:
        raise InputError(f"compute: {error}") from None
    if not 0 <= percent <= 100:
        raise InputError(f"compute: {printable(str(written)[:40])}, expected a percentage of up to 100")
    return MilliGpu(int(percent) * 10)


# Constraints


def _is_one_numa(constraint: DeviceConstraint, devices: DeviceClaim) -> bool:
    """Whether it is one that the core knows: all GPUs of the claim on one NUMA node."""
    everything = {one.name for one in devices.requests}
    return constraint.match_attribute == NUMA and set(constraint.requests or everything) == everything


def _with_common_value(
    options: list[tuple[Part, ...]], constraint: DeviceConstraint, around: Surroundings
) -> list[tuple[Part, ...]]:
    """Each option with one value of the attribute for all requests that the constraint names."""
    if constraint.distinct_attribute is not None or constraint.match_attribute is None:
        raise InputError("of the constraints, only matchAttribute is supported for these GPUs")
    name = constraint.match_attribute
    fleet = None if around.fleet is None else around.fleet()
    values = {} if fleet is None else fleet.values(name)
    if fleet is None or not values:
        raise InputError(f"matchAttribute: no GPU has the attribute {_short(name)}")
    least = min(max((part.container.gpus for part in one if _is_named(part, constraint)), default=1) for one in options)
    shared = [uuids for uuids in values.values() if len(uuids) >= least]
    if len(shared) > MOST_VALUES:
        raise InputError(f"matchAttribute: {_short(name)} has more than {MOST_VALUES} values; choose another attribute")
    found = []
    for option in options:
        for uuids in shared:
            fleet.take(len(option) * (1 + len(uuids) // UUIDS_PER_STEP))
            restricted = tuple(_restricted(part, uuids) if _is_named(part, constraint) else part for part in option)
            if None not in restricted:
                found.append(tuple(part for part in restricted if part is not None))
                _bounded(found)
    if not found:
        raise InputError(f"matchAttribute: no GPUs that the requests select agree in {_short(name)}")
    return found


def _is_named(part: Part, constraint: DeviceConstraint) -> bool:
    return not constraint.requests or bool({part.request, part.request.partition("/")[0]} & set(constraint.requests))


def _restricted(part: Part, uuids: frozenset[str]) -> Part | None:
    """None if too few GPUs are left."""
    own = part.container.use_uuids
    left = own & uuids if own else uuids
    return (
        part._replace(container=replace(part.container, use_uuids=left)) if len(left) >= part.container.gpus else None
    )


def _short(text: str) -> str:
    return printable(text[:80])
