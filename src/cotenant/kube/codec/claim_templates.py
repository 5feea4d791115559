# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The ResourceClaimTemplates of pods that request GPUs under resources, and get them by claims.

The webhook has no access to the API server, so it only names a template, and the name says what the template requests.
The scheduler creates a template that is not there. Kubernetes makes the claim of a pod from it, and deletes it with the
pod. A name that a user made up gives no more than a template of the user would.
"""

import re
from typing import Any

from cotenant.core.model import ANY_PROFILE, Container
from cotenant.core.units import WHOLE_GPU, WHOLE_MEMORY
from cotenant.kube.api.claims import VERSION
from cotenant.kube.codec.amounts import AUTO
from cotenant.kube.codec.claim_requests import DRIVER, MIG, MOST_DEVICES, PARAMETERS, SHARED, WHOLE

LABELS = {"app.kubernetes.io/managed-by": "cotenant"}
REQUEST = "gpu"
_NAME = re.compile(
    r"cotenant-(?P<gpus>[1-9]\d{0,3})x-(?:(?P<whole>whole)|(?P<mig>mig)"
    r"|(?:(?P<memory>[1-9]\d{0,6})mib|(?P<percent>[1-9]\d?)pct|(?P<auto>auto))(?:-(?P<compute>[1-9]\d{0,2})c)?)",
    re.ASCII,
)


def template_name(container: Container, *, automatic: bool = False) -> str | None:
    """The name of the template that requests the same; None if a claim cannot request it.

    Limits above requests are not in it: the annotations of the pod state them. `automatic`: a profile says how much
    memory it needs.
    """
    if container.mig not in (None, ANY_PROFILE) or not 1 <= container.gpus <= MOST_DEVICES:
        return None
    count = f"cotenant-{container.gpus}x"
    if container.memory_percent == WHOLE_MEMORY and not automatic:
        whole = "whole" if container.mig is None else "mig"
        return f"{count}-{whole}" if container.compute == WHOLE_GPU else None
    if container.mig is not None:
        return None
    amount = f"{container.memory}mib" if container.memory_percent is None else f"{container.memory_percent}pct"
    compute = f"-{container.compute // 10}c" if container.compute else ""
    name = f"{count}-{AUTO if automatic else amount}{compute}"
    return name if _NAME.fullmatch(name) else None


def template_of(name: str) -> dict[str, Any] | None:
    """The template of this name; None if it is not one of ours."""
    found = _NAME.fullmatch(name)
    if found is None or int(found["gpus"]) > MOST_DEVICES or int(found["compute"] or 0) > 100:
        return None
    device_class, config = WHOLE if found["whole"] else MIG, []
    if not (found["whole"] or found["mig"]):
        amount: dict[str, Any] = {"memory": AUTO if found["auto"] else f"{found['memory']}Mi"}
        amount = {"memoryPercent": int(found["percent"])} if found["percent"] else amount
        compute = {"compute": int(found["compute"])} if found["compute"] else {}
        parameters = {"apiVersion": PARAMETERS, "kind": "GpuShare", **amount, **compute}
        device_class, config = SHARED, [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    exactly = {"deviceClassName": device_class, "count": int(found["gpus"])}
    devices: dict[str, Any] = {"requests": [{"name": REQUEST, "exactly": exactly}]}
    return {
        "apiVersion": VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"spec": {"devices": devices | ({"config": config} if config else {})}},
    }
