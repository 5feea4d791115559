# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Resources of our device classes become requests of the dialect `vgpu`, which are then turned into claims.

kube-scheduler 1.36 would make a claim for such a pod itself, and find no device for it: only our scheduler allocates
them.
"""

from collections.abc import Mapping

from cotenant.core.isolation import Rung
from cotenant.errors import InputError
from cotenant.kube.api.names import Json
from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.claim_requests import ADMIN, MIG, SHARED
from cotenant.kube.codec.device_classes import IMPLICIT
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.isolation import ISOLATION
from cotenant.kube.codec.moved import check_equal
from cotenant.kube.settings import KubeSettings
from cotenant.wire.text import printable

_KINDS = ("initContainers", "containers")


def from_classes(pod: Json, vgpu: Dialect | None, settings: KubeSettings) -> Json:
    """The pod with requests of `vgpu` instead; InputError says what to write instead."""
    spec = pod.get("spec", {})
    kinds = [kind for kind in _KINDS if spec.get(kind)]
    used = [
        named for kind in kinds for one in spec[kind] if (named := _named(one, settings.class_resources)) is not None
    ]
    if not used:
        return pod
    resource, name = used[0]
    if vgpu is None:
        raise InputError(f"{resource}: ResourceClaims need the dialect vgpu, which is disabled in the settings")
    if not settings.claims.convert:
        raise InputError(
            f"{resource}: this cluster turns no resources into ResourceClaims; name a claim of device class {name} in"
            " spec.resourceClaims, or have the administrator set claims.convert"
        )
    changed = {kind: [_translated(one, settings.class_resources, vgpu) for one in spec[kind]] for kind in kinds}
    new = {**pod, "spec": {**spec, **changed}}
    if all(one != MIG for _, one in used):
        return new
    asking = [one for kind in kinds for one in spec[kind] if vgpu.count in _amounts(one)]
    if asking or any(one != MIG for _, one in used):
        raise InputError(f"{resource}: MIG instances and other GPUs in one pod; use two pods")
    metadata = pod.get("metadata", {})
    annotations = dict(metadata.get("annotations") or {})
    if annotations.setdefault(ISOLATION, Rung.MIG.value) != Rung.MIG:
        said = printable(annotations[ISOLATION][:40])
        raise InputError(
            f"{resource} and annotation {ISOLATION}: {said}: a MIG instance isolates; remove the annotation"
        )
    return {**new, "metadata": {**metadata, "annotations": annotations}}


def _amounts(container: Json) -> Mapping[str, str | int]:
    resources = container.get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def _named(container: Json, classes: Mapping[str, str]) -> tuple[str, str] | None:
    """The resource by which a container requests devices of a class, and the class; None if it requests none."""
    found = [
        (name, classes[name])
        for name, amount in _amounts(container).items()
        if name in classes and not _is_zero(amount)
    ]
    if len(found) > 1:
        where = f"container {printable(str(container.get('name', ''))[:80])}"
        raise InputError(f"{where}: {found[0][0]} and {found[1][0]} are of two device classes; use two containers")
    return found[0] if found else None


def _is_zero(amount: str | int) -> bool:
    try:
        return parse_quantity(amount) == 0
    except ValueError:
        return False  # refused when the request is read


def _translated(container: Json, classes: Mapping[str, str], vgpu: Dialect) -> Json:
    named = _named(container, classes)
    if named is None:
        return container
    resource, name = named
    where = f"container {printable(str(container.get('name', ''))[:80])}: {resource}"
    if name == ADMIN:
        raise InputError(f"{where}: class {ADMIN} is for requests with adminAccess; name a ResourceClaim that has it")
    beside = sorted(_amounts(container).keys() & set(vgpu.resources))
    if vgpu.count in beside:
        raise InputError(f"{where} and {vgpu.count} state the same amount: use one of them")
    if beside and name != SHARED:
        raise InputError(f"{where}: class {name} has no amounts; remove {beside[0]}, or request {IMPLICIT}{SHARED}")
    resources = container.get("resources") or {}
    amount = _amounts(container)[resource]
    check_equal(container, resource, (resources.get("requests") or {}).get(resource, amount), amount)
    wanted = {vgpu.count: amount}
    if name != SHARED and vgpu.memory_percent is not None:
        wanted[vgpu.memory_percent] = 100  # also if a default of the cluster says less
    parts = {
        part: {**{key: text for key, text in (resources.get(part) or {}).items() if key != resource}, **wanted}
        for part in ("limits", "requests")
    }
    return {**container, "resources": {**resources, **parts}}
