# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Turns requests for GPUs under resources into ResourceClaims, if the settings say so.

A pod that claims cannot express stays as it is: the device plugin serves it, and both count together.
"""

from cotenant.core.model import Container
from cotenant.core.units import WHOLE_MEMORY
from cotenant.kube.api.names import Json
from cotenant.kube.codec.claim_templates import template_name
from cotenant.kube.codec.request import PodRequest
from cotenant.kube.codec.settings import Settings
from cotenant.kube.codec.vgpu import VGPU

CLAIM = "cotenant-gpu"
"""Begins the names of claims within a pod; the number of the container follows."""


def converted(spec: Json, request: PodRequest, stated: PodRequest, codec: Settings) -> Json | None:
    """The spec of a pod with claims instead of resources; None if claims cannot express its requests.

    `request` is what it requests without a latency objective, which adds compute when the scheduler reads it; `stated`
    is the same without an annotation that leaves its memory to a profile. Annotations mean the same with claims.
    """
    if spec.get("resourceClaims") or not request.containers or request.vendor is not VGPU.vendor:
        return None
    if any(one.amounts.low for one in request.containers):  # a claim has no priority among the processes of its GPU
        return None
    templates = {
        one.name: _template(one.amounts.container, said.amounts.container, is_automatic=request is not stated)
        for one, said in zip(request.containers, stated.containers, strict=True)
    }
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


def _template(container: Container, stated: Container, *, is_automatic: bool) -> str | None:
    """The template of a container. If a profile decides its memory, what it states counts until there is one."""
    if is_automatic and stated.memory_percent == WHOLE_MEMORY:
        return template_name(container, automatic=True)
    return template_name(stated)


def _with_claim(container: Json, claim: str, codec: Settings) -> Json:
    resources = dict(container.get("resources") or {})
    for part in ("limits", "requests"):
        if part in resources:
            left = {name: amount for name, amount in (resources[part] or {}).items() if name not in codec.by_resource}
            resources[part] = left
            if not left:
                del resources[part]
    return {**container, "resources": {**resources, "claims": [{"name": claim}]}}
