# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Amounts that the webhook has moved from the resources of containers into an annotation.

    nvidia.com/gpu: 1, nvidia.com/gpumem: 4000     becomes     nvidia.com/gpu: 1 and
    cotenant.io/amounts: {"main": {"nvidia.com/gpumem": "4000"}}

For each pod, kube-scheduler parses the name of every extended resource again for every node. Only the devices that
kubelet hands out have to stay. Such a pod is read as if the amounts of its author were still under resources.
"""

from collections.abc import Iterator, Mapping

import msgspec

from cotenant.core.model import ContainerKind
from cotenant.errors import InputError
from cotenant.kube.api.names import Json
from cotenant.kube.api.objects import Pod, PodContainer, containers_of
from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.settings import Settings
from cotenant.kube.codec.vgpu import VGPU
from cotenant.wire.text import printable

AMOUNTS = own_key("amounts")
"""Annotation: amounts by resource name by container."""
LONGEST = 64 * 1024
"""Characters of the annotation."""

Amounts = Mapping[str, Mapping[str, str | int]]

_DECODER = msgspec.json.Decoder(dict[str, dict[str, str | int]])
_PARTS = ("limits", "requests")
_KINDS = ("initContainers", "containers")


def amounts_in(annotations: Mapping[str, str]) -> Amounts:
    """The amounts in the annotation, none without it; InputError if it cannot be read."""
    written = annotations.get(AMOUNTS)
    if written is None:
        return {}
    try:
        if len(written) <= LONGEST:
            return _DECODER.decode(written)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    raise InputError(f"annotation {AMOUNTS}: cannot be read; remove it, and write the amounts under resources")


def containers_with_amounts(pod: Pod, codec: Settings) -> Iterator[tuple[ContainerKind, PodContainer]]:
    """All containers in the order in which they start, each with the amounts that its author wrote.

    A container without devices under resources requests nothing, whatever the annotation says: quotas and admission
    policies see resources only, and every user can write an annotation.
    """
    moved = amounts_in(pod.metadata.annotations)
    devices = {one.handed_out for one in codec.dialects if one.name == VGPU.name} if moved else ()
    for kind, container in containers_of(pod):
        limits = container.resources.limits
        amounts = moved.get(container.name)
        if amounts is not None and any(str(limits.get(name, 0)) != "0" for name in devices):
            resources = msgspec.structs.replace(container.resources, limits={**amounts, **limits})
            container = msgspec.structs.replace(container, resources=resources)
        yield kind, container


def with_amounts_back(pod: Json, annotations: Mapping[str, str], codec: Settings) -> Json:
    """The pod with what the annotation says under resources, and without the annotation. A pod is reviewed twice, or is
    a copy of another one, or its author wrote the annotation.

    InputError if the annotation has something else than amounts of the pod's containers, or other amounts than these.
    """
    moved = amounts_in(annotations)
    if AMOUNTS not in annotations:
        return pod
    spec, left = dict(pod.get("spec") or {}), dict(moved)
    for kind in _KINDS:
        if kind in spec:
            spec[kind] = [
                _with_back(one, left.pop(one["name"]), codec) if one.get("name") in left else one for one in spec[kind]
            ]
    if left:
        raise InputError(f"annotation {AMOUNTS}: the pod has no container {printable(next(iter(left))[:80])!r}")
    metadata = dict(pod.get("metadata") or {})
    metadata["annotations"] = {key: text for key, text in (metadata.get("annotations") or {}).items() if key != AMOUNTS}
    if not metadata["annotations"]:
        del metadata["annotations"]
    return {**pod, "metadata": metadata, "spec": spec}


def _with_back(container: Json, amounts: Mapping[str, str | int], codec: Settings) -> Json:
    resources = dict(container.get("resources") or {})
    for name in amounts:
        if name not in codec.by_resource:
            raise InputError(f"annotation {AMOUNTS}: {printable(name[:80])} is no resource of a GPU in this cluster")
        if any(name in (resources.get(part) or {}) for part in _PARTS):
            where = f"container {printable(container['name'][:80])}"
            raise InputError(f"{where}: {name} is under resources and in annotation {AMOUNTS}: use one of them")
    for part in _PARTS:
        if part == "limits" or resources.get(part):
            resources[part] = {**(resources.get(part) or {}), **amounts}
    return {**container, "resources": resources}


def with_amounts_moved(spec: Json, handed_out: Mapping[str, str], codec: Settings) -> tuple[Json, str | None]:
    """The spec of a pod without the amounts that only the scheduler needs, and the annotation that has them; None if
    there are none. `handed_out` is the resource of which kubelet hands out devices, by container with GPUs."""
    changed = dict(spec)
    moved: dict[str, Json] = {}
    for kind in _KINDS:
        if kind not in spec:
            continue
        changed[kind] = []
        for container in spec[kind]:
            name = container.get("name", "")
            kept, amounts = _without(container, handed_out[name], codec) if name in handed_out else (container, {})
            changed[kind].append(kept)
            moved |= {name: amounts} if amounts else {}
    return changed, msgspec.json.encode(moved).decode() if moved else None


def _without(container: Json, handed_out: str, codec: Settings) -> tuple[Json, Json]:
    resources = dict(container.get("resources") or {})
    amounts: Json = {}
    names = codec.by_resource.keys() - {handed_out}
    for part in reversed(_PARTS):
        here = resources.get(part) or {}
        for name in names & here.keys() & amounts.keys():
            check_equal(container, name, amounts[name], here[name])
        amounts |= {name: amount for name, amount in here.items() if name in names}
        resources[part] = {name: amount for name, amount in here.items() if name not in names}
        if not resources[part]:
            del resources[part]
    return {**container, "resources": resources}, amounts


def check_equal(container: Json, name: str, request: str | int, limit: str | int) -> None:
    """InputError if they differ, as Kubernetes says of an amount under resources."""
    try:
        is_equal = parse_quantity(request) == parse_quantity(limit)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
    if not is_equal:
        where = f"container {printable(container.get('name', '')[:80])}"
        raise InputError(f"{where}: the request of {name} must be equal to its limit")
