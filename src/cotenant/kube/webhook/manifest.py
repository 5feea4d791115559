# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a pod's manifest that the webhook reads, in more detail than placement needs: mounts, variables, rights.

The manifest is decoded and checked before anything is changed, so code that edits the JSON can rely on its shape.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.kube.api.objects import MIRROR, MOST_CONTAINERS, Gate, Metadata, Pod, PodContainer, PodSpec, Resources


class Variable(msgspec.Struct, frozen=True):
    """An environment variable."""

    name: str = ""


class Mount(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume that is mounted in a container."""

    name: str = ""
    mount_path: str = ""


class BlockDevice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume that a container gets as a block device."""

    device_path: str = ""


class Security(msgspec.Struct, frozen=True):
    """The security context of a container."""

    privileged: bool | None = None


class ContainerManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A container as the user wrote it."""

    name: str = ""
    restart_policy: str | None = None
    env: tuple[Variable, ...] = ()
    resources: Resources = Resources()
    volume_mounts: tuple[Mount, ...] = ()
    volume_devices: tuple[BlockDevice, ...] = ()
    security_context: Security = Security()


class HostPath(msgspec.Struct, frozen=True):
    """A directory of the node."""

    path: str = ""


class Volume(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume of a pod."""

    name: str = ""
    host_path: HostPath | None = None


ContainerManifests = Annotated[tuple[ContainerManifest, ...], Meta(max_length=MOST_CONTAINERS)]


class SpecManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The spec of a pod as the user wrote it."""

    containers: ContainerManifests = ()
    init_containers: ContainerManifests = ()
    ephemeral_containers: ContainerManifests = ()
    volumes: tuple[Volume, ...] = ()
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[Gate, ...] = ()
    runtime_class_name: str | None = None
    priority: int | None = None


class PodManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod as the user wrote it."""

    metadata: Metadata = Metadata()
    spec: SpecManifest = SpecManifest()


def is_mirror(annotations: dict[str, str]) -> bool:
    """Return whether the pod mirrors a static pod: it runs already, and a change or refusal would not affect it."""
    return MIRROR in annotations


def to_pod(manifest: PodManifest, annotations: dict[str, str]) -> Pod:
    """Return the pod with other annotations, in the form that the codec reads."""
    return Pod(
        metadata=msgspec.structs.replace(manifest.metadata, annotations=annotations),
        spec=PodSpec(
            containers=_to_containers(manifest.spec.containers),
            init_containers=_to_containers(manifest.spec.init_containers),
            priority=manifest.spec.priority,
        ),
    )


def _to_containers(containers: tuple[ContainerManifest, ...]) -> tuple[PodContainer, ...]:
    return tuple(
        PodContainer(name=one.name, resources=one.resources, restart_policy=one.restart_policy) for one in containers
    )
