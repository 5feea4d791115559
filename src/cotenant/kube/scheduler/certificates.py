# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the certificates of the installation valid: the leader renews them, and servers load them without a restart.

The scheduler is ready only when the API server trusts the webhook, because until then the API server refuses pods with
GPUs. So `helm install --wait`, Argo CD and Flux wait for that, too, also if cert-manager issues the certificates."""

import asyncio
from typing import NoReturn

from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.keys import HOOKS, own_secrets, renew, trust_webhook
from cotenant.kube.api.names import SCHEDULER
from cotenant.kube.scheduler.lease import Lead

LOOK_S = 30.0
RETRY_S = 2.0
TRUST_LOOK_S = 0.5
UNTRUSTED = "the API server does not trust the webhook yet: its configuration has no certificate"
USUAL_S = 10.0
"""A log that says sooner that the webhook is not trusted would say so at each installation."""


class CertificateKeeper:
    """Looks at the certificates again and again. Every scheduler tells the API server whom to trust; the leader alone
    creates new certificates."""

    def __init__(self, client: Client, lead: Lead, errors: ErrorLog, days: int) -> None:
        self._client, self._lead, self._errors, self._days = client, lead, errors, days

    async def run(self) -> NoReturn:
        """Run until cancelled."""
        while True:
            try:
                await self.look()
                pause = LOOK_S
            except ApiError as error:
                self._errors.report("certificates", str(error))
                pause = RETRY_S
            await asyncio.sleep(pause)

    async def look(self) -> None:
        """Do what is due now."""
        await trust_webhook(self._client)
        await own_secrets(self._client)
        if self._lead.unready_reason() is None:
            for name in await renew(self._client, self._days, self._lead.guard()):
                print(f"cotenant: renewed the certificate of {name}", flush=True)


class WebhookTrust:
    """Looks until the API server trusts the webhook. What becomes of that later does not make the scheduler unready."""

    def __init__(self, client: Client, errors: ErrorLog, *, look_s: float = TRUST_LOOK_S) -> None:
        self._client, self._errors, self._look_s = client, errors, look_s
        self._reason: str | None = UNTRUSTED

    def unready_reason(self) -> str | None:
        """Why no pod with GPUs can be created yet; None if pods can."""
        return self._reason

    async def run(self) -> None:
        """Return when the webhook is trusted."""
        begun = asyncio.get_running_loop().time()
        while True:
            self._reason = await self._look()
            if self._reason is None:
                return
            if asyncio.get_running_loop().time() - begun > USUAL_S:
                self._errors.report("webhook", self._reason)
            await asyncio.sleep(self._look_s)

    async def _look(self) -> str | None:
        try:
            hooks = (await self._client.get(HOOKS, SCHEDULER)).webhooks
        except ApiError as error:
            return f"the configuration of the webhook cannot be read: {error}"
        trusted = bool(hooks) and all(one.get("clientConfig", {}).get("caBundle") for one in hooks)
        return None if trusted else UNTRUSTED
