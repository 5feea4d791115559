# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What kube-scheduler calls, as routes: filter, prioritize, bind, preempt.

It takes any status but 200 for a failure and tells the pod's owner no more than the number, so a refusal that somebody
can act on is an answer with `Error` in it.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.server import Reply, Route, Routes, json_reply, text_reply
from cotenant.kube.scheduler.binding import Binder
from cotenant.kube.scheduler.events import NO_ROOM, News
from cotenant.kube.scheduler.explaining import why_not
from cotenant.kube.scheduler.lease import Lead
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.preemption import Preemptor
from cotenant.kube.scheduler.protocol import (
    BindingResult,
    ExtenderArgs,
    FilterResult,
    PreemptionResult,
    decode_args,
    decode_binding,
    decode_preemption,
    victims_of,
)
from cotenant.kube.scheduler.retry import Waker
from cotenant.kube.scheduler.watches import Watching
from cotenant.kube.state.books import Books

MOST_BYTES = 32 * 1024 * 1024
"""of a call: whole nodes, where kube-scheduler is told to send them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extender:
    """Answers by what the books say now."""

    books: Books
    placer: Placer
    binder: Binder
    watching: Watching
    lead: Lead
    waker: Waker
    preemptor: Preemptor
    news: News
    clock: Callable[[], float] = field(default=time.monotonic)

    def routes(self) -> Routes:
        """By verb."""
        return {
            "filter": self._route(self._filter, _filter_error),
            "prioritize": self._route(self._prioritize, text_reply),
            "bind": self._route(self._bind, _bind_error),
            "preempt": self._route(self._preempt, text_reply),
        }

    def _route(self, answer: Callable[[bytes], Awaitable[object]], refuse: Callable[[int, str], Reply]) -> Route:
        async def answered(_words: tuple[str, ...], body: bytes) -> Reply:
            doubt = self.watching.doubt() or await self.lead.settled()
            if doubt is not None:
                return text_reply(503, doubt)
            self.books.expire(self.clock())
            return json_reply(await answer(body))

        return Route(method="POST", answer=answered, most_bytes=MOST_BYTES, refuse=refuse)

    async def _filter(self, body: bytes) -> FilterResult:
        args = decode_args(body)
        self._check_free(args)
        result = self.placer.filter(args, self.clock())
        if _is_refusal(args, result):
            self.waker.refused(args.pod)
            self.preemptor.refused(args.pod, frozenset(args.node_names or ()))
            self.news.tell(args.pod, NO_ROOM, lambda: self._why_not(args.pod), warning=True)
        return result

    async def _prioritize(self, body: bytes) -> object:
        args = decode_args(body)
        self._check_free(args)
        return self.placer.prioritize(args, self.clock())

    async def _bind(self, body: bytes) -> BindingResult:
        return BindingResult(error=await self.binder.bind(decode_binding(body)))

    async def _preempt(self, body: bytes) -> object:
        """A veto where it would not help, or where we make room ourselves: one of us evicts, not both."""
        args = decode_preemption(body)
        named = {name: frozenset(pod.uid for pod in who.pods or ()) for name, who in victims_of(args).items()}
        ours = self.preemptor.would_evict(args.pod, named)
        helped = self.placer.preempt(args).node_name_to_meta_victims
        left = {name: who for name, who in helped.items() if name not in ours}
        return PreemptionResult(node_name_to_meta_victims=left)

    def _check_free(self, args: ExtenderArgs) -> None:
        """A pod whose bind was given up by kube-scheduler and not yet by us must not be held somewhere else."""
        if args.node_names is not None and self.binder.is_binding(args.pod.metadata.uid):
            raise InputError("it is being bound already, and the API server has not answered yet")

    def _why_not(self, pod: Pod) -> str:
        """The numbers at the time of writing; empty where they are not needed any more."""
        about = pod.metadata
        is_unknown = (about.namespace, about.name) not in self.watching.pods.objects  # kube-scheduler heard of it first
        return why_not(pod, self.placer) if is_unknown or about.uid in self.books.waiting else ""


def _is_refusal(args: ExtenderArgs, result: FilterResult) -> bool:
    return args.node_names is not None and not result.node_names


def _filter_error(_status: int, text: str) -> Reply:
    return json_reply(FilterResult(error=text))


def _bind_error(_status: int, text: str) -> Reply:
    return json_reply(BindingResult(error=text))
