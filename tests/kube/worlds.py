# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes and pods as reflectors would show them, for tests of the scheduler's decisions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.api.objects import Node, Pod, decode_node, decode_pod
from cotenant.kube.codec.assignment import Record
from cotenant.kube.codec.inventory import INVENTORY, ORPHANS, inventory_for, orphans_for
from cotenant.kube.scheduler.node_names import NodeNames
from cotenant.kube.scheduler.placement import Choice, Placer
from cotenant.kube.scheduler.protocol import ExtenderArgs
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.settings import SCHEDULER_NAME
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor
from tests.kube.pods import pod_object

GPU, MEMORY, PERCENT, CORES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
)


def machine(name: str, cards: int = 2, memory: int = 16000, **each: Any) -> Machine:
    return Machine(
        name=name,
        gpus=tuple(Gpu(uuid=f"GPU-{name}-{i}", memory=MiB(memory), slots=16, **each) for i in range(cards)),
    )


def node(
    of: Machine | str,
    *,
    vendor: Vendor = Vendor.NVIDIA,
    orphans: tuple[str, Sequence[Record]] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Node:
    """A node with these cards; by name alone, one of which no agent has said anything."""
    values = dict(annotations or {})
    if isinstance(of, Machine):
        values = {INVENTORY: inventory_for(of, vendor)} | values
    if orphans is not None:
        values[ORPHANS] = orphans_for(*orphans)
    metadata = {
        "name": of if isinstance(of, str) else of.name,
        "annotations": values,
        "labels": {} if isinstance(of, str) else dict(of.labels),
    }
    return decode_node(json.dumps({"metadata": metadata}).encode())


def waiting(name: str, *containers: Mapping[str, Any], namespace: str = "team", **about: Any) -> Pod:
    """A pod of ours that waits; `init`, `annotations` and `priority` as for `pods.pod`."""
    spec = {"schedulerName": SCHEDULER_NAME} | ({"priority": about["priority"]} if "priority" in about else {})
    made = pod_object(
        containers or [{GPU: 1, MEMORY: 4000}], about.get("init", ()), about.get("annotations", {}), None, spec
    )
    made["metadata"] |= {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"}
    return decode_pod(json.dumps(made).encode())


def bound(pod: Pod, choice: Choice, phase: str = "Running") -> Pod:
    """The pod after its Binding was taken."""
    replace = msgspec.structs.replace
    values = {**pod.metadata.annotations, **choice.annotations}
    return replace(
        pod,
        metadata=replace(pod.metadata, annotations=values),
        spec=replace(pod.spec, node_name=choice.node),
        status=replace(pod.status, phase=phase),
    )


def annotated(pod: Pod, annotations: Mapping[str, str]) -> Pod:
    metadata = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, **annotations})
    return msgspec.structs.replace(pod, metadata=metadata)


def in_phase(pod: Pod, phase: str) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=phase))


def state_of(*nodes: Node, pods: Sequence[Pod] = ()) -> ClusterState:
    state = ClusterState()
    for one in nodes:
        state.node_changed(None, one)
    for pod in pods:
        state.pod_changed(None, pod)
    return state


def placer_of(state: ClusterState, **about: Any) -> Placer:
    return Placer(state, about.pop("quotas", Quotas()), **{"shortlist": 16, **about})


def args(pod: Pod, *names: str) -> ExtenderArgs:
    return ExtenderArgs(pod=pod, node_names=NodeNames.of(names))


def chosen(placer: Placer, pod: Pod, name: str, now: float = 0.0) -> Choice:
    found = placer.choose(pod, name, now, 1)
    assert isinstance(found, Choice), found
    return found


def place(state: ClusterState, placer: Placer, pod: Pod, name: str) -> Pod:
    """The pod on that node, and the state after its events."""
    choice = chosen(placer, pod, name)
    state.assume(pod.metadata.uid)
    there = bound(pod, choice)
    state.pod_changed(pod if pod.metadata.uid in state.waiting else None, there)
    return there


def free_memory(state: ClusterState, name: str) -> tuple[int, ...]:
    return state.cluster.node(name).memory
