# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What operators and users ask the scheduler over its second port: `why`, `whatif`, `inspect`, recorded decisions."""

import asyncio
from collections.abc import Callable
from functools import partial

from cotenant.kube.api.server import Reply, Route, Routes, json_reply, status_reply, text_reply
from cotenant.kube.codec.dialect import GIB
from cotenant.kube.scheduler.explaining import explain
from cotenant.kube.scheduler.foresight import NEW, Foresight
from cotenant.kube.scheduler.inspecting import GPUSHARE, INSPECT, TOPOLOGY, gpushare_report, topology_report
from cotenant.kube.scheduler.latency import ObjectiveKeeper
from cotenant.kube.scheduler.preemption import Preemptor
from cotenant.kube.scheduler.profiles import Profiles
from cotenant.kube.scheduler.reclaim import Reclaimer
from cotenant.kube.scheduler.recording import Cursor, PodRecorder
from cotenant.kube.scheduler.release import Releaser
from cotenant.kube.scheduler.shared import Shared
from cotenant.kube.scheduler.why import NO_SUCH_POD, DecisionPage, Named, WhatIfPod, decode_template


class OperatorAnswers:
    """Answers from what the parts of the scheduler know. Nothing is changed by a question."""

    def __init__(
        self,
        shared: Shared,
        profiles: Profiles,
        preemptor: Preemptor,
        releaser: Releaser,
        foresight: Foresight,
        objectives: ObjectiveKeeper,
        reclaimer: Reclaimer,
        decisions: PodRecorder,
    ) -> None:
        self._shared, self._profiles, self._preemptor, self._releaser = shared, profiles, preemptor, releaser
        self._foresight, self._objectives, self._reclaimer = foresight, objectives, reclaimer
        self._decisions = decisions

    def routes(self, why_key: Callable[[], bytes] | None, decisions_key: Callable[[], bytes] | None) -> Routes:
        """The routes whose requests must carry one of the keys; without a key there are none of them."""
        routes: dict[str, Route] = {}
        if why_key is not None:
            routes["why"] = Route(method="GET", answer=self._why, segments=2, refuse=status_reply, key=why_key)
            routes["whatif"] = Route(method="GET", answer=self._what_if, segments=2, refuse=status_reply, key=why_key)
            for name in (GPUSHARE, TOPOLOGY):
                answer = partial(self._inspect, name)
                routes[name] = Route(method="GET", answer=answer, segments=1, optional_segments=1, key=why_key)
        if decisions_key is not None:
            routes["decisions"] = Route(
                method="GET", answer=self._recorded, segments=2, refuse=status_reply, key=decisions_key
            )
        return routes

    async def _why(self, words: tuple[str, ...], _body: bytes) -> Reply:
        reason = self._shared.state_unready_reason()
        if reason is not None:
            return status_reply(503, reason)
        pod = self._shared.pods.objects.get((words[0], words[1]))
        if pod is None:
            return status_reply(404, "no such pod", NO_SUCH_POD)
        plan, queued = await self._preemptor.plan(pod), self._releaser.explain(pod)
        suggestions, gang = await self._foresight.suggestions(pod)
        await self._foresight.prepare(pod)
        return json_reply(
            explain(
                pod,
                self._shared.state,
                self._shared.placer,
                offered=self._shared.offers.of(pod),
                plan=plan,
                queued=queued,
                profiles=self._profiles,
                server=self._objectives.report_of(pod),
                suggestions=suggestions,
                gang=gang,
                grants=tuple(self._reclaimer.notes(pod)),
            )
        )

    async def _what_if(self, words: tuple[str, ...], _body: bytes) -> Reply:
        reason = self._shared.state_unready_reason()
        if reason is not None:
            return status_reply(503, reason)
        answer = await self._foresight.what_if(words[0], decode_template(words[1]))
        return json_reply(WhatIfPod(metadata=Named(name=NEW, namespace=words[0]), answer=answer))

    async def _recorded(self, words: tuple[str, ...], _body: bytes) -> Reply:
        """Answers `decisions/SINCE/PART-LINE` with a page of recorded lines."""
        part, _, line = words[1].partition("-")
        if not all(word.isascii() and word.isdecimal() and len(word) < 16 for word in (words[0], part, line)):
            return status_reply(400, "expected /decisions/SECONDS/PART-LINE, three whole numbers")
        lines, after = await asyncio.to_thread(self._decisions.page, float(words[0]), Cursor(int(part), int(line)))
        following = None if after is None else f"{after.part}-{after.line}"
        return json_reply(DecisionPage(metadata=Named(name=words[1], namespace=words[0]), lines=lines, next=following))

    async def _inspect(self, system: str, words: tuple[str, ...], _body: bytes) -> Reply:
        """Answers `inspect` and `inspect/NODE` as the extender of another system does."""
        reason = self._shared.state_unready_reason()
        if reason is not None:
            return text_reply(503, reason)
        verb, node = words[0], words[1] if len(words) > 1 else None
        if verb != INSPECT:
            return text_reply(404, f"no such path; expected /{system}/{INSPECT}")
        if system == TOPOLOGY:
            return json_reply(topology_report(self._shared.state, self._shared.settings.scheduler.policy, node))
        units = {one.name: one.memory_unit for one in self._shared.settings.codec().dialects}
        return json_reply(gpushare_report(self._shared.state, units.get("gpushare", GIB), node))
