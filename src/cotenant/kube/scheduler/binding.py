# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Binds pods: one write that carries node and assignment together, and certainty about its outcome.

The GPUs are chosen and held without an await in between, so pods that are bound at the same time see each other. If an
answer is lost, the pod itself shows whether it was bound; until then its GPUs stay held.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection

from cotenant.core.model import Reason
from cotenant.kube.api.client import INTERRUPTED, Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.scheduler.events import PLACED
from cotenant.kube.scheduler.explaining import describe_allocation
from cotenant.kube.scheduler.placement import Choice
from cotenant.kube.scheduler.protocol import BindingArgs
from cotenant.kube.scheduler.shared import Shared
from cotenant.kube.scheduler.watches import get_pod
from cotenant.metrics.table import BINDS, DECISIONS

ANSWER_S = 6.0
"""within which kube-scheduler gets an answer; it waits 10 s"""
CHECKS = 3
"""times to read a pod whose bind was not answered: a server soon stops working for a client that is gone"""
CHECK_S = 1.0


class Binder:
    """Binds each pod once, and many pods at the same time."""

    def __init__(self, shared: Shared, join_gang: Callable[[Pod], Awaitable[str]]) -> None:
        """`join_gang` waits for the other pods of the gang; it returns why they cannot be bound, or an empty text."""
        self._shared, self._join_gang = shared, join_gang
        self.answer_s, self.check_s = ANSWER_S, CHECK_S
        self._tasks: dict[str, asyncio.Task[str]] = {}

    def is_binding(self, uid: str) -> bool:
        """Whether the outcome of a pod's bind is still unknown: what is held for the pod must not be changed."""
        return uid in self._tasks

    def under_way(self) -> Collection[str]:
        """The pods whose binds have no outcome yet, by UID."""
        return self._tasks

    async def bind(self, args: BindingArgs) -> str:
        """Why the pod is not bound; empty if it is. A bind that takes too long goes on in the background."""
        subject = f"pod {args.namespace}/{args.name}"
        if self.is_binding(args.uid):
            return f"{subject}: it is being bound already"
        task = self._tasks[args.uid] = asyncio.create_task(self._bind(args, subject))
        task.add_done_callback(lambda _: self._tasks.pop(args.uid, None))
        done, _ = await asyncio.wait([task], timeout=self.answer_s)
        return task.result() if done else f"{subject}: the API server has not answered yet; its GPUs stay held"

    async def finish(self, within_s: float) -> None:
        """Wait for the binds under way. The next scheduler reads the outcome of all others from their pods."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=within_s)

    async def _bind(self, args: BindingArgs, subject: str) -> str:
        shared = self._shared
        pod = shared.pods.objects.get((args.namespace, args.name)) or await self._get_pod(args)
        if pod is None or pod.metadata.uid != args.uid:
            return f"{subject} is gone"
        if reason := await shared.lead.wait_ready():
            return f"{subject}: {reason}"
        if missing := await self._join_gang(pod):
            return f"{subject} waits for the rest of its gang: {missing}"
        began, guard = shared.clock(), shared.lead.guard()
        choice = shared.placer.choose(pod, args.node, began, time.time_ns())
        if isinstance(choice, Reason):
            shared.counts.add(BINDS, "refused")
            shared.counts.add(DECISIONS, "bind", "refused", choice.check)
            return f"{subject} does not fit on node {args.node} any more: {choice}"
        error = None
        try:
            error = await self._write(args, choice, guard)
        finally:
            if choice.allocation is not None:
                (shared.state.assume if error == "" else shared.state.release)(args.uid)
        shared.counts.add(BINDS, "failed" if error else "bound")
        shared.counts.add(DECISIONS, "bind", "failed" if error else "placed", "")
        if error:
            shared.errors.report("bind", error)
        elif choice.allocation is not None:
            note = f"; {choice.request.note}" if choice.request.note else ""
            where = f"on node {choice.node}: {describe_allocation(choice.allocation)}{note}"
            shared.events.record(pod, PLACED, where)
            shared.log(f"{subject} {where}, in {(shared.clock() - began) * 1000:.1f} ms")
        return error

    async def _write(self, args: BindingArgs, choice: Choice, guard: Guard) -> str:
        """What the server refused; empty if the pod is bound now."""
        try:
            await self._shared.client.bind(
                args.name,
                args.node,
                namespace=args.namespace,
                uid=args.uid,
                annotations=choice.annotations,
                guard=guard,
            )
            return ""
        except ApiError as error:
            unsure = error.reason == INTERRUPTED or error.status >= 500
            if unsure or error.status == 409:
                return "" if await self._is_bound(args, choice, CHECKS if unsure else 1) else str(error)
            return str(error)

    async def _is_bound(self, args: BindingArgs, choice: Choice, checks: int) -> bool:
        """Whether the pod is bound as chosen, after a write with an unknown outcome."""
        for check in range(checks):
            if check:
                await asyncio.sleep(self.check_s)
            pod = await self._get_pod(args)
            if pod is None or pod.metadata.uid != args.uid:
                return False
            if pod.spec.node_name:
                record = pod.metadata.annotations.get(RECORD)
                return pod.spec.node_name == args.node and record == choice.annotations.get(RECORD)
        return False

    async def _get_pod(self, args: BindingArgs) -> Pod | None:
        errors = self._shared.errors
        return await get_pod(self._shared.client, args.namespace, args.name, lambda text: errors.report("bind", text))
