# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""For what pods wait at their gates, for all of them at once: their places in the queue, and why no node fits."""

import asyncio
import time
from collections.abc import Mapping

from cotenant.core.units import Seconds
from cotenant.kube.api.reflector import Key
from cotenant.kube.scheduler.explaining import why_not
from cotenant.kube.scheduler.queue_entry import UnitClass
from cotenant.web.kube.watch import ClusterWatch

LEAST_S, EACH_S = 2.0, 0.01
"""Seconds between two looks through the queue, and what each pod or gang in it adds to them: every change of the first
place changes the rows of all others, which are sent to all viewers."""
MOST_CLASSES = 100
"""Different requests for which it is found out why no node fits; the others have their place in the queue only."""


class QueueReasons:
    """The sentences, renewed every few seconds if the cluster has changed."""

    def __init__(self, watch: ClusterWatch) -> None:
        self._watch = watch
        self.texts: Mapping[Key, str] = {}
        self.places: Mapping[str, int] = {}
        """By the ID of a row; the first is 0."""
        self._seen, self._look_at = -1, float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    async def refresh(self) -> set[Key]:
        """Look through the queue if it is time; return the pods whose sentences have changed."""
        now = time.monotonic()
        if self._watch.version == self._seen:
            return set()
        if now < self._look_at:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._look_at - now, self._look_again)
            return set()
        self._seen = self._watch.version
        texts: dict[Key, str] = {}
        places: dict[str, int] = {}
        known: dict[UnitClass, str] = {}
        waiting = list(self._watch.queue.in_order(now, Seconds(time.time())))
        self._look_at = now + LEAST_S + EACH_S * len(waiting)
        for place, (unit, where) in enumerate(waiting):
            if unit.unit_class not in known and len(known) < MOST_CLASSES:
                known[unit.unit_class] = why_not(unit.pods[0].pod, self._watch.placer)
                await asyncio.sleep(0)
            why = known.get(unit.unit_class)
            for one in unit.pods:
                about = one.pod.metadata
                texts[about.namespace, about.name] = where if why is None else f"{where}; {why}"
                places[f"{about.namespace}/{about.name}"] = place
        for pod, text in self._watch.queue.not_in_order():
            texts[pod.metadata.namespace, pod.metadata.name] = text
        before, self.texts, self.places = self.texts, texts, places
        return {key for key in {*before, *texts} if before.get(key) != texts.get(key)}

    def _look_again(self) -> None:
        """It was too early for the last change: the pages ask again now."""
        self._timer = None
        self._watch.wake()
