# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What holds a pod to its limits, and when: by its annotations, as far as the settings of its namespace allow.

A pod without enforcement is placed and counted like any other, and its use is still recorded. Which rung of the
isolation ladder a pod gets is decided by the scheduler, which knows what the GPUs of the cluster have.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from cotenant.core.isolation import BY_MPS, Rung
from cotenant.core.units import WHOLE_GPU
from cotenant.errors import InputError
from cotenant.kube.codec.keys import own_key
from cotenant.node.limits import ComputePolicy, GpuLimit, Limits
from cotenant.wire.text import printable

ISOLATION = own_key("isolation")
"""Annotation: the rung of the isolation ladder that the pod wishes for; `none`: no limit of it is enforced."""
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


def wish_of(annotations: Mapping[str, str]) -> Rung | None:
    """The rung that a pod wishes for, None if it wishes for none; InputError if there is no such rung."""
    wanted = annotations.get(ISOLATION, "").strip()
    if wanted in ("", Isolation.ENFORCED):
        return None
    if wanted not in tuple(Rung):
        raise InputError(f"annotation {ISOLATION}: {printable(wanted[:40])!r}, expected one of {', '.join(Rung)}")
    return Rung(wanted)


def rung_by_annotations(annotations: Mapping[str, str], allowed: Isolation) -> Rung:
    """What holds a pod that is no client of MPS to its limits."""
    return Rung.PRELOAD if is_enforced(annotations, allowed) else Rung.NONE


def is_enforced(annotations: Mapping[str, str], allowed: Isolation) -> bool:
    """Whether the limits of a pod are enforced."""
    return allowed is Isolation.ENFORCED or (
        allowed is Isolation.OPTIONAL and annotations.get(ISOLATION, "").strip() != NONE
    )


def enforced_limits(
    limits: Limits, annotations: Mapping[str, str], allowed: Isolation, rung: Rung | None = None
) -> Limits:
    """The limits that the vGPU library enforces, from those that the pod requested.

    MPS holds each client process to its share of compute and to its memory. The library still holds all processes of a
    container together to their memory, which MPS does not.
    """
    if not is_enforced(annotations, allowed):
        gpus = tuple(GpuLimit(gpu.uuid, None) for gpu in limits.gpus)
        return replace(limits, gpus=gpus, grants=None, policy=ComputePolicy.NEVER)
    if rung in BY_MPS:
        gpus = tuple(gpu._replace(compute=WHOLE_GPU) for gpu in limits.gpus)
        return replace(limits, gpus=gpus, policy=ComputePolicy.NEVER)
    policy = annotations.get(COMPUTE_POLICY, "").strip()
    if policy not in _policies(allowed):
        return limits
    return replace(limits, policy=ComputePolicy(policy))


def check_isolation(annotations: Mapping[str, str], namespace: str, allowed: Isolation) -> None:
    """InputError if an annotation is unknown, or switches off what the namespace enforces."""
    wanted = wish_of(annotations)
    policy = annotations.get(COMPUTE_POLICY, "").strip()
    if policy and policy not in tuple(ComputePolicy):
        expected = ", ".join(ComputePolicy)
        raise InputError(f"annotation {COMPUTE_POLICY}: {printable(policy[:40])!r}, expected one of {expected}")
    key = ISOLATION if wanted is Rung.NONE else COMPUTE_POLICY
    if allowed is Isolation.ENFORCED and (wanted is Rung.NONE or policy == ComputePolicy.NEVER):
        raise InputError(
            f"annotation {key}: limits are enforced in namespace {printable(namespace[:80])}; remove the annotation, or"
            f" ask the administrator to set namespaces.{printable(namespace[:80])}.isolation: optional"
        )


def _policies(allowed: Isolation) -> tuple[ComputePolicy, ...]:
    if allowed is Isolation.ENFORCED:
        return ComputePolicy.CONSERVING, ComputePolicy.ALWAYS
    return tuple(ComputePolicy)
