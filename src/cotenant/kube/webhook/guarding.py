# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod may not do beside what its requests say: mount over our files, share while privileged, choose its node.

Only a mount at our paths or below hides them. One above, such as /run, does not: runtimes mount in the order of depth.
"""

import posixpath
from collections.abc import Iterator, Mapping

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.errors import InputError
from cotenant.kube.codec.paths import AGENT_FOLDER, GUARDED, HOST_LASTING, HOST_PASSING, LIMITS_FOLDER
from cotenant.kube.codec.request import Asked
from cotenant.kube.scheduler.rankers import Rankers, policy_of
from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.injecting import is_our_volume
from cotenant.kube.webhook.pods import WrittenContainer, WrittenPod, WrittenSpec
from cotenant.wire.text import printable

DEFAULT_SCHEDULER = "default-scheduler"
DEVICE_LIST = "/run/nvidia-container-devices"
"""what is mounted here is read by NVIDIA's runtime as names of GPUs, where so configured"""
HOST_FOLDERS = tuple(map(str, (HOST_LASTING, AGENT_FOLDER, HOST_PASSING)))
"""of an agent on its node, or of `cotenant run` there"""


def check_pod(pod: WrittenPod, asked: Asked, settings: KubeSettings) -> None:
    """InputError says what the author should write instead."""
    asking = {one.name for one in asked.containers}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        check_mounts(container, has_gpus=container.name in asking)
    _check_folders(pod.spec, has_gpus=bool(asking))
    if not asking:
        return
    _check_placing(pod.spec, settings)
    _check_policy(pod.metadata.annotations, settings.scheduler.policy)
    if not asked.demand.exclusive and not settings.webhook.allow_privileged:
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            if container.name in asking and container.security_context.privileged:
                raise InputError(
                    f"container {_shown(container.name)}: privileged, so it reaches every GPU of its node and cannot"
                    " share one; leave that out, or ask for whole cards"
                )


def check_mounts(container: WrittenContainer, *, has_gpus: bool) -> None:
    """InputError where a mount would hide our files, or name GPUs to the runtime."""
    guarded = (DEVICE_LIST, *map(str, GUARDED)) if has_gpus else (DEVICE_LIST,)
    for path in _mount_paths(container):
        place = _clean(path)
        if any(_is_in(place, ours) for ours in guarded):
            raise InputError(
                f"container {_shown(container.name)}: mounts something at {_shown(path)}, which decides about GPUs;"
                " choose another path"
            )


def _mount_paths(container: WrittenContainer) -> Iterator[str]:
    own = str(LIMITS_FOLDER)  # where we put it ourselves when the pod came by before
    yield from (
        mount.mount_path
        for mount in container.volume_mounts
        if not (is_our_volume(mount.name) and _clean(mount.mount_path) == own)
    )
    yield from (device.device_path for device in container.volume_devices)


def _check_folders(spec: WrittenSpec, *, has_gpus: bool) -> None:
    for volume in spec.volumes:
        if volume.host_path is None:
            continue
        path = _clean(volume.host_path.path)
        # Whoever watches a node mounts all of it; a job with GPUs has no business there.
        above = has_gpus and any(_is_in(ours, path) for ours in HOST_FOLDERS)
        if above or any(_is_in(path, ours) for ours in HOST_FOLDERS):
            raise InputError(
                f"volume {_shown(volume.name)}: host path {_shown(volume.host_path.path)} reaches into cotenant's own"
                " folders; choose another"
            )


def _check_placing(spec: WrittenSpec, settings: KubeSettings) -> None:
    ours = settings.scheduler.name
    if spec.node_name:
        raise InputError(
            f"spec.nodeName: {_shown(spec.node_name)}, so nobody would choose GPUs for this pod; leave it out and write"
            f" nodeSelector: {{kubernetes.io/hostname: {_shown(spec.node_name)}}}"
        )
    if spec.scheduler_name not in ("", DEFAULT_SCHEDULER, ours):
        raise InputError(
            f"spec.schedulerName: {_shown(spec.scheduler_name)} does not hand out these GPUs; leave it out, or write"
            f" {ours}"
        )


def _check_policy(annotations: Mapping[str, str], usual: str) -> None:
    if (spec := policy_of(annotations, usual)) != usual:
        Rankers(Knowledge()).of(spec, Cluster.of(()))  # says itself which ones there are


def _clean(path: str) -> str:
    """Where a path leads, as far as it can be told without the file system: /var/run is /run everywhere. As text, since
    a pod may have tens of thousands."""
    absolute = posixpath.normpath("/" + path.lstrip("/"))
    return absolute.removeprefix("/var") if _is_in(absolute, "/var/run") else absolute


def _is_in(path: str, folder: str) -> bool:
    """Whether it is that folder, or below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _shown(text: str) -> str:
    return printable(text[:80])
