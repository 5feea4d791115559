# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Creates the ResourceClaimTemplates that the webhook names in pods, as far as they are not there.

There is one for each amount that pods of a namespace request, and it stays for the next pod.
"""

import asyncio
from typing import NoReturn

from cotenant.kube.api.claims import TEMPLATES
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.api.reflector import Key
from cotenant.kube.codec.claim_templates import template_of
from cotenant.kube.scheduler.retry import wait_for_change
from cotenant.kube.scheduler.shared import Shared

SWEEP_S = 5.0
"""between two attempts to create a template, if one failed"""
MOST_KNOWN = 10_000
EXISTS, GONE = 409, 404


class TemplateMaker:
    """Creates templates while `run` runs."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._wanted: dict[Key, None] = {}
        self._known: dict[Key, None] = {}
        """templates that are there, as far as is known"""
        self._wake = asyncio.Event()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        if new is None or not new.spec.resource_claims or new.spec.node_name or has_ended(new):
            return
        made = {one.name for one in new.status.resource_claim_statuses}
        for one in new.spec.resource_claims:
            key = new.metadata.namespace, one.resource_claim_template_name or ""
            if one.name not in made and key not in self._known and template_of(key[1]) is not None:
                self._wanted[key] = None
                self._wake.set()

    async def run(self) -> NoReturn:
        """Create until cancelled."""
        while True:
            await wait_for_change(self._wake, 0.0, SWEEP_S)
            self._wake.clear()
            if self._shared.unready_reason() is None:
                for key in list(self._wanted):
                    await self._create(key)

    async def _create(self, key: Key) -> None:
        try:
            await self._shared.client.create(TEMPLATES, template_of(key[1]), namespace=key[0])
        except ApiError as error:
            if error.status not in (EXISTS, GONE):  # the namespace may be gone
                self._shared.errors.report("claims", str(error))
                return
        del self._wanted[key]
        self._known[key] = None
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
