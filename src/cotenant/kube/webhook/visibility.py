# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The admission policy for pods that were not prepared: those that skip the webhook, or came while nobody answered.

They may not name GPUs themselves. What an image or a ConfigMap says cannot be seen here, so a pod that skips the
webhook by a label of its own, which anybody can set, has to say that it sees none; by hand it could prepare itself
without the limits.
"""

from cotenant.kube.install.names import Json
from cotenant.kube.settings import KubeSettings, WebhookPart
from cotenant.kube.webhook.injecting import VISIBLE
from cotenant.kube.webhook.pods import DEBUG
from cotenant.kube.webhook.protecting import OF_CONTAINERS
from cotenant.kube.webhook.rules import NO_MIRROR, cel, if_there, named, policy, rule_for
from cotenant.kube.webhook.selecting import no_label, other_namespaces, skip_label

VISIBILITY = "cotenant-visibility"

_OURS = rf"^metadata[.]annotations\['{OF_CONTAINERS.removeprefix('^')}{VISIBLE}'\]$"
_SEES_NONE = "!has(e.valueFrom) && (!has(e.value) || e.value in ['void', 'none', ''])"
_SEES_WHAT_IS_GIVEN = (
    f"has(e.valueFrom) && has(e.valueFrom.fieldRef) && e.valueFrom.fieldRef.fieldPath.matches({cel(_OURS)})"
)


def visibility_policy(settings: KubeSettings) -> list[Json]:
    """The policy, and what puts it into force."""
    debug, debugged = "object.spec.ephemeralContainers", "oldObject.spec.ephemeralContainers"
    variables = {
        "debugged": f"oldObject != null && {if_there(debugged, '[]')}",
        "debugs": if_there(debug, "[]"),
        "init": if_there("object.spec.initContainers", "[]"),
        "fresh": "request.operation == 'CREATE' ? object.spec.containers + variables.init"
        " : variables.debugs.filter(c, !variables.debugged.exists(o, o.name == c.name))",
        "skips": _skips(settings.webhook),
    }
    is_seen = f"e.name == {cel(VISIBLE)}"
    names_none = {
        "expression": f"variables.fresh.all(c, !has(c.env) || c.env.all(e, !({is_seen}) || ({_SEES_NONE})"
        f" || ({_SEES_WHAT_IS_GIVEN})))",
        "message": f"cotenant: {VISIBLE} is not for pods to set: leave it out, and ask for GPUs by resources",
        "reason": "Forbidden",
    }
    says_so = {
        "expression": f"!variables.skips || variables.fresh.all(c, has(c.env) && c.env.exists(e, {is_seen})"
        f" && c.env.all(e, !({is_seen}) || ({_SEES_NONE})))",
        "message": f"cotenant: a pod that skips the webhook by its own label must set {VISIBLE} to void in every"
        " container; a label on the namespace needs no such thing",
        "reason": "Forbidden",
    }
    seen = [*other_namespaces(settings.webhook), *no_label(settings.webhook)]
    rules = [rule_for(["CREATE"], ["pods"]), rule_for(["UPDATE"], [f"pods/{DEBUG}"])]
    return policy(
        VISIBILITY,
        {"resourceRules": rules, "namespaceSelector": {"matchExpressions": seen}},
        matchConditions=named({"no-mirror": NO_MIRROR}),
        variables=named(variables),
        validations=[names_none, says_so],
    )


def _skips(webhook: WebhookPart) -> str:
    key, value = skip_label(webhook)
    if not key:
        return "false"
    has_it = f"has(object.metadata.labels) && {cel(key)} in object.metadata.labels"
    return has_it if value is None else f"{has_it} && object.metadata.labels[{cel(key)}] == {cel(value)}"
