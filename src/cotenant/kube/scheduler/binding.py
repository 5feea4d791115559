# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Gives pods their GPUs: one write that carries node and assignment together, and certainty about what became of it.

The GPUs are chosen and held without a wait in between, so pods that are bound at the same time see each other. Where an
answer is lost, the pod itself says whether it was bound; until then its GPUs stay held.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from cotenant.core.model import Reason
from cotenant.kube.api.client import INTERRUPTED, Client, Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Reflector
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.scheduler.events import PLACED, News
from cotenant.kube.scheduler.explaining import seat_words
from cotenant.kube.scheduler.lease import Alone, Lead
from cotenant.kube.scheduler.placement import Choice, Placer
from cotenant.kube.scheduler.protocol import BindingArgs
from cotenant.kube.scheduler.watches import pod_now
from cotenant.kube.state.books import Books

ANSWERED_S = 6.0
"""within this, kube-scheduler hears what became of a bind; it asks for 10 s"""
LOOKS = 3
"""at an unbound pod whose bind was not answered: a server soon stops working for a sender who is gone"""
LOOK_S = 1.0


class Binder:
    """Binds one pod at a time, many pods at the same time."""

    def __init__(
        self,
        client: Client,
        books: Books,
        placer: Placer,
        pods: Reflector[Pod],
        news: News,
        error_log: ErrorLog,
        *,
        lead: Lead = Alone(),  # noqa: B008 -- it has no state
        meet: Callable[[Pod], Awaitable[str]] | None = None,
        say: Callable[[str], object] = to_stderr,
        clock: Callable[[], float] = time.monotonic,
        answered_s: float = ANSWERED_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._client, self._books, self._placer, self._pods = client, books, placer, pods
        self._news, self._error_log, self._say, self._lead, self._meet = news, error_log, say, lead, meet
        self._clock, self.answered_s, self.look_s = clock, answered_s, look_s
        self._under_way: dict[str, asyncio.Task[str]] = {}

    def is_binding(self, uid: str) -> bool:
        """Whether it is not known yet what becomes of a pod: what is held for it must not be touched."""
        return uid in self._under_way

    async def bind(self, args: BindingArgs) -> str:
        """Empty where the pod is bound, else why not; it goes on in the background where that takes too long."""
        who = f"pod {args.namespace}/{args.name}"
        if self.is_binding(args.uid):
            return f"{who}: it is being bound already"
        task = self._under_way[args.uid] = asyncio.create_task(self._bind(args, who))
        task.add_done_callback(lambda _: self._under_way.pop(args.uid, None))
        done, _ = await asyncio.wait([task], timeout=self.answered_s)
        return task.result() if done else f"{who}: the API server has not answered yet; its GPUs stay held"

    async def finish(self, within_s: float) -> None:
        """Wait for what is under way; what a server does not answer by then, the next scheduler reads from the pod."""
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=within_s)

    async def _bind(self, args: BindingArgs, who: str) -> str:
        pod = self._pods.objects.get((args.namespace, args.name)) or await self._now(args)
        if pod is None or pod.metadata.uid != args.uid:
            return f"{who} is gone"
        if doubt := await self._lead.settled():
            return f"{who}: {doubt}"
        if self._meet is not None and (alone := await self._meet(pod)):
            return f"{who} waits for the rest of its gang: {alone}"
        began, guard = self._clock(), self._lead.guard()
        choice = self._placer.choose(pod, args.node, began, time.time_ns())
        if isinstance(choice, Reason):
            return f"{who} does not fit on node {args.node} any more: {choice}"
        error = None
        try:
            error = await self._written(args, choice, guard)
        finally:
            if choice.seat is not None:
                (self._books.assume if error == "" else self._books.release)(args.uid)
        if error:
            self._error_log.report("bind", error)
        elif choice.seat is not None:
            where = f"on node {choice.node}: {seat_words(choice.seat)}"
            self._news.tell(pod, PLACED, where)
            self._say(f"{who} {where}, in {(self._clock() - began) * 1000:.1f} ms")
        return error

    async def _written(self, args: BindingArgs, choice: Choice, guard: Guard) -> str:
        """Empty where the pod is bound now, else what the server said."""
        try:
            await self._client.bind(
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
                return "" if await self._found(args, choice, LOOKS if unsure else 1) else str(error)
            return str(error)

    async def _found(self, args: BindingArgs, choice: Choice, looks: int) -> bool:
        """Whether the pod is bound as we wanted."""
        for look in range(looks):
            if look:
                await asyncio.sleep(self.look_s)
            pod = await self._now(args)
            if pod is None or pod.metadata.uid != args.uid:
                return False
            if pod.spec.node_name:
                given = pod.metadata.annotations.get(RECORD)
                return pod.spec.node_name == args.node and given == choice.annotations.get(RECORD)
        return False

    async def _now(self, args: BindingArgs) -> Pod | None:
        return await pod_now(self._client, args.namespace, args.name, lambda text: self._error_log.report("bind", text))
