# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Turns requests for GPUs under resources into ResourceClaims, if the settings say so.

A pod that claims cannot express stays as it is: the device plugin serves it, and both count together.
"""

from collections.abc import Mapping

from cotenant.core.isolation import BY_MPS, Rung
from cotenant.kube.codec.claim_templates import template_name
from cotenant.kube.codec.guaranteed import stated
from cotenant.kube.codec.isolation import wish_of
from cotenant.kube.codec.objective import LATENCY
from cotenant.kube.codec.request import MEMORY, PodRequest
from cotenant.kube.codec.settings import Settings
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.webhook.review import Json

CLAIM = "cotenant-gpu"
"""Begins the names of claims within a pod; the number of the container follows."""


def converted(spec: Json, annotations: Mapping[str, str], request: PodRequest, codec: Settings) -> Json | None:
    """The spec of a pod with claims instead of resources; None if claims cannot express its requests."""
    if spec.get("resourceClaims") or not request.containers or request.vendor is not VGPU.vendor:
        return None
    if MEMORY in annotations or stated(annotations) or LATENCY in annotations:
        return None
    if wish_of(annotations) in (*BY_MPS, Rung.MIG) or any(one.amounts.container.mig for one in request.containers):
        return None
    templates = {one.name: template_name(one.amounts.container) for one in request.containers}
    if None in templates.values():
        return None
    names = {one.name: f"{CLAIM}-{one.number}" for one in request.containers}
    changed = dict(spec)
    for kind in ("initContainers", "containers"):
        if kind in spec:
            changed[kind] = [
                _with_claim(one, names[one["name"]], codec) if one.get("name") in names else one for one in spec[kind]
            ]
    claims = [{"name": names[name], "resourceClaimTemplateName": template} for name, template in templates.items()]
    return {**changed, "resourceClaims": claims}


def _with_claim(container: Json, claim: str, codec: Settings) -> Json:
    resources = dict(container.get("resources") or {})
    for part in ("limits", "requests"):
        if part in resources:
            left = {name: amount for name, amount in (resources[part] or {}).items() if name not in codec.by_resource}
            resources[part] = left
            if not left:
                del resources[part]
    return {**container, "resources": {**resources, "claims": [{"name": claim}]}}
