# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Memory in another unit than that of the dialect is moved to a resource of ours that counts MiB.

The resource keeps its meaning from then on: a second review, the scheduler and kubelet need no annotation to read it.
"""

from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.api.names import Json
from cotenant.kube.codec.amounts import MEMORY_UNIT, UNITS, parse_quantity
from cotenant.kube.codec.settings import Settings
from cotenant.kube.settings import KubeSettings
from cotenant.wire.text import printable


def with_memory_in_mib(pod: Json, namespace: str, settings: KubeSettings) -> Json:
    """Return the pod with such memory in MiB, or the pod itself if it has none; InputError if the unit is unknown."""
    annotations = pod.get("metadata", {}).get("annotations") or {}
    of_namespace = settings.namespaces.get(namespace)
    name = annotations.get(MEMORY_UNIT, None if of_namespace is None else of_namespace.memory_unit)
    if name is None:
        return pod
    if name not in UNITS:
        raise InputError(f"annotation {MEMORY_UNIT}: {printable(name[:40])!r}, expected {' or '.join(UNITS)}")
    spec, codec = pod.get("spec", {}), settings.codec()
    kinds = [kind for kind in ("initContainers", "containers") if spec.get(kind)]
    containers = {kind: [_moved(container, UNITS[name], codec) for container in spec[kind]] for kind in kinds}
    return {**pod, "spec": {**spec, **containers}}


def _moved(container: Json, unit: MiB, codec: Settings) -> Json:
    resources = container.get("resources") or {}
    parts = {part: dict(amounts) for part, amounts in resources.items() if part in ("limits", "requests") and amounts}
    for dialect in codec.dialects:
        if dialect.memory is not None and dialect.memory_mib is not None and dialect.memory_unit != unit:
            for amounts in parts.values():
                _move(amounts, dialect.memory, dialect.memory_mib, unit)
    return {**container, "resources": {**resources, **parts}} if parts else container


def _move(amounts: dict[str, str | int], memory: str, memory_mib: str, unit: MiB) -> None:
    if memory not in amounts or memory_mib in amounts:
        return  # two amounts are left as they are, and refused
    try:
        mib = parse_quantity(amounts[memory]) * unit
    except ValueError:
        return  # left where it is, and refused there
    if mib.denominator == 1 and mib >= 0:
        del amounts[memory]
        amounts[memory_mib] = str(mib)
