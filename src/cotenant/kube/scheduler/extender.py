# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The routes that kube-scheduler calls: filter, prioritize, bind, preempt.

kube-scheduler treats any status except 200 as a failure and shows the pod's owner only the number. So a refusal that a
user can act on is an answer with status 200 and `Error` set.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.server import Reply, Route, Routes, json_reply, text_reply
from cotenant.kube.scheduler.binding import Binder
from cotenant.kube.scheduler.calls import Calls
from cotenant.kube.scheduler.events import NO_ROOM
from cotenant.kube.scheduler.explaining import why_not
from cotenant.kube.scheduler.metrics import count_filtered
from cotenant.kube.scheduler.node_names import KnownNames
from cotenant.kube.scheduler.preemption import Preemptor
from cotenant.kube.scheduler.protocol import (
    BindingResult,
    ExtenderArgs,
    FilterResult,
    NodeQuery,
    PreemptionResult,
    decode_args,
    decode_binding,
    decode_preemption,
    victims_of,
)
from cotenant.kube.scheduler.shared import Shared
from cotenant.metrics.table import STEPS

MOST_BYTES = 32 * 1024 * 1024
"""of a call: kube-scheduler can be configured to send full nodes"""


@dataclass(frozen=True, slots=True)
class Extender:
    """Answers by the current state of the cluster."""

    shared: Shared
    binder: Binder
    preemptor: Preemptor
    calls: Calls
    known: KnownNames = field(default_factory=KnownNames)

    def routes(self) -> Routes:
        """The routes by verb."""
        return {
            "filter": self._route("filter", self._filter, _filter_error),
            "prioritize": self._route("prioritize", self._prioritize, text_reply),
            "bind": self._route("bind", self._bind, _bind_error),
            "preempt": self._route("preempt", self._preempt, text_reply),
        }

    def _route(
        self, verb: str, answer: Callable[[bytes], Awaitable[object]], refuse: Callable[[int, str], Reply]
    ) -> Route:
        async def answered(_words: tuple[str, ...], body: bytes) -> Reply:
            shared = self.shared
            reason = shared.state_unready_reason() or await shared.lead.wait_ready()
            if reason is not None:
                return text_reply(503, reason)
            shared.expire_holds()
            with self.calls.answering(), shared.counts.timed(STEPS, verb):
                return json_reply(await answer(body))

        return Route(method="POST", answer=answered, most_bytes=MOST_BYTES, refuse=refuse)

    async def _filter(self, body: bytes) -> FilterResult:
        args, shared = decode_args(body, self.known), self.shared
        self._check_not_binding(args)
        query = NodeQuery.of(args)
        result = shared.placer.filter(args, shared.clock(), query)
        if args.node_names is not None:  # else it is a what-if query
            count_filtered(shared.counts, result)
        if args.node_names is not None and not result.node_names:  # a refusal, and no what-if query
            shared.signals.refused.send(args.pod, query.every)
            shared.events.record(args.pod, NO_ROOM, lambda: self._why_not(args.pod), warning=True)
        return result

    async def _prioritize(self, body: bytes) -> object:
        args = decode_args(body, self.known)
        self._check_not_binding(args)
        return self.shared.placer.prioritize(args, self.shared.clock())

    async def _bind(self, body: bytes) -> BindingResult:
        return BindingResult(error=await self.binder.bind(decode_binding(body)))

    async def _preempt(self, body: bytes) -> object:
        """Veto nodes on which the eviction would not help, and those on which this scheduler evicts itself."""
        args = decode_preemption(body)
        victims = {name: frozenset(pod.uid for pod in one.pods or ()) for name, one in victims_of(args).items()}
        ours = self.preemptor.take_over_evictions(args.pod, victims)
        helped = self.shared.placer.preempt(args).node_name_to_meta_victims
        left = {name: one for name, one in helped.items() if name not in ours}
        return PreemptionResult(node_name_to_meta_victims=left)

    def _check_not_binding(self, args: ExtenderArgs) -> None:
        """A pod whose bind kube-scheduler has given up, but whose outcome is open, must not be held elsewhere."""
        if args.node_names is not None and self.binder.is_binding(args.pod.metadata.uid):
            raise InputError("it is being bound already, and the API server has not answered yet")

    def _why_not(self, pod: Pod) -> str:
        """The reasons at the time of writing; empty if the pod no longer waits."""
        about, shared = pod.metadata, self.shared
        is_new = (about.namespace, about.name) not in shared.pods.objects  # kube-scheduler saw it before our watch
        offered = shared.offers.of(pod)
        return why_not(pod, shared.placer, offered) if is_new or about.uid in shared.state.waiting else ""


def _filter_error(_status: int, text: str) -> Reply:
    return json_reply(FilterResult(error=text))


def _bind_error(_status: int, text: str) -> Reply:
    return json_reply(BindingResult(error=text))
