# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Variables by which HAMi's users state whether limits are enforced, as annotations of ours.

The scheduler writes the limits and does not know the variables of containers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cotenant.kube.codec.isolation import COMPUTE_POLICY, ISOLATION, NONE, Isolation
from cotenant.kube.codec.request import PodRequest
from cotenant.kube.webhook.review import PodManifest
from cotenant.node.limits import ComputePolicy

CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
POLICIES = {"force": ComputePolicy.ALWAYS, "disable": ComputePolicy.NEVER}
"""Others mean the default: a share is enforced while others use the GPU."""
DISABLE = "CUDA_DISABLE_CONTROL"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the variables of a pod's containers ask for."""

    annotations: Mapping[str, str]
    warnings: tuple[str, ...]
    """About those that the namespace does not allow."""


def wishes_of(pod: PodManifest, request: PodRequest, allowed: Isolation) -> Wishes:
    """Read the variables of all containers with GPUs; the first one that has such a variable decides for the pod."""
    with_gpus = {one.name for one in request.containers}
    variables = {
        variable.name: variable.value or ""
        for container in reversed((*pod.spec.init_containers, *pod.spec.containers))
        if container.name in with_gpus
        for variable in container.env
        if variable.name in (CORE_POLICY, DISABLE)
    }
    wanted = {}
    if variables.get(DISABLE, "").lower() == "true":
        wanted[DISABLE] = (ISOLATION, NONE)
    policy = POLICIES.get(variables.get(CORE_POLICY, "").lower())
    if policy is not None:
        wanted[CORE_POLICY] = (COMPUTE_POLICY, policy.value)
    off = (NONE, ComputePolicy.NEVER.value)
    refused = [name for name, (_, value) in wanted.items() if allowed is Isolation.ENFORCED and value in off]
    return Wishes(
        annotations={key: value for name, (key, value) in wanted.items() if name not in refused},
        warnings=tuple(
            f"{name} has no effect: limits are enforced in this namespace, unless the administrator sets its isolation"
            " to optional"
            for name in refused
        ),
    )
