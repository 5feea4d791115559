# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which policy a pod is placed by: the policy of the cluster, or the one that the pod's annotations name."""

from collections.abc import Mapping

from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Policy
from cotenant.errors import InputError
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.request import PodRequest
from cotenant.wire.text import printable

POLICY = own_key("policy")
NODE_POLICY, GPU_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
NODE_ORDERS = {"binpack": "hami-binpack", "spread": "hami-spread"}
"""HAMi's names for orders of nodes: it compares used shares of nodes, our `binpack` and `spread` compare free GPUs."""
GPU_ORDERS = {"topology-aware": "topology", "mutex": "alone"}
"""HAMi's names for orders of GPUs. HAMi separates orders by commas: the next one breaks ties of the one before."""
LONGEST = 200
"""Characters of a policy's name."""


def policy_of(annotations: Mapping[str, str], default: str, request: PodRequest | None = None) -> str:
    """Return the policy that a pod names, in our annotation or in HAMi's two; else its dialect's, or the default."""
    if POLICY in annotations:
        return annotations[POLICY].strip()
    if request is not None:
        default = _of_dialect(request) or default
    nodes, gpus = (annotations.get(key, "").strip() for key in (NODE_POLICY, GPU_POLICY))
    if not nodes and not gpus:
        return default
    default_nodes, _, default_gpus = default.partition("/")
    by_node, by_gpu = _in_our_words(nodes, NODE_ORDERS), _in_our_words(gpus, GPU_ORDERS)
    parts = by_node or default_nodes, by_gpu or default_gpus or default_nodes
    return "/".join(parts)


def _of_dialect(request: PodRequest) -> str | None:
    for one in request.containers:
        dialect = one.amounts.dialect
        if request.demand.workload is not None and dialect.workload_policy is not None:
            return dialect.workload_policy
        if dialect.policy is not None:
            return dialect.policy
    return None


def _in_our_words(chain: str, names: Mapping[str, str]) -> str:
    return "+".join(names.get(part.strip(), part.strip()) for part in chain.split(","))


def check_policy(spec: str) -> None:
    """InputError if there is no policy of that name."""
    parse_policy(spec, Knowledge())


def parse_policy(spec: str, known: Knowledge | None) -> Policy:
    """Build the policy with this name; InputError lists the known names if there is none."""
    try:
        if len(spec) > LONGEST:
            raise ValueError(f"{spec[:40]}...: expected at most {LONGEST} characters")
        return build_policy(spec, known)
    except ValueError as error:
        raise InputError(f"policy: {printable(str(error))}") from None
