# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests as KAI and Volcano have them, NVIDIA's device plugin for MIG, and our device classes, become requests of the
dialect `vgpu`.

They are translated once, at admission, rather than read as dialects of their own: each further dialect adds resources
to every node, and kube-scheduler compares all of them for every pod. The translation of a translated pod is the same
pod, because a pod may be reviewed twice.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

import msgspec

from cotenant.core.units import parse_profile
from cotenant.errors import InputError
from cotenant.kube.api.names import Json
from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.constraints import PROFILE
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.guaranteed import LIMIT_MEMORY, parse_amount
from cotenant.kube.codec.other_systems import (
    COMPUTE,
    CONTAINER,
    CORES,
    DEVICES,
    FRACTION,
    GROUP,
    KAI,
    LIMIT,
    MEMORY,
    OF_CONTAINER,
    VOLCANO,
    VOLCANO_MODE,
    mig_prefix,
)
from cotenant.kube.codec.queueing import GANG, GANG_SIZE
from cotenant.kube.codec.queueing import GROUP as COSCHEDULING_GROUP
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.device_classes import from_classes
from cotenant.kube.webhook.review import PodManifest
from cotenant.wire.text import printable

_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_FRACTION = re.compile(r"[0-9]{0,3}\.?[0-9]{1,15}", re.ASCII)


def translate(pod: Json, manifest: PodManifest, settings: KubeSettings) -> Json:
    """The pod with requests of `vgpu` instead, if it is ours to place; InputError says what to write instead.

    A resource of a device class of ours is always ours.
    """
    scheduler, ours = manifest.spec.scheduler_name, settings.scheduler
    vgpu = next((one for one in settings.codec().dialects if one.name == VGPU.name), None)
    pod = from_classes(pod, vgpu, settings)  # any scheduler binds a pod with claims
    if vgpu is None or not ours.places(scheduler):
        return pod
    pod = _from_mig(_from_volcano(pod, vgpu), vgpu)
    # The names of KAI's annotations have no prefix, so only a pod of that scheduler means KAI by them.
    if scheduler in (KAI, ours.name) and _is_of_kai(manifest.metadata.annotations):
        return _from_kai(pod, manifest, vgpu)
    return pod


def _is_of_kai(annotations: Mapping[str, str]) -> bool:
    before, behind = OF_CONTAINER[MEMORY]
    return any(key in (FRACTION, MEMORY) or (key.startswith(before) and key.endswith(behind)) for key in annotations)


def ungrouped(manifest: PodManifest) -> tuple[str, ...]:
    """Warnings for the author of a pod with GPUs that belongs to a group that is not read here: of Volcano, or of
    Kubernetes 1.35."""
    annotations, labels = manifest.metadata.annotations, manifest.metadata.labels
    if GANG in annotations or COSCHEDULING_GROUP in labels:
        return ()
    found = [f"annotation {GROUP}"] if GROUP in annotations else []
    found += ["workloadRef"] if manifest.spec.workload_ref is not None else []
    return tuple(
        f"{what}: the pods of this group start one by one; {GANG} and {GANG_SIZE} start them together" for what in found
    )


def _from_volcano(pod: Json, vgpu: Dialect) -> Json:
    spec, metadata = pod.get("spec", {}), pod.get("metadata", {})
    names = {theirs: name for theirs, field in VOLCANO.items() if (name := getattr(vgpu, field)) is not None}
    changed = {
        kind: [_renamed(container, names) for container in spec[kind]]
        for kind in ("initContainers", "containers")
        if spec.get(kind)
    }
    if all(changed[kind] == spec[kind] for kind in changed):
        return pod
    annotations = dict(metadata.get("annotations") or {})
    if VOLCANO_MODE in annotations and vgpu.mode is not None:
        annotations.setdefault(vgpu.mode, annotations[VOLCANO_MODE])
        metadata = {**metadata, "annotations": annotations}
    return {**pod, "metadata": metadata, "spec": {**spec, **changed}}


def _from_mig(pod: Json, vgpu: Dialect) -> Json:
    """Resources such as nvidia.com/mig-1g.10gb become GPUs and the annotation of the profile."""
    spec, metadata = pod.get("spec", {}), pod.get("metadata", {})
    prefix = mig_prefix(vgpu)
    kinds = [kind for kind in ("initContainers", "containers") if spec.get(kind)]
    named = sorted({name for kind in kinds for one in spec[kind] for name in _limits(one) if name.startswith(prefix)})
    if not named:
        return pod
    if len(named) > 1:
        raise InputError(f"{named[0]} and {named[1]}: expected MIG instances of one profile in a pod; use two pods")
    if any(vgpu.count in _limits(one) and named[0] not in _limits(one) for kind in kinds for one in spec[kind]):
        raise InputError(f"{named[0]} and {vgpu.count} in two containers: use two pods, since a profile is of a pod")
    profile = _profile(named[0], prefix)
    annotations = dict(metadata.get("annotations") or {})
    if annotations.setdefault(PROFILE, profile) != profile:
        raise InputError(
            f"{named[0]} and annotation {PROFILE}: {printable(annotations[PROFILE][:40])}: use one of them"
        )
    changed = {kind: [_renamed(container, {named[0]: vgpu.count}) for container in spec[kind]] for kind in kinds}
    return {**pod, "metadata": {**metadata, "annotations": annotations}, "spec": {**spec, **changed}}


def _limits(container: Json) -> Mapping[str, object]:
    resources = container.get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def _profile(resource: str, prefix: str) -> str:
    """The profile in the name of a resource, which has a dot where nvidia-smi has a plus: `mig-1g.10gb.me`."""
    name, gigabytes, rest = resource.removeprefix(prefix).partition("gb")
    try:
        return parse_profile(f"{name}{gigabytes}{rest.replace('.', '+', 1)}")
    except ValueError as error:
        raise InputError(f"{printable(resource[:60])}: {error}") from None


def _renamed(container: Json, names: Mapping[str, str]) -> Json:
    resources = container.get("resources") or {}
    changed = {}
    for part in ("limits", "requests"):
        amounts = resources.get(part) or {}
        if theirs := [name for name in amounts if name in names]:
            new = {name: amount for name, amount in amounts.items() if name not in names}
            for name in theirs:
                if names[name] in new:
                    where = f"container {printable(str(container.get('name', ''))[:80])}"
                    raise InputError(f"{where}: {name} and {names[name]} state the same amount: use one of them")
                new[names[name]] = amounts[name]
            changed[part] = new
    return {**container, "resources": {**resources, **changed}} if changed else container


def _from_kai(pod: Json, manifest: PodManifest, vgpu: Dialect) -> Json:
    annotations = _of_pod(manifest.metadata.annotations)
    wanted, limit = _kai_amounts(annotations, vgpu)
    kinds = {"containers": manifest.spec.containers, "initContainers": manifest.spec.init_containers}
    places = {one.name: (kind, index) for kind, containers in kinds.items() for index, one in enumerate(containers)}
    name = annotations.get(CONTAINER, next(iter(places), ""))
    if name not in places:
        raise InputError(f"annotation {CONTAINER}: the pod has no container {printable(name[:80])!r}")
    kind, index = places[name]
    containers = list(pod["spec"][kind])
    resources = containers[index].get("resources") or {}
    of_vgpu = {
        resource: str(amount)
        for resource, amount in (resources.get("limits") or resources.get("requests") or {}).items()
        if resource in vgpu.resources
    }
    if limit is not None:
        pod = _with_limit(pod, name, limit)
    if _quantities(of_vgpu) == _quantities(wanted):
        return pod
    if of_vgpu:
        said = FRACTION if FRACTION in annotations else MEMORY
        both = f"{next(iter(of_vgpu))} and annotation {said}"
        raise InputError(f"container {printable(name[:80])}: {both}: use one of them")
    parts = {part: {**(resources.get(part) or {}), **wanted} for part in ("limits", "requests")}
    containers[index] = {**containers[index], "resources": {**resources, **parts}}
    return {**pod, "spec": {**pod["spec"], kind: containers}}


def _quantities(amounts: Mapping[str, str]) -> dict[str, Fraction | str]:
    """The numbers behind quantities, since the API server writes 2000 as 2k."""
    found: dict[str, Fraction | str] = {}
    for name, amount in amounts.items():
        try:
            found[name] = parse_quantity(amount)
        except ValueError:
            found[name] = amount
    return found


def _of_pod(annotations: Mapping[str, str]) -> dict[str, str]:
    """KAI's annotations with those of one container as if they were the pod's, which has GPUs in one container only."""
    found = dict(annotations)
    for short, (before, behind) in OF_CONTAINER.items():
        for key, written in annotations.items():
            if not key.startswith(before) or not key.endswith(behind):
                continue
            name, said = key[len(before) : len(key) - len(behind)], printable(key[:120])
            if not name or found.setdefault(CONTAINER, name) != name:
                raise InputError(f"annotation {said}: KAI shares the GPUs of one container of a pod only")
            value = written if short.startswith(FRACTION) else str(_memory(key, written))
            if short in annotations and _memory(short, annotations[short]) != _memory(key, written):
                raise InputError(f"annotations {said} and {short} state the same: use one of them")
            found[short] = value
    return found


def _with_limit(pod: Json, container: str, limit: str) -> Json:
    """The limit above the request as an annotation of ours."""
    metadata = pod.get("metadata", {})
    annotations = dict(metadata.get("annotations") or {})
    annotations[LIMIT_MEMORY] = msgspec.json.encode({container: limit}).decode()
    return {**pod, "metadata": {**metadata, "annotations": annotations}}


def _kai_amounts(annotations: Mapping[str, str], vgpu: Dialect) -> tuple[dict[str, str], str | None]:
    """The amounts on each GPU by name of the resource, and the limit on memory if it is above the request."""
    if FRACTION in annotations and MEMORY in annotations:
        raise InputError(f"annotations {FRACTION} and {MEMORY} both state the memory: use one of them")
    if CORES in annotations and COMPUTE not in annotations:
        raise InputError(
            f"annotation {CORES}: cotenant divides the compute of a GPU in percent; write {COMPUTE} instead"
        )
    said, field = (FRACTION, "memory_percent") if FRACTION in annotations else (MEMORY, "memory")
    other = MEMORY if said == FRACTION else FRACTION
    if other + LIMIT in annotations:
        raise InputError(f"annotations {said} and {other}{LIMIT} have different units; write {said}{LIMIT}")
    # KAI has a number of MiB in `gpu-memory`, and a quantity such as 2Gi in its limit.
    request = _percent(said, annotations[said]) if said == FRACTION else _number(said, annotations[said])
    limit, most = request, annotations.get(said + LIMIT)
    if most is not None:
        limit = _percent(said + LIMIT, most) if said == FRACTION else _memory(said + LIMIT, most)
    if limit < request:
        raise InputError(f"annotation {said}{LIMIT}: less than {said}; write as much or more")
    if field == "memory" and request % vgpu.memory_unit:
        raise InputError(f"annotation {said}: this cluster counts units of {vgpu.memory_unit} MiB; write a multiple")
    amounts = {
        "count": _number(DEVICES, annotations.get(DEVICES, "1")),
        field: request // vgpu.memory_unit if field == "memory" else request,
    }
    if COMPUTE in annotations:
        amounts["compute"] = _number(COMPUTE, annotations[COMPUTE])
    for needed in amounts:
        if getattr(vgpu, needed) is None:
            raise InputError(f"annotation {said}: this cluster's dialect {vgpu.name} has no resource for {needed}")
    above = None if limit == request else f"{limit}%" if field == "memory_percent" else str(limit)
    return {getattr(vgpu, needed): str(amount) for needed, amount in amounts.items()}, above


def _memory(name: str, text: str) -> int:
    """The MiB of a quantity such as 2Gi."""
    found = parse_amount(name, text)
    if found.is_percent or found.number == 0:
        raise InputError(f"annotation {name}: {printable(text[:40])!r}, expected MiB, or a quantity such as 2Gi")
    return found.number


def _percent(name: str, text: str) -> int:
    """Whole percents, rounded down: n pods of 1/n of a GPU fit on it."""
    if not _FRACTION.fullmatch(text) or not 0 < (fraction := Fraction(Decimal(text))) < 1:
        raise InputError(
            f"annotation {name}: {printable(text[:40])!r}, expected a part of a GPU between 0 and 1, such as 0.5;"
            " request whole GPUs as nvidia.com/gpu"
        )
    return max(1, int(fraction * 100))


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) == 0:
        raise InputError(f"annotation {name}: {printable(text[:40])!r}, expected a whole number above 0")
    return int(text)
