# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Live resize: running pods that ask for more or less get it, as far as there is room, in one write.

What a pod is to have is counted before it is written, so that nobody else is put there meanwhile. The write is refused
by the API server where the pod has changed since, and then everything is looked at anew.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

from cotenant.core.model import Reason
from cotenant.kube.api.client import Client, Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.settings import Settings
from cotenant.kube.scheduler.events import RESIZE_REFUSED, RESIZED, News
from cotenant.kube.scheduler.explaining import seat_words
from cotenant.kube.scheduler.lease import Alone, Lead
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.resize import RESIZE, Resized, resize
from cotenant.kube.scheduler.watches import pod_now
from cotenant.kube.state.books import Books

AGAIN_S = 10.0
"""after a refusal or a failure: room may have come since"""
UNSURE_S = 0.1
"""between looks whether the books can be relied on again"""
PASSING = (404, 409)
"""the pod is gone, or has changed, of which we are told anyway"""


class Granter:
    """Takes pods as they change; `run` answers their requests one after the other."""

    def __init__(
        self,
        client: Client,
        books: Books,
        quotas: Quotas,
        news: News,
        error_log: ErrorLog,
        settings: Settings,
        *,
        lead: Lead = Alone(),  # noqa: B008 -- it has no state
        doubt: Callable[[], str | None] = lambda: None,
        is_binding: Callable[[str], bool] = lambda uid: False,
        again_s: float = AGAIN_S,
    ) -> None:
        self._client, self._books, self._quotas = client, books, quotas
        self._lead, self._doubt, self._is_binding = lead, doubt, is_binding
        self._news, self._error_log, self._settings, self.again_s = news, error_log, settings, again_s
        self._asking: dict[str, Pod] = {}  # all that carry a request, also one that was granted long ago
        self._due: dict[str, None] = {}
        self._undone: dict[str, None] = {}
        self._some = asyncio.Event()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """After the books were told."""
        uid = (new or old or Pod()).metadata.uid
        if new is None or RESIZE not in new.metadata.annotations or not new.spec.node_name or has_ended(new):
            for kept in (self._asking, self._due, self._undone):
                kept.pop(uid, None)
            return
        before = self._asking.get(uid)  # not `old`: a request may be there before the pod is placed
        self._asking[uid] = new
        asks_anew = before is None or before.metadata.annotations[RESIZE] != new.metadata.annotations[RESIZE]
        if asks_anew or uid in self._undone:
            self._due[uid] = None
            self._some.set()

    async def run(self) -> NoReturn:
        """Answer until cancelled; those who were refused are looked at again now and then."""
        now = asyncio.get_running_loop().time
        looked = now()
        while True:
            try:
                async with asyncio.timeout_at(looked + self.again_s):
                    await self._some.wait()
            except TimeoutError:
                looked = now()
                self._due |= self._undone
            while self._doubt() is not None or self._lead.doubt() is not None:
                await asyncio.sleep(UNSURE_S)
            self._some.clear()
            due, self._due = self._due, {}
            for uid in due:
                if uid in self._asking:
                    await self._answer(self._asking[uid])

    async def _answer(self, pod: Pod) -> None:
        self._undone.pop(pod.metadata.uid, None)
        if self._is_binding(pod.metadata.uid):  # who binds it would take what we hold for it as its own
            self._later(pod)
            return
        guard = self._lead.guard()
        answer = resize(pod, self._books, self._quotas, moment=time.time_ns(), settings=self._settings)
        if isinstance(answer, Reason):
            self._later(pod)
            self._news.tell(pod, RESIZE_REFUSED, str(answer), warning=True)
        elif answer is not None:
            await self._grant(pod, answer, guard)

    async def _grant(self, pod: Pod, resized: Resized, guard: Guard) -> None:
        """What was chosen is held until it is known whether the pod has it."""
        granted = False
        try:
            granted = await self._written(pod, resized, guard)
        except ApiError as error:
            self._report(str(error))
        finally:
            (self._books.assume if granted else self._books.release)(pod.metadata.uid)
        if granted:
            self._news.tell(pod, RESIZED, seat_words(resized.seat))
        else:
            self._later(pod)

    async def _written(self, pod: Pod, resized: Resized, guard: Guard) -> bool:
        """Whether the pod has it now. After a failure only the pod can say: an answer may have been lost, and the same
        write, tried again, is refused because of itself."""
        about = pod.metadata
        metadata = {"uid": about.uid, "resourceVersion": about.resource_version, "annotations": resized.annotations}
        try:
            await self._client.patch(PODS, about.name, {"metadata": metadata}, namespace=about.namespace, guard=guard)
            return True
        except ApiError as error:
            if error.status not in PASSING:
                self._report(str(error))
        there = await pod_now(self._client, about.namespace, about.name, self._report)
        if there is None or there.metadata.uid != about.uid:
            return False
        return there.metadata.annotations.get(RECORD) == resized.annotations[RECORD]

    def _later(self, pod: Pod) -> None:
        if pod.metadata.uid in self._asking:  # it may be gone since
            self._undone[pod.metadata.uid] = None

    def _report(self, text: str) -> None:
        self._error_log.report("resize", text)
