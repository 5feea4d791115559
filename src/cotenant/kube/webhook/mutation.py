# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Prepares pods at their creation, and debug containers later, so that the binding only has to say which GPUs."""

import asyncio

import msgspec

from cotenant.core.model import Container, ContainerKind
from cotenant.errors import InputError
from cotenant.kube.api.names import MUTATE, Json
from cotenant.kube.api.objects import EPHEMERAL_CONTAINERS, Pod, containers_of, decode_object, resources_of
from cotenant.kube.api.server import Reply, Route, Routes
from cotenant.kube.codec.annotations import foreign_records, without_assignment
from cotenant.kube.codec.automatic_memory import MEMORY
from cotenant.kube.codec.guaranteed import limits_annotations
from cotenant.kube.codec.moved import AMOUNTS, with_amounts_back, with_amounts_moved
from cotenant.kube.codec.objective import LATENCY
from cotenant.kube.codec.queueing import GATE, attained_of, estimate_of, gang_of, hold_in
from cotenant.kube.codec.request import NUMBERS, PodRequest, container_names, request_of, unenforced
from cotenant.kube.codec.settings import Settings, isolation_in
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.settings import DEFAULT_SCHEDULER, KubeSettings, has_label
from cotenant.kube.webhook.conversion import converted
from cotenant.kube.webhook.injection import hide_gpus, with_gpus, with_limits, without_gpus
from cotenant.kube.webhook.review import (
    MOST_BYTES,
    AdmissionRequest,
    PodManifest,
    allow,
    decode_optional,
    decode_review,
    is_mirror,
    refuse,
    to_pod,
)
from cotenant.kube.webhook.translation import translate, ungrouped
from cotenant.kube.webhook.units import with_memory_in_mib
from cotenant.kube.webhook.validation import check_mounts, check_pod
from cotenant.kube.webhook.wishes import wishes_of

_GATES = "schedulingGates"
SMALL = 16 * 1024
"""Size of a review in bytes up to which it is answered in the event loop: a typical one takes 0.1 ms, the worst 4 ms,
and to wake a thread and wait for it takes longer than the typical one."""


def webhook_routes(settings: KubeSettings, *, by_cdi: bool = False) -> Routes:
    """Return the routes that the API server calls; `by_cdi`: the agents of all nodes give GPUs to containers by CDI."""

    async def answer(_words: tuple[str, ...], body: bytes) -> Reply:
        if len(body) <= SMALL:
            return Reply(mutate(body, settings, by_cdi=by_cdi))
        # In a thread: a large pod takes a while, and its answer depends on nothing that changes in the event loop.
        return Reply(await asyncio.to_thread(mutate, body, settings, by_cdi=by_cdi))

    return {MUTATE: Route(method="POST", answer=answer, most_bytes=MOST_BYTES)}


def mutate(body: bytes, settings: KubeSettings, *, by_cdi: bool = False) -> bytes:
    """Answer the review of a pod; InputError only if the body is not a review."""
    request = decode_review(body)
    creates = request.is_for("CREATE")
    if not creates and not request.is_for("UPDATE", EPHEMERAL_CONTAINERS):
        return allow(request)
    try:
        pod = decode_object(bytes(request.object), PodManifest, "a pod")
        if _is_skipped(pod, request.namespace, settings) or is_mirror(pod.metadata.annotations):
            return allow(request)
        old = decode_object(bytes(request.object), Json, "a pod")
        if not creates:
            return allow(request, old, _prepare_debug(old, pod, request))
        original = with_amounts_back(old, pod.metadata.annotations, settings.codec())
        if original is not old:
            pod = msgspec.convert(original, PodManifest)
        translated = translate(original, pod, settings)
        read = with_memory_in_mib(translated, request.namespace, settings)
        if read is not original:
            pod = msgspec.convert(read, PodManifest)
        new, warnings = _prepare(read, pod, settings, request.namespace, by_cdi)
        return allow(request, old, new, warnings)
    except InputError as error:
        return refuse(request, str(error))
    except RecursionError:
        return refuse(request, "not a pod: nested too deeply")


def _is_skipped(pod: PodManifest, namespace: str, settings: KubeSettings) -> bool:
    # Labels of the namespace are not in a review; the API server evaluates them by the webhook's selector.
    skipped, labels = settings.webhook, pod.metadata.labels
    return namespace in skipped.skip_namespaces or any(has_label(labels, one) for one in skipped.skip_labels)


def _prepare(
    old: Json, pod: PodManifest, settings: KubeSettings, namespace: str, by_cdi: bool
) -> tuple[Json, tuple[str, ...]]:
    """Return the pod as it is admitted, and warnings for its author."""
    codec = settings.codec()
    annotations = without_assignment(pod.metadata.annotations)
    if not _are_numbers_valid(pod, annotations):
        annotations.pop(NUMBERS, None)
    pod_request = request_of(to_pod(pod, annotations), codec)
    wishes = wishes_of(pod, pod_request, isolation_in(namespace, codec))
    annotations = {**wishes.annotations, **annotations}
    check_pod(pod, annotations, namespace, pod_request, settings)
    if settings.claims.enabled and settings.claims.convert:
        asked, annotated = _without(LATENCY, pod, annotations, pod_request, codec)  # the scheduler reads that again
        stated, _ = _without(MEMORY, pod, annotated, asked, codec)
        claims = converted(old.get("spec", {}), asked, stated, codec)
        if claims is not None:
            if pod.spec.scheduler_name in settings.scheduler.replaces:  # as for any pod that requests GPUs
                claims = {**claims, "schedulerName": settings.scheduler.name}
            kept = {**annotations, **limits_annotations(_by_name(pod_request))}
            changed = {**old, "spec": claims, "metadata": {**old.get("metadata", {}), "annotations": kept}}
            new, more = _prepare(changed, msgspec.convert(changed, PodManifest), settings, namespace, by_cdi)
            return new, (*wishes.warnings, *more)
    if settings.claims.only and pod_request.containers and pod_request.vendor is VGPU.vendor:
        way = "a claim cannot express this request" if settings.claims.convert else "name a claim instead of resources"
        raise InputError(f"this cluster gives NVIDIA GPUs by ResourceClaims only (claims.only): {way}")
    if pod_request.containers and not settings.has_extender:
        raise InputError(
            "this cluster gives GPUs by ResourceClaims only (claims.only); for GPUs of other vendors than NVIDIA, an"
            " administrator sets claims.extender"
        )
    spec = _with_containers(old.get("spec", {}), pod, pod_request, codec, by_cdi)
    spec = _with_gate(spec, to_pod(pod, annotations), pod_request, namespace, settings)
    if pod_request.containers or settings.scheduler.takes_over(pod.spec.scheduler_name):
        spec["schedulerName"] = settings.scheduler.name if settings.has_extender else DEFAULT_SCHEDULER
        annotations = without_assignment(annotations, foreign_records(codec))
    if pod_request.containers:
        annotations |= limits_annotations(_by_name(pod_request))
        names = container_names(to_pod(pod, annotations))
        annotations[NUMBERS] = msgspec.json.encode(names).decode()
        if settings.moves_amounts_in(namespace):
            handed_out = {
                one.name: one.amounts.dialect.handed_out
                for one in pod_request.containers
                if one.amounts.dialect.name == VGPU.name
            }
            spec, moved = with_amounts_moved(spec, handed_out, codec)
            annotations |= {} if moved is None else {AMOUNTS: moved}
        if settings.webhook.runtime_class is not None and not pod.spec.runtime_class_name:
            spec["runtimeClassName"] = settings.webhook.runtime_class
    else:
        annotations.pop(NUMBERS, None)
    warnings = (*wishes.warnings, *unenforced(pod_request), *(ungrouped(pod) if pod_request.containers else ()))
    if annotations == pod.metadata.annotations:
        return {**old, "spec": spec}, warnings
    return {**old, "spec": spec, "metadata": {**old.get("metadata", {}), "annotations": annotations}}, warnings


def _without(
    key: str, pod: PodManifest, annotations: dict[str, str], request: PodRequest, codec: Settings
) -> tuple[PodRequest, dict[str, str]]:
    """The request of a pod as if it did not have an annotation, and its other annotations."""
    if key not in annotations:
        return request, annotations
    others = {other: text for other, text in annotations.items() if other != key}
    return request_of(to_pod(pod, others), codec), others


def _by_name(pod_request: PodRequest) -> dict[str, Container]:
    return {one.name: one.amounts.container for one in pod_request.containers}


def _are_numbers_valid(pod: PodManifest, annotations: dict[str, str]) -> bool:
    """Return whether the pod's containers were numbered by an earlier call of this webhook.

    Another webhook may have added containers since; the numbers of the first ones must then stay.
    """
    try:
        names = container_names(to_pod(pod, annotations))
    except InputError:
        return False
    return len(names) == len(pod.spec.containers) + len(pod.spec.init_containers)


def _with_containers(spec: Json, pod: PodManifest, pod_request: PodRequest, codec: Settings, by_cdi: bool) -> Json:
    requests = {one.name: one for one in pod_request.containers}
    # Kubelet gives the devices of an init container to another one later, and only variables tell their GPUs apart.
    by_cdi = by_cdi and not any(one.amounts.container.kind is ContainerKind.INIT for one in pod_request.containers)
    # Kubelet ignores extended resources that its node does not have. If the user chose the node, they prove nothing.
    is_scheduled = not pod.spec.node_name
    resources = {one.name: resources_of(one) if is_scheduled else {} for _, one in containers_of(to_pod(pod, {}))}

    def prepare(container: Json) -> Json:
        name = container.get("name", "")
        if name in requests:
            return with_gpus(container, requests[name], by_cdi=by_cdi)
        return without_gpus(container, resources[name], codec)

    changed = with_limits(spec, pod_request.containers)
    for kind in ("initContainers", "containers"):
        if kind in spec:
            changed[kind] = [prepare(container) for container in spec[kind]]
    return changed


def _with_gate(spec: Json, pod: Pod, pod_request: PodRequest, namespace: str, settings: KubeSettings) -> Json:
    """Return the spec with our scheduling gate if the pod has to queue, and without it if not.

    InputError if an annotation about the queue cannot be parsed. Kubernetes admits no gate after the creation of a pod.
    Which devices claims are for is not known here: the scheduler removes the gate of pods whose claims are not ours.
    """
    if pod_request.containers:
        estimate_of(pod), attained_of(pod)
    waits = bool(pod_request.containers) and (
        gang_of(pod) is not None
        or hold_in(pod.metadata.annotations) is not None
        or settings.queue.takes(namespace, pod.metadata.labels)
    )
    waits = waits or (settings.claims.enabled and bool(spec.get("resourceClaims")) and not spec.get("nodeName"))
    before = spec.get(_GATES) or []
    gates = [gate for gate in before if gate.get("name") != GATE or waits]
    if waits and not any(gate.get("name") == GATE for gate in gates):
        gates.append({"name": GATE})
    if gates == before:
        return spec
    rest = {key: value for key, value in spec.items() if key != _GATES}
    return {**rest, _GATES: gates} if gates else rest


def _prepare_debug(old: Json, pod: PodManifest, request: AdmissionRequest) -> Json:
    """Prepare the new debug containers; Kubernetes does not let existing ones change."""
    before = decode_optional(request.old_object, PodManifest, "a pod")
    existing = set() if before is None else {container.name for container in before.spec.ephemeral_containers}
    for container in pod.spec.ephemeral_containers:
        if container.name not in existing:
            check_mounts(container, has_gpus=False)
    containers = [
        container if container.get("name", "") in existing else hide_gpus(container)
        for container in old.get("spec", {}).get("ephemeralContainers", [])
    ]
    return {**old, "spec": {**old["spec"], "ephemeralContainers": containers}} if containers else old
