# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods as their authors wrote them, in more detail than placing them needs: what they mount, set and may do.

Decoded before anything is changed, so that whoever changes the JSON itself knows what is where.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.kube.api.objects import MOST_CONTAINERS, Gate, Metadata, Pod, PodContainer, PodSpec, Resources

DEBUG = "ephemeralcontainers"
"""the part of a pod by which debug containers are added to it"""
MIRROR = "kubernetes.io/config.mirror"
"""annotation: the pod is kubelet's own note of one that runs from a file, and changing it changes nothing"""


class Variable(msgspec.Struct, frozen=True):
    """An environment variable."""

    name: str = ""


class Mount(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume in a container."""

    name: str = ""
    mount_path: str = ""


class BlockDevice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume in a container, as a device."""

    device_path: str = ""


class Security(msgspec.Struct, frozen=True):
    """What a container may do."""

    privileged: bool | None = None


class WrittenContainer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A container as its author wrote it."""

    name: str = ""
    restart_policy: str | None = None
    env: tuple[Variable, ...] = ()
    resources: Resources = Resources()
    volume_mounts: tuple[Mount, ...] = ()
    volume_devices: tuple[BlockDevice, ...] = ()
    security_context: Security = Security()


class HostPath(msgspec.Struct, frozen=True):
    """A folder of the node."""

    path: str = ""


class Volume(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume."""

    name: str = ""
    host_path: HostPath | None = None


WrittenContainers = Annotated[tuple[WrittenContainer, ...], Meta(max_length=MOST_CONTAINERS)]


class WrittenSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a pod is to be."""

    containers: WrittenContainers = ()
    init_containers: WrittenContainers = ()
    ephemeral_containers: WrittenContainers = ()
    volumes: tuple[Volume, ...] = ()
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[Gate, ...] = ()
    runtime_class_name: str | None = None
    priority: int | None = None


class WrittenPod(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod."""

    metadata: Metadata = Metadata()
    spec: WrittenSpec = WrittenSpec()


def is_mirror(annotations: dict[str, str]) -> bool:
    """Whether a pod with these annotations runs already, whatever is said of it here."""
    return MIRROR in annotations


def as_placed(pod: WrittenPod, annotations: dict[str, str]) -> Pod:
    """The same pod with other annotations, as the codec reads pods."""
    return Pod(
        metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
        spec=PodSpec(
            containers=_asking(pod.spec.containers),
            init_containers=_asking(pod.spec.init_containers),
            priority=pod.spec.priority,
        ),
    )


def _asking(containers: tuple[WrittenContainer, ...]) -> tuple[PodContainer, ...]:
    return tuple(
        PodContainer(name=one.name, resources=one.resources, restart_policy=one.restart_policy) for one in containers
    )
