# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The objects of Dynamic Resource Allocation (`resource.k8s.io/v1`), as far as we read them."""

from typing import Any

import msgspec

from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.objects import Metadata

GROUP = "resource.k8s.io"
VERSION = f"{GROUP}/v1"
FINALIZER = "resource.kubernetes.io/delete-protection"
"""Keeps an allocated claim until the pods that use it are gone. Kubernetes deallocates only claims that have it."""


class CelSelector(msgspec.Struct, frozen=True, kw_only=True):
    """A condition in CEL."""

    expression: str = ""


class DeviceSelector(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on a device."""

    cel: CelSelector | None = None


class CapacityRequests(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed of the capacity of each device; Kubernetes has it since 1.34, and by default since 1.36."""

    requests: dict[str, str | int] = {}


class ExactRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request for devices of one class."""

    name: str = ""
    """Of an alternative: the first that fits counts."""
    device_class_name: str = ""
    count: int = 1
    allocation_mode: str = ""
    admin_access: bool | None = None
    selectors: tuple[DeviceSelector, ...] = ()
    capacity: CapacityRequests | None = None


class DeviceRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request of a claim."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] = ()
    """The first of these that fits counts."""


class OpaqueParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that only a driver understands."""

    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")
    """JSON; not read before a driver needs it, because any user writes what they like there."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "parameters", self.parameters.copy())  # else it keeps the whole list


class ClaimConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of some requests of a claim; without names, of all."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueParameters | None = None


class DeviceConstraint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the devices of some requests of a claim have in common; without names, of all."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that a claim requests."""

    requests: tuple[DeviceRequest, ...] = ()
    config: tuple[ClaimConfiguration, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()


class ClaimSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of a claim."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A device that a claim was given."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    """Whether it was given for administration, also if other pods use it."""


class AllocatedDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that a claim was given."""

    results: tuple[AllocatedDevice, ...] = ()


class ClaimAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim was given."""

    devices: AllocatedDevices = AllocatedDevices()


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that may use a claim."""

    name: str = ""
    uid: str = ""


class ClaimStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The status of a claim."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ResourceClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim to devices."""

    metadata: Metadata = Metadata()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class DeviceClassSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The spec of a class."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[ClaimConfiguration, ...] = ()
    extended_resource_name: str | None = None
    """The extended resource by which Kubernetes 1.36 lets pods request devices of the class without a claim."""


class DeviceClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class of devices that claims name."""

    metadata: Metadata = Metadata()
    spec: DeviceClassSpec = DeviceClassSpec()


class ResourceSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that a driver offers on a node; its content is written by us and not read back."""

    metadata: Metadata = Metadata()
    spec: Any = None


CLAIMS = Kind("resourceclaims", ResourceClaim, group=f"apis/{VERSION}")
TEMPLATES = Kind("resourceclaimtemplates", ResourceSlice, group=f"apis/{VERSION}")
"""Their content is written by us and not read back."""
CLASSES = Kind("deviceclasses", DeviceClass, group=f"apis/{VERSION}", cluster_wide=True)
SLICES = Kind("resourceslices", ResourceSlice, group=f"apis/{VERSION}", cluster_wide=True)
