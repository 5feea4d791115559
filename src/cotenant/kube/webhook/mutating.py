# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A pod at its creation, and debug containers later: prepared so that the binding can say which GPUs they have."""

import msgspec

from cotenant.errors import InputError
from cotenant.kube.api.objects import containers_of, decode_object, resources_of
from cotenant.kube.codec.request import NUMBERS, Asked, asked_of, container_names, unenforced
from cotenant.kube.codec.settings import Settings
from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.guarding import check_mounts, check_pod
from cotenant.kube.webhook.injecting import void, with_gpus, with_limits, without_gpus
from cotenant.kube.webhook.pods import DEBUG, WrittenPod, as_placed, is_mirror
from cotenant.kube.webhook.protecting import records_of_others, without_assignment
from cotenant.kube.webhook.queueing import with_gate
from cotenant.kube.webhook.reviewing import Json, Request, allowed, decode_review, decode_there, refused
from cotenant.kube.webhook.selecting import is_skipped


def mutate(body: bytes, settings: KubeSettings) -> bytes:
    """The answer to a review of a pod; InputError only where the body is no review."""
    request = decode_review(body)
    creates = request.is_for("CREATE")
    if not creates and not request.is_for("UPDATE", DEBUG):
        return allowed(request)
    try:
        pod = decode_object(bytes(request.object), WrittenPod, "a pod")
        skipped = is_skipped(pod.metadata.labels, request.namespace, settings.webhook)
        if skipped or is_mirror(pod.metadata.annotations):
            return allowed(request)
        old = decode_object(bytes(request.object), Json, "a pod")
        if not creates:
            return allowed(request, old, _debugged(old, pod, request))
        new, asked = _prepared(old, pod, settings, request.namespace)
        return allowed(request, old, new, unenforced(asked))
    except InputError as error:
        return refused(request, 422, str(error))
    except RecursionError:
        return refused(request, 422, "not a pod: nested too deeply")


def _prepared(old: Json, pod: WrittenPod, settings: KubeSettings, namespace: str) -> tuple[Json, Asked]:
    codec = settings.codec()
    annotations = without_assignment(pod.metadata.annotations)
    if not _are_its_names(pod, annotations):
        annotations.pop(NUMBERS, None)
    asked = asked_of(as_placed(pod, annotations), codec)
    check_pod(pod, asked, settings)
    spec = _with_containers(old.get("spec", {}), pod, asked, codec)
    spec = with_gate(spec, as_placed(pod, annotations), asked, namespace, settings.queue)
    if asked.containers or pod.spec.scheduler_name == settings.scheduler.name:
        annotations = without_assignment(annotations, records_of_others(codec))
    if asked.containers:
        names = container_names(as_placed(pod, annotations))
        annotations[NUMBERS] = msgspec.json.encode(names).decode()
        spec["schedulerName"] = settings.scheduler.name
        if settings.webhook.runtime_class is not None and not pod.spec.runtime_class_name:
            spec["runtimeClassName"] = settings.webhook.runtime_class
    else:
        annotations.pop(NUMBERS, None)
    if annotations == pod.metadata.annotations:
        return {**old, "spec": spec}, asked
    return {**old, "spec": spec, "metadata": {**old.get("metadata", {}), "annotations": annotations}}, asked


def _are_its_names(pod: WrittenPod, annotations: dict[str, str]) -> bool:
    """Whether its containers are numbered already, by us when it came by before: others may have been added since."""
    try:
        names = container_names(as_placed(pod, annotations))
    except InputError:
        return False
    return len(names) == len(pod.spec.containers) + len(pod.spec.init_containers)


def _with_containers(spec: Json, pod: WrittenPod, asked: Asked, codec: Settings) -> Json:
    asking = {one.name: one for one in asked.containers}
    # Kubelet passes over resources that its node has not: where nobody chose the node, they give no card.
    chosen = not pod.spec.node_name
    resources = {one.name: resources_of(one) if chosen else {} for _, one in containers_of(as_placed(pod, {}))}

    def prepared(container: Json) -> Json:
        name = container.get("name", "")
        if name in asking:
            return with_gpus(container, asking[name])
        return without_gpus(container, resources[name], codec)

    changed = with_limits(spec, asked.containers)
    for kind in ("initContainers", "containers"):
        if kind in spec:
            changed[kind] = [prepared(container) for container in spec[kind]]
    return changed


def _debugged(old: Json, pod: WrittenPod, request: Request) -> Json:
    """Only those that are new: nobody may change the others any more."""
    before = decode_there(request.old_object, WrittenPod, "a pod")
    known = set() if before is None else {container.name for container in before.spec.ephemeral_containers}
    for written in pod.spec.ephemeral_containers:
        if written.name not in known:
            check_mounts(written, has_gpus=False)
    containers = [
        container if container.get("name", "") in known else void(container)
        for container in old.get("spec", {}).get("ephemeralContainers", [])
    ]
    return {**old, "spec": {**old["spec"], "ephemeralContainers": containers}} if containers else old
