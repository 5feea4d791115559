# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The resources by which pods request devices of our classes without naming a claim, as Kubernetes 1.36 lets them.

Each class has a resource of its own name, and another one if an administrator has set it (`extendedResourceName`).
"""

from collections.abc import Mapping

from cotenant.errors import InputError
from cotenant.kube.codec.claim_requests import CLASSES, MIG, SHARED, WHOLE
from cotenant.kube.codec.keys import is_key
from cotenant.kube.codec.settings import Settings
from cotenant.kube.codec.vgpu import VGPU
from cotenant.wire.text import printable

IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Begins the resource of each device class; its name follows."""
MAPPED = (SHARED, WHOLE, MIG)
"""The classes that may have another resource besides."""


def class_resources(mapped: Mapping[str, str], codec: Settings) -> dict[str, str]:
    """The class that each resource requests; resources of dialects are not among them.

    `mapped` has the other resources of classes, by the class. InputError if one of them cannot be.
    """
    found = {f"{IMPLICIT}{name}": name for name in CLASSES}
    for name, resource in mapped.items():
        if name not in MAPPED:
            raise InputError(f"device class {printable(name[:80])!r}: expected one of {', '.join(MAPPED)}")
        what = f"{name}: {printable(resource[:80])}"
        if not _is_extended(resource):
            raise InputError(f"{what}: expected a name such as example.com/gpu, of a domain other than kubernetes.io")
        if list(mapped.values()).count(resource) > 1:
            raise InputError(f"{what}: two device classes have this resource; each needs one of its own")
        dialect = codec.by_resource.get(resource)
        if dialect is None:
            found[resource] = name
        elif name == MIG or dialect.name != VGPU.name or resource != dialect.count:
            raise InputError(
                f"{what}: pods of dialect {dialect.name} request something else by it; choose another name"
            )
    return found


def _is_extended(resource: str) -> bool:
    """Whether Kubernetes accepts it as the extended resource of a device class."""
    is_native = "/" not in resource or "kubernetes.io/" in resource
    return not is_native and not resource.startswith("requests.") and is_key(f"requests.{resource}")
