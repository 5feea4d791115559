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


class ExactRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request for devices of one class."""

    device_class_name: str = ""
    count: int = 1
    allocation_mode: str = ""
    admin_access: bool | None = None
    selectors: tuple[msgspec.Raw, ...] = ()


class SubRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One of several requests; the first that fits counts."""

    device_class_name: str = ""


class DeviceRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request of a claim."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[SubRequest, ...] = ()


class OpaqueParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that only a driver understands."""

    driver: str = ""
    parameters: Any = None


class ClaimConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of some requests of a claim; without names, of all."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueParameters | None = None


class DeviceClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that a claim requests."""

    requests: tuple[DeviceRequest, ...] = ()
    config: tuple[ClaimConfiguration, ...] = ()
    constraints: tuple[msgspec.Raw, ...] = ()


class ClaimSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of a claim."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that a claim was given."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""


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


class ResourceSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that a driver offers on a node; its content is written by us and not read back."""

    metadata: Metadata = Metadata()
    spec: Any = None


CLAIMS = Kind("resourceclaims", ResourceClaim, group=f"apis/{VERSION}")
SLICES = Kind("resourceslices", ResourceSlice, group=f"apis/{VERSION}", cluster_wide=True)
