# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that came to their node without us and use a ResourceClaim that another pod was given.

Kubernetes reserves an allocated claim for every pod that names it, also for one with `spec.nodeName` or one that skips
the webhook. Kubelet does not ask the agent again about a claim that is prepared. So such a pod has the GPUs of the
claim, and would keep them uncounted after the other pod has ended. It gets the assignment of the other pod.
"""

import asyncio
from dataclasses import replace
from typing import NoReturn

import msgspec

from cotenant.core.model import ContainerKind
from cotenant.errors import InputError
from cotenant.kube.api.client import Guard
from cotenant.kube.api.objects import Pod, containers_of, has_ended
from cotenant.kube.codec.assignment import RECORD, Held, Record, encode_record
from cotenant.kube.codec.claims import holder_of
from cotenant.kube.codec.keys import container_key
from cotenant.kube.codec.request import NOTHING
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.scheduler.claims import ClaimBook
from cotenant.kube.scheduler.events import PLACED
from cotenant.kube.scheduler.retry import wait_for_change
from cotenant.kube.scheduler.rewriting import Rewrite, write
from cotenant.kube.scheduler.shared import Shared
from cotenant.kube.state.allocation import Allocation

SWEEP_S = 5.0
"""between two looks at pods without an assignment, if nothing changes"""
AGAIN_S = 60.0
"""between two attempts to write an assignment, such as of a pod whose annotations leave no room for it"""


class BypassingPods:
    """Writes the assignments of such pods while `run` runs."""

    def __init__(self, shared: Shared, book: ClaimBook) -> None:
        self._shared, self._book = shared, book
        self._unrecorded: dict[str, Pod] = {}
        """pods on their nodes with claims and without an assignment, by UID; most have claims to other devices"""
        self._due: dict[str, float] = {}
        """when an assignment that could not be written is tried again, by UID"""
        self._wake = asyncio.Event()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        pod = new or old or Pod()
        if not self._book.enabled or not pod.spec.resource_claims:
            return
        if new is not None and new.spec.node_name and not has_ended(new) and RECORD not in new.metadata.annotations:
            self._unrecorded[new.metadata.uid] = new
        else:
            self._unrecorded.pop(pod.metadata.uid, None)
            self._due.pop(pod.metadata.uid, None)
        if self._unrecorded:
            self._wake.set()

    async def run(self) -> NoReturn:
        """Write until cancelled."""
        while True:
            await wait_for_change(self._wake, 0.0, SWEEP_S)
            self._wake.clear()
            if self._shared.unready_reason() is None:
                guard = self._shared.lead.guard()
                for pod in list(self._unrecorded.values()):
                    await self._record(pod, guard)

    async def _record(self, pod: Pod, guard: Guard) -> None:
        shared, about = self._shared, pod.metadata
        if self._unrecorded.get(about.uid) is not pod or shared.clock() < self._due.get(about.uid, 0.0):
            return
        rewrite = _joining(pod, self._book)
        if rewrite is None:
            return
        shared.state.count(rewrite.allocation)  # it has the GPUs, even if its assignment cannot be written
        try:
            text = encode_record(rewrite.allocation.record)
        except InputError as error:  # it has more claims than an assignment can name
            shared.errors.report("claims", f"pod {about.namespace}/{about.name}: {error}")
            self._due[about.uid] = shared.clock() + AGAIN_S
            return
        rewrite = replace(rewrite, annotations={**rewrite.annotations, RECORD: text})
        if await write(shared, pod, rewrite, guard, lambda text: shared.errors.report("claims", text)) is not None:
            said = "it came to this node without cotenant, and uses a ResourceClaim of another pod; both count together"
            shared.events.record(pod, PLACED, said, warning=True)
        elif about.uid in self._unrecorded:
            # The first time, kubelet may have changed the pod meanwhile.
            self._due[about.uid] = shared.clock() + (AGAIN_S if about.uid in self._due else SWEEP_S)


def _joining(pod: Pod, book: ClaimBook) -> Rewrite | None:
    """The assignment of a pod by those of the pods that have its claims, without its own annotation; None if no other
    pod has one of them."""
    about, numbers = pod.metadata, {one.name: number for number, (_, one) in enumerate(containers_of(pod))}
    containers: list[Held] = []
    annotations: dict[str, str] = {}
    exclusive = False
    for name, claim, other, record in book.given_to_others(pod):
        if any(one.claim == claim for one in containers):  # the pod names it twice
            continue
        try:
            number = numbers[holder_of(pod, name)]
        except InputError:  # no container uses it
            continue
        held = record.held_by_claim(claim)
        exclusive |= record.exclusive
        for one in held:
            kind = ContainerKind.SIDECAR if one.kind is ContainerKind.INIT else one.kind  # it stays until the pod ends
            containers.append(msgspec.structs.replace(one, number=number, kind=kind))
        theirs, own = container_key(held[0].number, ""), container_key(number, "")
        annotations |= {
            own + key.removeprefix(theirs): text
            for key, text in other.metadata.annotations.items()
            if key.startswith(theirs)
        }
    if not containers:
        return None
    new = Record(pod=about.uid, node=pod.spec.node_name, exclusive=exclusive, containers=tuple(containers))
    allocation = Allocation(
        uid=about.uid,
        namespace=about.namespace,
        name=about.name,
        record=new,
        constraints=NOTHING,
        vendor=VGPU.vendor,
    )
    return Rewrite(allocation=allocation, annotations=annotations)
