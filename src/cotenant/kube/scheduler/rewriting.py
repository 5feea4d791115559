# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A running pod gets another assignment on the same GPUs: all of its annotations are written, or none.

The new amounts count before they are written, so that no other pod is placed there meanwhile. The API server refuses
the write if the pod has changed since.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from cotenant.core.model import Machine
from cotenant.errors import InputError
from cotenant.kube.api.client import Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.assignment import RECORD, Record, combined
from cotenant.kube.codec.paths import REGION
from cotenant.kube.codec.request import placed_request_of
from cotenant.kube.codec.settings import DEFAULTS, Settings
from cotenant.kube.scheduler.shared import Shared
from cotenant.kube.scheduler.watches import get_pod
from cotenant.kube.state.allocation import Allocation
from cotenant.kube.state.cluster import ClusterState

EXPECTED = (404, 409)
"""the pod is gone or has changed, which the watch shows anyway"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What a pod is to have."""

    allocation: Allocation
    annotations: Mapping[str, str]
    nominate: bool = False
    """Whether the pod still has to be bound: kube-scheduler tries a nominated node first, and no other if it fits"""


def rewrite_for(
    pod: Pod, now: Allocation, record: Record, machine: Machine, *, moment: int, settings: Settings = DEFAULTS
) -> Rewrite:
    """The annotations of a pod with this record; InputError if it cannot have them. `moment` is in nanoseconds since
    1970."""
    request = placed_request_of(pod, settings)
    known = {one.number for one in (*request.containers, *request.joined)}
    if not {held.number for held in record.containers} <= known:
        raise InputError("the pod requested GPUs by resource names that are not enabled here")
    annotations = binding_annotations(pod, request, record, machine, moment=moment, region=REGION, settings=settings)
    return Rewrite(allocation=replace(now, record=record), annotations=annotations)


def begin_rewrite(state: ClusterState, now: Allocation, rewrite: Rewrite) -> None:
    """Until `write` has ended, other pods can use neither what this pod gives up nor what it gets."""
    state.begin_resize(replace(now, record=_larger(now.record, rewrite.allocation.record)))


async def write(
    shared: Shared, pod: Pod, rewrite: Rewrite, guard: Guard, report: Callable[[str], object]
) -> Pod | None:
    """Write what was begun; return the pod with its new assignment, or None if it does not have it."""
    granted = None
    try:
        granted = await _write(shared, pod, rewrite, guard, report)
    except ApiError as error:
        report(str(error))
    finally:
        (shared.state.release if granted is None else shared.state.assume)(pod.metadata.uid)
    return granted


async def _write(
    shared: Shared, pod: Pod, rewrite: Rewrite, guard: Guard, report: Callable[[str], object]
) -> Pod | None:
    """After a failure only the pod can show whether it has the new assignment: an answer may have been lost, and the
    same write, tried again, is refused because of itself."""
    about, client = pod.metadata, shared.client
    metadata = {"uid": about.uid, "resourceVersion": about.resource_version, "annotations": rewrite.annotations}
    patch: dict[str, object] = {"metadata": metadata}
    if rewrite.nominate:  # annotations can be written with the status, so one write is enough for both
        patch["status"] = {"nominatedNodeName": rewrite.allocation.node}
    part = "status" if rewrite.nominate else ""
    try:
        return await client.patch(PODS, about.name, patch, namespace=about.namespace, part=part, guard=guard)
    except ApiError as error:
        if error.status not in EXPECTED:
            report(str(error))
    there = await get_pod(client, about.namespace, about.name, report)
    if there is None or there.metadata.uid != about.uid:
        return None
    return there if there.metadata.annotations.get(RECORD) == rewrite.annotations[RECORD] else None


def _larger(one: Record, other: Record) -> Record:
    """The larger of two records of the same containers on the same GPUs, amount by amount."""
    return combined(
        one,
        other,
        lambda x, y: msgspec.structs.replace(y, memory=max(x.memory, y.memory), compute=max(x.compute, y.compute)),
    )
