# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The objects that an installation with ResourceClaims has besides: device classes and admission policies."""

from cotenant.kube.api.claims import GROUP, VERSION
from cotenant.kube.api.names import AGENT_USER, SCHEDULER_USER, Json, object_of
from cotenant.kube.codec.claim_requests import ADMIN, CLASSES, DRIVER
from cotenant.kube.codec.paths import GUARDED
from cotenant.kube.install.admission import Terms, cel, named_expressions, policy_with_binding, rule_for
from cotenant.kube.install.policies import is_own_node

CLAIMS, SLICES, CLAIM_MOUNTS = "cotenant-claims", "cotenant-slices", "cotenant-claim-mounts"


def claim_objects(terms: Terms) -> list[Json]:
    """Return all of them."""
    classes = [_device_class(name, terms.mapped.get(name)) for name in CLASSES]
    return [*classes, *_claims(), *_slices(), *_claim_mounts(terms)]


def _device_class(name: str, resource: str | None) -> Json:
    """A class from which kube-scheduler allocates nothing: two allocators would give away the same GPU. It accepts what
    our scheduler has allocated, which it does not compare with the class. What administrators see takes nothing."""
    condition = f"device.driver == {cel(DRIVER)}" + ("" if name == ADMIN else " && false")
    mapped = {} if resource is None else {"extendedResourceName": resource}
    spec = {**mapped, "selectors": [{"cel": {"expression": condition}}]}
    return object_of("DeviceClass", VERSION, name, cluster_wide=True, spec=spec)


def _claims() -> list[Json]:
    """Only our scheduler allocates our GPUs, except for administrators, who see them and take nothing."""
    new, old = (
        f"({one} != null && has({one}.status) && has({one}.status.allocation) ? {one}.status.allocation : null)"
        for one in ("object", "oldObject")
    )
    # Most writes keep the allocation: those of kubelets, kube-scheduler and Kubernetes' controllers.
    allocates = f"request.userInfo.username != {cel(SCHEDULER_USER)} && {new} != {old}"
    is_ours = (
        "variables.now != null && has(variables.now.devices) && has(variables.now.devices.results)"
        f" && variables.now.devices.results.exists(r, r.driver == {cel(DRIVER)}"
        " && !(has(r.adminAccess) && r.adminAccess))"
    )
    not_ours = {
        "expression": f"!({is_ours})",
        "message": f"cotenant: devices of driver {DRIVER} may be allocated only by cotenant's scheduler; use its device"
        " classes",
        "reason": "Forbidden",
    }
    return policy_with_binding(
        CLAIMS,
        {"resourceRules": [rule_for(["UPDATE"], ["resourceclaims/status"], group=GROUP, version="*")]},
        matchConditions=named_expressions({"others-change-the-allocation": allocates}),
        variables=named_expressions({"now": new}),
        validations=[not_ours],
    )


def _slices() -> list[Json]:
    """A compromised agent can publish GPUs of its own node only."""
    own = " && ".join(
        f"({one} == null || ({one}.spec.driver == {cel(DRIVER)} && has({one}.spec.nodeName)"
        f" && {is_own_node(f'{one}.spec.nodeName')}))"
        for one in ("object", "oldObject")
    )
    return policy_with_binding(
        SLICES,
        {"resourceRules": [rule_for(["CREATE", "UPDATE", "DELETE"], ["resourceslices"], group=GROUP, version="*")]},
        matchConditions=named_expressions({"an-agent": f"request.userInfo.username == {cel(AGENT_USER)}"}),
        validations=[
            {
                "expression": own,
                "message": "cotenant: an agent may write the ResourceSlice of its own node only",
                "reason": "Forbidden",
            }
        ],
    )


def _claim_mounts(terms: Terms) -> list[Json]:
    """A container with claims must not hide what it gets with its GPUs, also if its pod skips the webhook."""
    words = sorted({"ld.so.preload" if "preload" in path.name else "cotenant" for path in GUARDED})
    hides = " || ".join(f"m.mountPath.contains({cel(word)})" for word in words)
    containers = "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
    return policy_with_binding(
        CLAIM_MOUNTS,
        {
            "resourceRules": [rule_for(["CREATE"], ["pods"])],
            "namespaceSelector": {"matchExpressions": terms.namespaces},
        },
        matchConditions=named_expressions({"has-claims": "has(object.spec.resourceClaims)"}),
        variables=named_expressions({"containers": containers}),
        validations=[
            {
                "expression": "variables.containers.all(c, !has(c.resources) || !has(c.resources.claims)"
                f" || !has(c.volumeMounts) || c.volumeMounts.all(m, !({hides})))",
                "message": f"cotenant: a container with ResourceClaims must not mount at a path with"
                f" {' or '.join(words)}, which could change the limits of its GPUs; choose another path",
                "reason": "Forbidden",
            }
        ],
    )
