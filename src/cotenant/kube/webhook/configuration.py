# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How the API server is told to call the webhook: for which objects, and what happens while it does not answer.

A pod that asks for GPUs waits for us. Any other pod of the cluster does not: it comes in as it is. Clusters before 1.28
know no conditions: there both rules are for all pods, so all wait.
"""

from base64 import b64encode

from cotenant.kube.codec.settings import Settings
from cotenant.kube.install.names import NAMESPACE, SCHEDULER, SERVICE_PORT, Json, object_of
from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.pods import DEBUG
from cotenant.kube.webhook.protecting import WAYS
from cotenant.kube.webhook.rules import API, NO_MIRROR, cel, named, rule_for
from cotenant.kube.webhook.selecting import no_label, other_namespaces

MUTATE = "mutate"
VALIDATE = "validate"
TIMEOUT_S = 5


def webhook_configurations(
    settings: KubeSettings, certificate: str, url: str | None = None, *, has_policies: bool = True
) -> list[Json]:
    """What a cluster needs; `url` is where the webhook is, if not behind its service.

    A cluster without admission policies (before 1.30) asks us also whether an assignment is forged.
    """
    prepare = _preparing(settings, certificate, url)
    return [prepare] if has_policies else [prepare, _protecting(settings, certificate, url)]


def _preparing(settings: KubeSettings, certificate: str, url: str | None) -> Json:
    asks = _asks(settings.codec())
    call = {
        **_call(MUTATE, certificate, url),
        "reinvocationPolicy": "IfNeeded",
        "namespaceSelector": {"matchExpressions": [*other_namespaces(settings.webhook), *no_label(settings.webhook)]},
        "objectSelector": {"matchExpressions": no_label(settings.webhook)},
    }
    created, debugged = rule_for(["CREATE"], ["pods"]), rule_for(["UPDATE"], [f"pods/{DEBUG}"])
    return object_of(
        "MutatingWebhookConfiguration",
        API,
        SCHEDULER,
        cluster_wide=True,
        webhooks=[
            {"name": "gpus.pods.cotenant.io", **call, **_when(created, "Fail", runs=NO_MIRROR, asks=asks)},
            {"name": "others.pods.cotenant.io", **call, **_when(created, "Ignore", runs=NO_MIRROR, asks=f"!({asks})")},
            {"name": "debug.pods.cotenant.io", **call, **_when(debugged, "Fail")},
        ],
    )


def _protecting(settings: KubeSettings, certificate: str, url: str | None) -> Json:
    # Labels skip nothing here: whoever could set one could forge.
    call = _call(VALIDATE, certificate, url) | {
        "namespaceSelector": {"matchExpressions": other_namespaces(settings.webhook)}
    }
    rule = rule_for(["CREATE", "UPDATE"], WAYS)
    return object_of(
        "ValidatingWebhookConfiguration",
        API,
        SCHEDULER,
        cluster_wide=True,
        webhooks=[{"name": "assignments.cotenant.io", **call, **_when(rule, "Fail")}],
    )


def _call(path: str, certificate: str, url: str | None) -> Json:
    service = {"namespace": NAMESPACE, "name": SCHEDULER, "port": SERVICE_PORT, "path": f"/{path}"}
    place = {"service": service} if url is None else {"url": f"{url}/{path}"}
    return {
        "clientConfig": {**place, "caBundle": b64encode(certificate.encode()).decode()},
        "admissionReviewVersions": ["v1"],
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_S,
    }


def _when(rule: Json, otherwise: str, **conditions: str) -> Json:
    when = {"rules": [{**rule, "scope": "Namespaced"}], "failurePolicy": otherwise}
    return {**when, "matchConditions": named(conditions)} if conditions else when


def _asks(codec: Settings) -> str:
    """CEL: whether a pod asks for GPUs, in any dialect."""
    limits = "has(c.resources) && has(c.resources.limits)"
    one = f"{limits} && c.resources.limits.exists(name, name in {cel(sorted(codec.by_resource))})"
    return (
        f"object.spec.containers.exists(c, {one})"
        f" || (has(object.spec.initContainers) && object.spec.initContainers.exists(c, {one}))"
    )
