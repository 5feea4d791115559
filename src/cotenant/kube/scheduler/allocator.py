# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Allocates the ResourceClaims of pods, so that the stock kube-scheduler only has to bind them.

1. The assignment is written on the pod, with its node as the nominated one, which kube-scheduler then tries before it
   looks at any other. From then on the assignment counts, also for a scheduler that restarts.
2. Each claim gets its finalizer, and its allocation in one write of its status. The same write reserves it for the pod,
   which saves kube-scheduler a write.
3. The gate is removed. kube-scheduler binds the pod to the node of the allocation, and to no other.

Steps 2 and 3 follow at once. If one fails, or the scheduler restarts, they follow from what the watches show. If
kube-scheduler cannot place the pod on that node, it deallocates the claims. Then the assignment is removed, and the pod
is placed on another node.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NoReturn

from cotenant.core.model import Reason
from cotenant.errors import InputError
from cotenant.kube.api.claims import CLAIMS, FINALIZER, ResourceClaim
from cotenant.kube.api.client import Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.objects import Pod, has_ended, unschedulable_message
from cotenant.kube.api.reflector import Key
from cotenant.kube.codec.annotations import is_assignment
from cotenant.kube.codec.assignment import Record, record_of
from cotenant.kube.codec.claims import allocated_devices, allocation_status, is_decided
from cotenant.kube.codec.queueing import gate_patch, is_gated
from cotenant.kube.scheduler.claims import ClaimBook
from cotenant.kube.scheduler.events import NO_ROOM, PLACED
from cotenant.kube.scheduler.explaining import describe_allocation
from cotenant.kube.scheduler.retry import wait_for_change
from cotenant.kube.scheduler.rewriting import EXPECTED, Rewrite, write
from cotenant.kube.scheduler.shared import Shared
from cotenant.metrics.table import BINDS, DECISIONS

INVALID = 422
SWEEP_S = 5.0
"""between two attempts to allocate the claims of a pod, if a write failed"""
PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""before a pod is placed again that kube-scheduler would place on none of the nodes tried so far"""


@dataclass(slots=True)
class _Refusals:
    """The nodes on which kube-scheduler would not place a pod."""

    nodes: set[str] = field(default_factory=set)
    rounds: int = 0
    until: float = 0.0
    """when it may be placed again"""


class ClaimAllocator:
    """Allocates claims while `run` runs."""

    def __init__(self, shared: Shared, book: ClaimBook, excluded: Callable[[Pod], frozenset[str]]) -> None:
        """`excluded` returns the nodes that do not admit a pod."""
        self._shared, self._book, self._excluded = shared, book, excluded
        self._wake = asyncio.Event()
        self._decided: dict[str, Pod] = {}
        """pods with an assignment whose claims are to be allocated, by UID"""
        self._allocated: dict[str, str] = {}
        """the node for which the claims of a pod were allocated by this process, by UID"""
        self._refusals: dict[str, _Refusals] = {}
        self._users: dict[Key, str] = {}
        """the pod for which a claim is, or is about to be, allocated, by its UID"""
        self._under_way: set[str] = set()
        """pods whose claims are being allocated, by UID"""

    def takes(self, pod: Pod) -> bool:
        """Whether the claims of a pod must be allocated before its gate is removed."""
        return self._shared.state.awaits_claims(pod)

    def avoided(self, pod: Pod) -> frozenset[str]:
        """The nodes on which a pod is not to be placed."""
        refused, excluded = self._refusals.get(pod.metadata.uid), self._excluded(pod)
        return excluded if refused is None else excluded | refused.nodes

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        uid = (new or old or Pod()).metadata.uid
        if new is not None and is_decided(new) and not new.metadata.deletion_timestamp:
            self._decided[uid] = new
            self._wake.set()
            return
        self._decided.pop(uid, None)
        if new is None or new.spec.node_name:
            self._allocated.pop(uid, None)
            self._refusals.pop(uid, None)
        if new is None or has_ended(new):
            self._give_up_claims(uid)

    def _settle(self, pod: Pod) -> None:
        """Nothing is left to do for a pod as it was seen."""
        if self._decided.get(pod.metadata.uid) is pod:
            del self._decided[pod.metadata.uid]

    def _give_up_claims(self, uid: str) -> None:
        if self._users:
            self._users = {key: user for key, user in self._users.items() if user != uid}

    async def decide(self, pod: Pod, guard: Guard) -> bool:
        """Write the assignment of a pod for which a slot is held; whether it has one now."""
        shared, uid = self._shared, pod.metadata.uid
        held, refused = shared.state.held(uid), self._refusals.get(uid)
        if held is None or (refused is not None and shared.clock() < refused.until):
            return False
        if (claims := self._to_take(pod)) is None:
            return False
        began = shared.clock()
        choice = shared.placer.choose(pod, held.node, began, time.time_ns())
        if isinstance(choice, Reason) or choice.allocation is None:
            check = choice.check if isinstance(choice, Reason) else ""
            shared.counts.add(DECISIONS, "bind", "refused", check)
            return False
        self._users.update(dict.fromkeys(claims, uid))  # not before: one that is refused keeps them from no other pod
        rewrite = Rewrite(allocation=choice.allocation, annotations=choice.annotations, nominate=True)
        written = await write(shared, pod, rewrite, guard, lambda text: shared.errors.report("claims", text))
        shared.counts.add(BINDS, "failed" if written is None else "bound")
        shared.counts.add(DECISIONS, "bind", "failed" if written is None else "placed", "")
        if written is None:
            return False
        where = f"on node {choice.node}: {describe_allocation(choice.allocation)}"
        shared.events.record(pod, PLACED, where)
        about = pod.metadata
        shared.log(
            f"pod {about.namespace}/{about.name} {where}, by claims, in {(shared.clock() - began) * 1000:.1f} ms"
        )
        await self._allocate(written, guard)
        return True

    def _to_take(self, pod: Pod) -> list[Key] | None:
        """The claims of a pod that no other pod has; None if another pod was given one of them a moment ago, or gets
        another size by it. The watch will show that, and this pod joins it."""
        try:
            claims, joined = self._book.claims(pod).values(), {part.claim for part in self._book.claimed(pod).joined}
            if joined and self._book.is_resized(pod):
                return None
        except InputError:  # a claim was deleted a moment ago, and the queue reads the pod again
            return None
        own = [one.metadata for one in claims if one.metadata.uid not in joined]
        keys = [(one.namespace, one.name) for one in own]
        uid = pod.metadata.uid
        return keys if all(self._users.get(key, uid) == uid for key in keys) else None

    async def run(self) -> NoReturn:
        """Allocate the claims of pods that have an assignment until cancelled."""
        while True:
            await wait_for_change(self._wake, 0.0, SWEEP_S)
            self._wake.clear()
            if self._shared.unready_reason() is None:
                guard = self._shared.lead.guard()
                await asyncio.gather(*(self._allocate(pod, guard) for pod in list(self._decided.values())))

    async def _allocate(self, pod: Pod, guard: Guard) -> None:
        """Allocate all claims of a pod and remove its gate; or remove its assignment, if they were deallocated."""
        uid = pod.metadata.uid
        if uid in self._under_way:  # its end wakes `run`, if the pod has changed meanwhile
            return
        self._under_way.add(uid)
        try:
            await self._allocate_once(pod, guard)
        finally:
            self._under_way.discard(uid)
            if self._decided.get(uid, pod) is not pod:
                self._wake.set()

    async def _allocate_once(self, pod: Pod, guard: Guard) -> None:
        about, shared = pod.metadata, self._shared
        seen = shared.pods.objects.get((about.namespace, about.name))
        if seen is None or seen.metadata.uid != about.uid:  # it is gone, and its claims would stay reserved for it
            return
        try:
            record = record_of(pod)
            if record is None:
                return
            open_claims = self._open_claims(pod, record)
            if open_claims and self._allocated.get(about.uid) == record.node:
                await self._withdraw(pod, record.node, guard)
                return
            for claim in open_claims:
                await self._write_allocation(pod, claim, record, guard)
            self._allocated[about.uid] = record.node
            if is_gated(pod.spec.scheduling_gates):
                await shared.client.patch(PODS, about.name, gate_patch(pod), namespace=about.namespace, guard=guard)
            self._settle(pod)
        except InputError as error:
            shared.errors.report("claims", f"pod {about.namespace}/{about.name}: {error}")
        except ApiError as error:
            if error.status not in EXPECTED:
                shared.errors.report("claims", str(error))

    def _open_claims(self, pod: Pod, record: Record) -> list[ResourceClaim]:
        """The claims of a pod that are not allocated as its record says."""
        found = []
        for claim in self._book.claims(pod).values():
            allocation, wanted = claim.status.allocation, allocated_devices(claim.metadata.uid, record)
            if not wanted:
                raise InputError(
                    f"its assignment is for another ResourceClaim than {claim.metadata.name}; delete the pod"
                )
            if allocation is None or allocation.devices.results != wanted:
                found.append(claim)
        return found

    async def _write_allocation(self, pod: Pod, claim: ResourceClaim, record: Record, guard: Guard) -> None:
        client, about = self._shared.client, claim.metadata

        async def change(patch: object, part: str = "") -> ResourceClaim:
            changed = await client.patch(CLAIMS, about.name, patch, namespace=about.namespace, part=part, guard=guard)
            self._book.note_written(changed)
            return changed

        if FINALIZER not in about.finalizers:  # a write of the status does not change metadata
            changed = {"uid": about.uid, "resourceVersion": about.resource_version}
            try:
                claim = await change({"metadata": {**changed, "finalizers": [*about.finalizers, FINALIZER]}})
            except ApiError as error:
                # Parameters are stored as bytes. If they have spaces or another order than the API server writes, it
                # takes a patch for a change of the spec. Without the finalizer, the next pod of the claim replaces the
                # allocation.
                if error.status != INVALID:
                    raise
        wanted: dict[str, object] = {"allocation": allocation_status(about.uid, record, datetime.now(UTC))}
        if not claim.status.reserved_for:
            wanted["reservedFor"] = [{"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}]
        statuses = [wanted]
        if claim.status.allocation is not None:  # of an earlier pod; an allocation can be removed, but not changed
            statuses.insert(0, {"allocation": None})
        for status in statuses:
            metadata = {"uid": about.uid, "resourceVersion": claim.metadata.resource_version}
            claim = await change({"metadata": metadata, "status": status}, "status")

    async def _withdraw(self, pod: Pod, node: str, guard: Guard) -> None:
        """Remove the assignment of a pod whose claims kube-scheduler has deallocated."""
        shared, about = self._shared, pod.metadata
        removed = {key: None for key in about.annotations if is_assignment(key)}
        metadata = {"uid": about.uid, "resourceVersion": about.resource_version, "annotations": removed}
        refused = self._refusals.setdefault(about.uid, _Refusals())
        refused.nodes.add(node)
        if not set(shared.state.cluster.names) - refused.nodes - self._excluded(pod):
            refused.nodes.clear()
            refused.until = shared.clock() + min(PAUSE_S * 2**refused.rounds, LONGEST_PAUSE_S)
            refused.rounds += 1
        patch = {"metadata": metadata, "status": {"nominatedNodeName": None}}
        await shared.client.patch(PODS, about.name, patch, namespace=about.namespace, part="status", guard=guard)
        self._allocated.pop(about.uid, None)
        self._settle(pod)
        self._give_up_claims(about.uid)
        why = unschedulable_message(pod) or "it does not say why"
        text = f"kube-scheduler does not place it on node {node}, which has the GPUs; another node is tried: {why}"
        shared.events.record(pod, NO_ROOM, text, warning=True)
