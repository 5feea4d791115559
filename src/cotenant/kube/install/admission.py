# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""When the API server calls the webhook, and what it does with a pod if the webhook does not answer.

A pod that requests GPUs is refused until the webhook answers. Any other pod is admitted unchanged, so an outage of
cotenant never stops the rest of the cluster.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cotenant.kube.api.names import MUTATE, NAMESPACE, SCHEDULER, SERVICE_PORT, WEBHOOK, Json, object_of
from cotenant.kube.api.objects import EPHEMERAL_CONTAINERS, MIRROR
from cotenant.kube.codec.other_systems import FRACTION, KAI, MEMORY, VOLCANO, mig_prefix
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.install.template_functions import to_json
from cotenant.kube.settings import DEFAULT_SCHEDULER, KubeSettings, WebhookPart, split_label

API = "admissionregistration.k8s.io/v1"
NOT_MIRROR = f"!(has(object.metadata.annotations) && {to_json(MIRROR)} in object.metadata.annotations)"
"""CEL: the pod is not the mirror of a static pod."""


def rule_for(operations: Iterable[str], resources: Iterable[str], *, group: str = "", version: str = "v1") -> Json:
    """Return the rule that matches these operations on these resources, by default of the core API group."""
    return {"apiGroups": [group], "apiVersions": [version], "operations": [*operations], "resources": [*resources]}


def cel(value: str | list[str]) -> str:
    """Return the CEL literal of a string or a list of strings; CEL writes them as JSON does."""
    return to_json(value)


def optional(path: str, default: str) -> str:
    """CEL: a field, or the default if the object has no such field."""
    return f"has({path}) ? {path} : {default}"


def named_expressions(expressions: Mapping[str, str]) -> list[Json]:
    """Return variables or match conditions as the API lists them."""
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]


def policy_with_binding(name: str, constraints: Json, **rules: list[Json]) -> list[Json]:
    """Return an admission policy and the binding that enforces it on the whole cluster."""
    spec = {"failurePolicy": "Fail", "matchConstraints": constraints, **rules}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        object_of("ValidatingAdmissionPolicy", API, name, cluster_wide=True, spec=spec),
        object_of("ValidatingAdmissionPolicyBinding", API, name, cluster_wide=True, spec=binding),
    ]


TIMEOUT_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the settings say, as admission rules write it: the values of one cluster, or expressions of the chart's
    templates that yield them."""

    resources: str
    """CEL list of the resources by which pods request GPUs"""
    of_classes: str
    """CEL list of the resources by which pods request devices of our classes"""
    scheduler: str
    """CEL string: the schedulerName of the pods that we place"""
    ours: str
    """CEL list: the schedulerNames of the pods that we place or take over"""
    of_kai: str
    """CEL list: the schedulerNames of pods whose requests may be KAI's"""
    mig: str
    """CEL: whether a pod requests MIG instances"""
    skips: str
    """CEL: whether a pod carries one of the labels to skip"""
    namespaces: Any
    """match expressions that select the namespaces whose pods the webhook prepares"""
    labels: Any
    """match expressions that select the pods that it prepares"""
    mapped: Mapping[str, str]
    """the resources that device classes of ours state (`extendedResourceName`), by class"""


def terms_of(settings: KubeSettings) -> Terms:
    """Return the terms of a cluster with these settings."""
    mig = [mig_condition(cel(mig_prefix(one))) for one in settings.codec().dialects if one.name == VGPU.name]
    return Terms(
        resources=cel(sorted(settings.codec().by_resource)),
        of_classes=cel(sorted(settings.class_resources)),
        scheduler=cel(settings.scheduler.name),
        ours=cel(["", DEFAULT_SCHEDULER, settings.scheduler.name, *settings.scheduler.replaces]),
        of_kai=cel([KAI, settings.scheduler.name]),
        mig="".join(mig) or "false",
        skips=_skips(settings.webhook),
        namespaces=[*namespace_selector(settings.webhook), *label_selector(settings.webhook)],
        labels=label_selector(settings.webhook),
        mapped=settings.claims.extended_resources,
    )


def webhook_configuration(terms: Terms, certificate: str | None = None, url: str | None = None) -> Json:
    """Return the configuration; `url` is the address of the webhook if it is not behind its service. Without the
    certificate, the scheduler or cert-manager adds it later."""
    of_classes = _has_amount(f"name in {terms.of_classes}", "requests")
    with_gpus = f"({requests_gpus(terms)}) || ({of_classes}) || ({_requests_translated(terms)})"
    call = {
        **_call(certificate, url),
        "reinvocationPolicy": "IfNeeded",
        "namespaceSelector": {"matchExpressions": terms.namespaces},
        "objectSelector": {"matchExpressions": terms.labels},
    }
    create = rule_for(["CREATE"], ["pods"])
    debug = rule_for(["UPDATE"], [f"pods/{EPHEMERAL_CONTAINERS}"])
    return object_of(
        "MutatingWebhookConfiguration",
        API,
        SCHEDULER,  # as in versions in which the scheduler served the webhook, so that an update replaces it
        cluster_wide=True,
        webhooks=[
            {
                "name": "gpus.pods.cotenant.io",
                **call,
                **_when(create, "Fail", runs=NOT_MIRROR, asks=with_gpus),
            },
            {
                "name": "others.pods.cotenant.io",
                **call,
                **_when(create, "Ignore", runs=NOT_MIRROR, asks=f"!({with_gpus})"),
            },
            {"name": "debug.pods.cotenant.io", **call, **_when(debug, "Fail")},
        ],
    )


def namespace_selector(webhook: WebhookPart) -> list[Json]:
    """Select all namespaces but those to skip and our own: the webhook could not start if it had to admit itself."""
    skipped = sorted({NAMESPACE, *webhook.skip_namespaces})
    return [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": skipped}]


def label_selector(webhook: WebhookPart) -> list[Json]:
    """Select the pods or namespaces that carry none of the labels to skip."""
    return [_without_label(key, value) for key, value in map(split_label, webhook.skip_labels) if key]


def _without_label(key: str, value: str | None) -> Json:
    if value is None:
        return {"key": key, "operator": "DoesNotExist"}
    return {"key": key, "operator": "NotIn", "values": [value]}


def _call(certificate: str | None, url: str | None) -> Json:
    service = {"namespace": NAMESPACE, "name": WEBHOOK, "port": SERVICE_PORT, "path": f"/{MUTATE}"}
    address = {"service": service} if url is None else {"url": f"{url}/{MUTATE}"}
    trust = {} if certificate is None else {"caBundle": b64encode(certificate.encode()).decode()}
    return {
        "clientConfig": {**address, **trust},
        "admissionReviewVersions": ["v1"],
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_S,
    }


def _when(rule: Json, failure_policy: str, **conditions: str) -> Json:
    when = {"rules": [{**rule, "scope": "Namespaced"}], "failurePolicy": failure_policy}
    return {**when, "matchConditions": named_expressions(conditions)} if conditions else when


def requests_gpus(terms: Terms) -> str:
    """CEL: whether a pod requests GPUs in any dialect of the cluster."""
    return _has_limit(f"name in {terms.resources}")


def _requests_translated(terms: Terms) -> str:
    """CEL: whether a pod that we place requests GPUs as in a system whose requests the webhook translates."""
    scheduler = f"(!has(object.spec.schedulerName) || object.spec.schedulerName in {terms.ours})"
    said = " || ".join(f"{cel(name)} in object.metadata.annotations" for name in (FRACTION, MEMORY))
    kai = (
        f"has(object.spec.schedulerName) && object.spec.schedulerName in {terms.of_kai}"
        f" && has(object.metadata.annotations) && ({said})"
    )
    volcano = _has_limit(f"name in {cel(sorted(VOLCANO))}")
    return f"{scheduler} && (({volcano}) || ({kai}) || {terms.mig})"


def _skips(webhook: WebhookPart) -> str:
    """CEL: whether the pod carries one of the labels to skip."""
    labels = "object.metadata.labels"
    carried = [
        f"{cel(key)} in {labels}" + ("" if value is None else f" && {labels}[{cel(key)}] == {cel(value)}")
        for key, value in map(split_label, webhook.skip_labels)
        if key
    ]
    return f"has({labels}) && ({' || '.join(carried)})" if carried else "false"


def mig_condition(prefix: str) -> str:
    """CEL: whether a pod requests MIG instances, the names of whose resources begin with a prefix (a CEL string)."""
    return f"({_has_limit(f'name.startsWith({prefix})')})"


def _has_limit(condition: str) -> str:
    """CEL: whether a container of a pod has a limit of a resource whose `name` fulfils the condition."""
    return _has_amount(condition, "limits")


def _has_amount(condition: str, part: str) -> str:
    """CEL: the same for limits or requests; the API server adds a request for each limit."""
    one = f"has(c.resources) && has(c.resources.{part}) && c.resources.{part}.exists(name, {condition})"
    return (
        f"object.spec.containers.exists(c, {one})"
        f" || (has(object.spec.initContainers) && object.spec.initContainers.exists(c, {one}))"
    )
