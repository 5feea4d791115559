# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whether and when the limits of a pod are enforced: by its annotations, as far as the settings of its namespace allow.

A pod without enforcement is placed and counted like any other, and its use is still recorded.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from cotenant.core.units import WHOLE_GPU
from cotenant.errors import InputError
from cotenant.kube.codec.keys import own_key
from cotenant.node.limits import ComputePolicy, Limits
from cotenant.wire.text import printable

ISOLATION = own_key("isolation")
"""Annotation: `none` means that no limit of the pod is enforced."""
COMPUTE_POLICY = own_key("compute-policy")
"""Annotation: when its share of compute is enforced."""
NONE = "none"


class Isolation(StrEnum):
    """Who decides whether limits are enforced."""

    ENFORCED = "enforced"
    """They are."""
    OPTIONAL = "optional"
    """The author of each pod."""
    NONE = "none"
    """They are not."""


def is_enforced(annotations: Mapping[str, str], allowed: Isolation) -> bool:
    """Whether the limits of a pod are enforced."""
    return allowed is Isolation.ENFORCED or (
        allowed is Isolation.OPTIONAL and annotations.get(ISOLATION, "").strip() != NONE
    )


def enforced_limits(limits: Limits, annotations: Mapping[str, str], allowed: Isolation) -> Limits:
    """The limits that the vGPU library enforces, from those that the pod requested."""
    if not is_enforced(annotations, allowed):
        gpus = tuple(gpu._replace(memory_bytes=None, compute=WHOLE_GPU, host_bytes=0) for gpu in limits.gpus)
        return replace(limits, gpus=gpus, policy=ComputePolicy.NEVER)
    policy = annotations.get(COMPUTE_POLICY, "").strip()
    if policy not in _policies(allowed):
        return limits
    return replace(limits, policy=ComputePolicy(policy))


def check_isolation(annotations: Mapping[str, str], namespace: str, allowed: Isolation) -> None:
    """InputError if an annotation is unknown, or switches off what the namespace enforces."""
    wanted = annotations.get(ISOLATION, "").strip()
    if wanted not in ("", NONE, Isolation.ENFORCED):
        raise InputError(f"annotation {ISOLATION}: {printable(wanted[:40])!r}, expected enforced or none")
    policy = annotations.get(COMPUTE_POLICY, "").strip()
    if policy and policy not in tuple(ComputePolicy):
        expected = ", ".join(ComputePolicy)
        raise InputError(f"annotation {COMPUTE_POLICY}: {printable(policy[:40])!r}, expected one of {expected}")
    key = ISOLATION if wanted == NONE else COMPUTE_POLICY
    if allowed is Isolation.ENFORCED and (wanted == NONE or policy == ComputePolicy.NEVER):
        raise InputError(
            f"annotation {key}: limits are enforced in namespace {printable(namespace[:80])}; remove the annotation, or"
            f" ask the administrator to set namespaces.{printable(namespace[:80])}.isolation: optional"
        )


def _policies(allowed: Isolation) -> tuple[ComputePolicy, ...]:
    if allowed is Isolation.ENFORCED:
        return ComputePolicy.CONSERVING, ComputePolicy.ALWAYS
    return tuple(ComputePolicy)
