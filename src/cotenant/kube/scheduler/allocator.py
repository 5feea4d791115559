# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Allocates the ResourceClaims of pods, so that the stock kube-scheduler only has to bind them.

1. The assignment is written on the pod, with its node as the nominated one, which kube-scheduler then tries before it
   looks at any other. From then on the assignment counts, also for a scheduler that restarts.
2. Each claim gets its finalizer, and its allocation in one write of its status. The same write reserves it for the pod,
   which saves kube-scheduler a write.
3. The gate is removed. kube-scheduler binds the pod to the node of the allocation, and to no other.

Steps 2 and 3 follow at once. If one fails, or the scheduler restarts, they follow from what the watches show.

The assignment is removed, and the pod is placed again, if
- kube-scheduler deallocates a claim, because it cannot place the pod on that node,
- kube-scheduler places the pod nowhere for a while: if it considers one node only, it deallocates nothing,
- a claim was deleted, or another one has its name now,
- the API server refuses an allocation.
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
from cotenant.kube.api.connection import FORBIDDEN, INVALID, ApiError
from cotenant.kube.api.decoding import PODS, Version
from cotenant.kube.api.names import Json
from cotenant.kube.api.objects import Pod, has_ended, is_unschedulable, unschedulable_message
from cotenant.kube.api.reflector import Key, older
from cotenant.kube.codec.annotations import is_assignment
from cotenant.kube.codec.assignment import Record, record_of
from cotenant.kube.codec.claims import allocated_devices, allocation_status, check_usable, is_decided
from cotenant.kube.codec.queueing import gate_patch, is_gated
from cotenant.kube.scheduler.claims import ClaimBook
from cotenant.kube.scheduler.events import NO_ROOM, PLACED
from cotenant.kube.scheduler.explaining import describe_allocation
from cotenant.kube.scheduler.retry import wait_for_change
from cotenant.kube.scheduler.rewriting import EXPECTED, Rewrite, write
from cotenant.kube.scheduler.shared import Shared
from cotenant.metrics.table import BINDS, DECISIONS
from cotenant.wire.text import printable

SWEEP_S = 5.0
"""between two attempts to allocate the claims of a pod, if a write failed"""
STRANDED_S = 60.0
"""how long a pod keeps its GPUs that kube-scheduler places nowhere, for example because the node has too little CPU"""
PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""before nodes are tried again on which kube-scheduler would not place a pod"""
MOST_DOUBLINGS = 10
"""of the pause; more would change nothing"""
UNALLOCATED: Json = {"allocation": None, "reservedFor": None}
"""The status of a claim that no pod has. Only a claim with an allocation may be reserved."""


@dataclass(slots=True)
class _Refusals:
    """The nodes on which kube-scheduler would not place a pod."""

    nodes: set[str] = field(default_factory=set)
    rounds: int = 0
    until: float = 0.0
    """when all nodes may be tried again"""
    pauses: bool = False
    """whether it is placed on no node, so that others get what it would have"""


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
        self._opened: dict[str, Version] = {}
        """the version of a pod since which it has no gate, by UID; the watch may show an earlier one"""
        self._refusals: dict[str, _Refusals] = {}
        self._users: dict[Key, str] = {}
        """the pod for which a claim is, or is about to be, allocated, by its UID"""
        self._under_way: set[str] = set()
        """pods whose claims are being allocated, by UID"""
        self._unplaced: dict[str, float] = {}
        """since when kube-scheduler places pods nowhere that have their claims, by UID"""
        self.stranded_s, self.sweep_s = STRANDED_S, SWEEP_S

    def takes(self, pod: Pod) -> bool:
        """Whether the claims of a pod must be allocated before its gate is removed."""
        return self._shared.state.awaits_claims(pod)

    def avoided(self, pod: Pod) -> frozenset[str]:
        """The nodes on which a pod is not to be placed."""
        refused, excluded = self._refusals.get(pod.metadata.uid), self._excluded(pod)
        if refused is not None and refused.pauses:
            return frozenset(self._shared.state.cluster.names)
        return excluded if refused is None else excluded | refused.nodes

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        uid = (new or old or Pod()).metadata.uid
        if new is not None and is_decided(new) and not new.metadata.deletion_timestamp:
            self._decided[uid] = new
            self._wake.set()
            return
        self._decided.pop(uid, None)
        self._opened.pop(uid, None)
        self._unplaced.pop(uid, None)
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
        if held is None or (refused is not None and refused.pauses):
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
            await wait_for_change(self._wake, 0.0, self.sweep_s)
            self._wake.clear()
            if self._shared.unready_reason() is None:
                self._end_pauses()
                guard = self._shared.lead.guard()
                await asyncio.gather(*(self._allocate(pod, guard) for pod in list(self._decided.values())))

    def _end_pauses(self) -> None:
        for uid, refused in list(self._refusals.items()):
            pod = self._shared.state.waiting.get(uid)
            waits = refused.pauses or (refused.nodes and pod is not None)  # those left may have no room for it
            if waits and self._shared.clock() >= refused.until:
                refused.nodes.clear()
                refused.pauses = False
                if pod is not None:
                    self._book.read_again(pod)

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
            if record is not None:
                await self._carry_out(pod, record, guard)
        except InputError as error:
            shared.errors.report("claims", f"pod {about.namespace}/{about.name}: {error}")
        except ApiError as error:
            if error.status not in EXPECTED:
                shared.errors.report("claims", str(error))

    async def _carry_out(self, pod: Pod, record: Record, guard: Guard) -> None:
        """Have the claims and the gate as the assignment says, or remove it."""
        about, shared = pod.metadata, self._shared
        try:
            open_claims = self._open_claims(pod, record)
        except InputError as error:  # the assignment cannot become true
            await self._withdraw(pod, guard, f"its GPUs on node {record.node} are given up: {error}")
            return
        if open_claims and self._allocated.get(about.uid) == record.node:
            await self._withdraw_from(record.node, pod, guard)
            return
        try:
            for claim in open_claims:
                await self._write_allocation(pod, claim, record, guard)
        except ApiError as error:
            if error.status not in (FORBIDDEN, INVALID):
                raise
            shared.errors.report("claims", str(error))
            self._avoid(pod, record.node)
            await self._withdraw(pod, guard, f"its ResourceClaims cannot be allocated: {error.summary}")
            return
        self._allocated[about.uid] = record.node
        if is_gated(pod.spec.scheduling_gates):
            if not older(about.resource_version, self._opened.get(about.uid)):
                opened = await shared.client.patch(
                    PODS, about.name, gate_patch(pod), namespace=about.namespace, guard=guard
                )
                self._opened[about.uid] = opened.metadata.resource_version
        elif is_unschedulable(pod):
            if shared.clock() >= self._unplaced.setdefault(about.uid, shared.clock()) + self.stranded_s:
                await self._withdraw_from(record.node, pod, guard)
            return  # it is looked at again
        self._unplaced.pop(about.uid, None)
        self._settle(pod)

    def _open_claims(self, pod: Pod, record: Record) -> list[ResourceClaim]:
        """The claims of a pod that are not allocated as its record says; InputError if they cannot be."""
        found, claims = [], self._book.claims(pod)
        check_usable(pod, claims)
        for claim in claims.values():
            allocation, wanted = claim.status.allocation, allocated_devices(claim.metadata.uid, record)
            if not wanted:
                raise InputError(f"they are for another ResourceClaim than {printable(claim.metadata.name[:80])}")
            if allocation is None or allocation.devices.results != wanted:
                found.append(claim)
        return found

    async def _write_allocation(self, pod: Pod, claim: ResourceClaim, record: Record, guard: Guard) -> None:
        finalizers = claim.metadata.finalizers
        if FINALIZER not in finalizers:  # a write of the status does not change metadata
            try:
                claim = await self._change(claim, {"metadata": {"finalizers": [*finalizers, FINALIZER]}}, guard)
            except ApiError as error:
                # Parameters are stored as bytes. If they have spaces or another order than the API server writes, it
                # takes a patch for a change of the spec. Without the finalizer, the next pod of the claim replaces the
                # allocation.
                if error.status != INVALID:
                    raise
        if claim.status.allocation is not None:  # of an earlier pod; an allocation can be removed, but not changed
            claim = await self._change(claim, {"status": UNALLOCATED}, guard, "status")
        status: Json = {"allocation": allocation_status(claim.metadata.uid, record, datetime.now(UTC))}
        if not claim.status.reserved_for:
            status["reservedFor"] = [{"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}]
        await self._change(claim, {"status": status}, guard, "status")

    async def _withdraw_from(self, node: str, pod: Pod, guard: Guard) -> None:
        """Remove the assignment of a pod that kube-scheduler does not place on this node."""
        self._avoid(pod, node)
        why = unschedulable_message(pod) or "it does not say why"
        text = f"kube-scheduler does not place it on node {node}, which has the GPUs; another node is tried: {why}"
        await self._withdraw(pod, guard, text)

    def _avoid(self, pod: Pod, node: str) -> None:
        """Place a pod elsewhere. If no other node is left or has room, all of them are tried again after a pause."""
        shared, refused = self._shared, self._refusals.setdefault(pod.metadata.uid, _Refusals())
        refused.nodes.add(node)
        refused.until = shared.clock() + LONGEST_PAUSE_S
        if not set(shared.state.cluster.names) - refused.nodes - self._excluded(pod):
            refused.nodes.clear()
            pause = min(PAUSE_S * 2 ** min(refused.rounds, MOST_DOUBLINGS), LONGEST_PAUSE_S)
            refused.until = shared.clock() + pause
            refused.rounds, refused.pauses = refused.rounds + 1, True

    async def _withdraw(self, pod: Pod, guard: Guard, text: str) -> None:
        """Remove the assignment of a pod, and then what its claims were given. If the pod was bound a moment ago, the
        API server refuses that."""
        shared, about = self._shared, pod.metadata
        removed = {key: None for key in about.annotations if is_assignment(key)}
        metadata = {"uid": about.uid, "resourceVersion": about.resource_version, "annotations": removed}
        patch = {"metadata": metadata, "status": {"nominatedNodeName": None}}
        await shared.client.patch(PODS, about.name, patch, namespace=about.namespace, part="status", guard=guard)
        self._allocated.pop(about.uid, None)
        self._settle(pod)
        self._give_up_claims(about.uid)
        shared.events.record(pod, NO_ROOM, text, warning=True)
        for claim in self._book.given_alone(pod):
            await self._change(claim, {"status": UNALLOCATED}, guard, "status")

    async def _change(self, claim: ResourceClaim, patch: Json, guard: Guard, part: str = "") -> ResourceClaim:
        """Write a claim, unless it has changed since."""
        about = claim.metadata
        metadata = {**patch.get("metadata", {}), "uid": about.uid, "resourceVersion": about.resource_version}
        changed = await self._shared.client.patch(
            CLAIMS, about.name, {**patch, "metadata": metadata}, namespace=about.namespace, part=part, guard=guard
        )
        self._book.note_written(changed)
        return changed
