# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Creates the ResourceClaimTemplates that the webhook names in pods, as far as they are not there.

There is one for each amount that pods of a namespace request, and it stays for the next pod.
"""

import asyncio
from typing import NoReturn

from cotenant.kube.api.claims import TEMPLATES
from cotenant.kube.api.connection import CONFLICT, NOT_FOUND, ApiError
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.api.reflector import Key
from cotenant.kube.codec.claim_templates import template_of
from cotenant.kube.scheduler.retry import wait_for_change
from cotenant.kube.scheduler.shared import Shared

SWEEP_S = 5.0
"""between two attempts to create templates of pods that still have no claim"""
MOST_AGAIN = 20
"""templates that are tried again at a time, so that those of new pods do not wait for them"""
MOST_KNOWN = 10_000


class TemplateMaker:
    """Creates templates while `run` runs."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._new: dict[Key, None] = {}
        """templates that were not tried yet"""
        self._waiting: dict[str, tuple[Key, ...]] = {}
        """the templates of pods that have no claims from them yet, by UID"""
        self._known: dict[Key, None] = {}
        """templates that are there, as far as is known"""
        self._wake = asyncio.Event()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        uid, keys = (new or old or Pod()).metadata.uid, () if new is None else _missing(new)
        if not keys:
            self._waiting.pop(uid, None)
            return
        self._waiting[uid] = keys
        for key in keys:
            if key not in self._known:
                self._new[key] = None
                self._wake.set()

    async def run(self) -> NoReturn:
        """Create until cancelled."""
        due = 0.0
        while True:
            await wait_for_change(self._wake, 0.0, SWEEP_S)
            self._wake.clear()
            if self._shared.unready_reason() is not None:
                continue
            new, self._new = self._new, {}
            if self._shared.clock() >= due:
                new |= dict.fromkeys(self._again())
                due = self._shared.clock() + SWEEP_S
            for key in new:
                await self._create(key)

    def _again(self) -> list[Key]:
        """Templates of pods that wait: they could not be created, or a user has deleted them. Other pods follow the
        next time."""
        found: dict[Key, None] = {}
        for uid in list(self._waiting)[:MOST_AGAIN]:
            keys = self._waiting.pop(uid)
            self._waiting[uid] = keys
            found |= dict.fromkeys(keys)
        return list(found)[:MOST_AGAIN]

    async def _create(self, key: Key) -> None:
        try:
            await self._shared.client.create(TEMPLATES, template_of(key[1]), namespace=key[0])
        except ApiError as error:
            if error.status not in (CONFLICT, NOT_FOUND):  # the namespace may be gone
                self._shared.errors.report("claims", str(error))
                return
        self._known[key] = None
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]


def _missing(pod: Pod) -> tuple[Key, ...]:
    """The templates of ours from which a pod has no claim yet."""
    if not pod.spec.resource_claims or pod.spec.node_name or has_ended(pod):
        return ()
    made = {one.name for one in pod.status.resource_claim_statuses}
    keys = (
        (pod.metadata.namespace, one.resource_claim_template_name or "")
        for one in pod.spec.resource_claims
        if one.name not in made
    )
    return tuple(key for key in keys if template_of(key[1]) is not None)
