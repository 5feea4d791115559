# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods as the API server would send them, and a node to put them on."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.core.model import Gpu, Machine, Tenant
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, decode_pod
from cotenant.kube.codec.assignment import Record, tenant_for
from cotenant.kube.codec.request import NOTHING, request_of
from cotenant.kube.codec.settings import DEFAULTS, Settings

UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
NODE = Machine(
    name="n1",
    gpus=(
        Gpu(uuid="GPU-a", type="Tesla V100-PCIE-32GB", memory=MiB(32768)),
        Gpu(uuid="GPU-b", type="Tesla V100-PCIE-32GB", memory=MiB(32768)),
        Gpu(uuid="GPU-c", type="Tesla T4", memory=MiB(15360)),
        Gpu(uuid="GPU-d", type="Tesla T4", memory=MiB(15360)),
    ),
)

Amounts = Mapping[str, Any]


def pod(
    *containers: Amounts,
    init: Sequence[Amounts] = (),
    annotations: Mapping[str, str] | None = None,
    node: str | None = None,
    **spec: Any,
) -> Pod:
    """A pod whose containers have these limits; of an init container, `sidecar: true` makes a sidecar."""
    return decode_pod(json.dumps(pod_object(containers, init, annotations or {}, node, spec)).encode())


def pod_object(
    containers: Sequence[Amounts],
    init: Sequence[Amounts],
    annotations: Mapping[str, str],
    node: str | None,
    spec: Mapping[str, Any],
) -> dict[str, Any]:
    named = {} if node is None else {"nodeName": node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "team",
            "uid": UID,
            "creationTimestamp": None,
            "managedFields": [{"manager": "kubectl"}],
            "annotations": dict(annotations),
        },
        "spec": {
            "initContainers": [_container(f"init-{i}", limits) for i, limits in enumerate(init)],
            "containers": [_container(f"app-{i}", limits) for i, limits in enumerate(containers)],
            **named,
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def _container(name: str, limits: Amounts) -> dict[str, Any]:
    asked = {resource: amount for resource, amount in limits.items() if resource != "sidecar"}
    always = {"restartPolicy": "Always"} if limits.get("sidecar") else {}
    return {"name": name, "image": "busybox", "resources": {"limits": {"cpu": "500m", **asked}}, **always}


def tenant_of(pod: Pod, record: Record, machine: Machine, settings: Settings = DEFAULTS) -> Tenant:
    """The pod in its place, with the amounts of its record; its constraints count if they can be understood."""
    try:
        constraints = request_of(pod, settings).constraints
    except InputError:
        constraints = NOTHING
    return tenant_for(record, constraints, machine)
