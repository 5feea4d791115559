# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Rejects pods that would bypass their GPU requests: mounts over our files, privileged sharing, a node of their choice.

Only a mount at one of our paths or below hides our files. A mount above one, such as /run, does not, because container
runtimes mount in the order of depth.
"""

import posixpath
from collections.abc import Iterator, Mapping

from cotenant.errors import InputError
from cotenant.kube.codec.guaranteed import LIMIT_MEMORY, REQUEST_MEMORY, is_elastic
from cotenant.kube.codec.isolation import Isolation, check_isolation, is_enforced
from cotenant.kube.codec.paths import AGENT_FOLDER, DEVICE_LIST, GUARDED, HOST_LASTING, HOST_PASSING, LIMITS_FOLDER
from cotenant.kube.codec.policy import check_policy, policy_of
from cotenant.kube.codec.privileges import check_privileges
from cotenant.kube.codec.request import PodRequest
from cotenant.kube.codec.settings import isolation_in
from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.injection import is_our_volume
from cotenant.kube.webhook.review import ContainerManifest, PodManifest, SpecManifest
from cotenant.wire.text import printable

HOST_FOLDERS = tuple(map(str, (HOST_LASTING, AGENT_FOLDER, HOST_PASSING)))
"""Folders of the node that belong to its agent or to `cotenant run`."""


def check_pod(
    pod: PodManifest, annotations: Mapping[str, str], namespace: str, request: PodRequest, settings: KubeSettings
) -> None:
    """InputError if the pod must not be admitted; the message says what to write instead."""
    with_gpus = {one.name for one in request.containers}
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    for container in containers:
        check_mounts(container, has_gpus=container.name in with_gpus)
    _check_host_paths(pod.spec, has_gpus=bool(with_gpus))
    if not with_gpus:
        return
    _check_scheduling(pod.spec, settings)
    _check_policy(annotations, settings.scheduler.policy, request)
    check_isolation(annotations, namespace, isolation_in(namespace, settings.codec()))
    _check_grants(annotations, request, isolation_in(namespace, settings.codec()))
    _check_claims(pod.spec, settings)
    if not request.demand.exclusive and not settings.webhook.allow_privileged:
        for container in containers:
            if container.name in with_gpus:
                security = container.security_context
                check_privileges(
                    container.name,
                    privileged=bool(security.privileged),
                    capabilities=security.capabilities.add,
                    host_pid=bool(pod.spec.host_pid),
                )


def _check_grants(annotations: Mapping[str, str], request: PodRequest, allowed: Isolation) -> None:
    """What a pod uses above its request must be given back, which only enforced limits can do."""
    if is_enforced(annotations, allowed):
        return
    if any(is_elastic(one.amounts.container) for one in request.containers):
        raise InputError(
            "a request below the limit needs limits that are enforced, and those of this pod are not; remove the"
            f" annotation {REQUEST_MEMORY} or {LIMIT_MEMORY}, or have the limits enforced"
        )


def _check_claims(spec: SpecManifest, settings: KubeSettings) -> None:
    """What a claim is for is in another object, which the webhook has no right to read."""
    if spec.resource_claims and not settings.webhook.allow_claims:
        names = ", ".join(_short(claim.name) for claim in spec.resource_claims[:3])
        raise InputError(
            f"spec.resourceClaims: {names}: another driver could give the pod the GPUs that cotenant shares; request"
            " GPUs either under resources or by claims. If claims are for other devices here, the administrator sets"
            " webhook.allow-claims"
        )


def check_mounts(container: ContainerManifest, *, has_gpus: bool) -> None:
    """InputError if a mount would hide our files, or would name GPUs to NVIDIA's runtime."""
    guarded = tuple(map(str, GUARDED)) if has_gpus else ()
    for path in _mount_paths(container):
        normal = _normalize(path)
        if DEVICE_LIST in path or any(_is_in(normal, folder) for folder in guarded):
            raise InputError(
                f"container {_short(container.name)}: a mount at {_short(path)} would change which GPUs the container"
                " uses; choose another path"
            )


def _mount_paths(container: ContainerManifest) -> Iterator[str]:
    own = str(LIMITS_FOLDER)  # our own mount, if the pod is reviewed again
    yield from (
        mount.mount_path
        for mount in container.volume_mounts
        if not (is_our_volume(mount.name) and _normalize(mount.mount_path) == own)
    )
    yield from (device.device_path for device in container.volume_devices)


def _check_host_paths(spec: SpecManifest, *, has_gpus: bool) -> None:
    for volume in spec.volumes:
        if volume.host_path is None:
            continue
        path = _normalize(volume.host_path.path)
        # Monitoring mounts the whole node, which contains our folders; a pod with GPUs has no reason to.
        if any(_is_in(path, folder) or (has_gpus and _is_in(folder, path)) for folder in HOST_FOLDERS):
            raise InputError(
                f"volume {_short(volume.name)}: hostPath {_short(volume.host_path.path)} overlaps a folder of cotenant"
                f" ({', '.join(HOST_FOLDERS)}); choose another path"
            )


def _check_scheduling(spec: SpecManifest, settings: KubeSettings) -> None:
    ours = settings.scheduler.name
    if spec.node_name:
        raise InputError(
            f"spec.nodeName: {_short(spec.node_name)} bypasses the scheduler, so the pod would get no GPU; remove it,"
            f" and write nodeSelector: {{kubernetes.io/hostname: {_short(spec.node_name)}}}"
        )
    if settings.has_extender and not settings.scheduler.places(spec.scheduler_name):  # any scheduler binds by claims
        raise InputError(
            f"spec.schedulerName: {_short(spec.scheduler_name)} cannot assign these GPUs; remove it, or write {ours}."
            " If cotenant replaces that scheduler, the administrator adds its name to scheduler.replaces"
        )


def _check_policy(annotations: Mapping[str, str], default: str, request: PodRequest) -> None:
    if (spec := policy_of(annotations, default, request)) != default:
        check_policy(spec)


def _normalize(path: str) -> str:
    """Return the path that this one leads to, as far as text can tell: /var/run is /run on every node.

    Plain string functions, because a pod may have tens of thousands of paths and `pathlib` is much slower.
    """
    absolute = posixpath.normpath("/" + path.lstrip("/"))
    return absolute.removeprefix("/var") if _is_in(absolute, "/var/run") else absolute


def _is_in(path: str, folder: str) -> bool:
    """Return whether the path is the folder or is below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _short(text: str) -> str:
    return printable(text[:80])
