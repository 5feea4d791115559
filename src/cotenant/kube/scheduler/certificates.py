# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the certificates of the installation valid: the leader renews them, and servers load them without a restart."""

import asyncio
from typing import NoReturn

from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.keys import own_secrets, renew, trust_webhook
from cotenant.kube.scheduler.lease import Lead

LOOK_S = 30.0
RETRY_S = 2.0


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
