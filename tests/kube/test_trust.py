# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler is not ready before the API server trusts the webhook, because no pod with GPUs could be created."""

import asyncio
from typing import Any

from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.server import Listener, Reply, Route, application, json_reply, listen, status_reply
from cotenant.kube.scheduler.certificates import UNTRUSTED, WebhookTrust
from tests.kube.control_plane import QUICK, until
from tests.kube.http import serving

HOOK: dict[str, Any] = {"name": "pods.cotenant.io", "clientConfig": {"service": {"name": "cotenant-webhook"}}}
TRUSTED: dict[str, Any] = {"name": "all.cotenant.io", "clientConfig": {"caBundle": "QQ=="}}


def test_the_scheduler_is_ready_when_every_hook_has_an_authority_and_stays_so() -> None:
    configuration: dict[str, Any] | None = None
    asked = 0

    async def answer(_words: tuple[str, ...], _body: bytes) -> Reply:
        nonlocal asked
        asked += 1
        return status_reply(404, "no such object", "NotFound") if configuration is None else json_reply(configuration)

    async def told() -> None:
        nonlocal configuration
        listener = listen("127.0.0.1", 0)
        routes = {"apis": Route(method="GET", answer=answer, segments=4)}
        port = listener.getsockname()[1]
        async with serving([Listener(listener, application(routes, ErrorLog()))]):
            client = Client(Access(host="127.0.0.1", port=port, namespace="x"), QUICK)
            trust = WebhookTrust(client, ErrorLog(), look_s=0.01)
            assert trust.unready_reason() == UNTRUSTED
            looking = asyncio.create_task(trust.run())
            await until(lambda: "404" in str(trust.unready_reason()))
            for untrusted in ([], [HOOK], [TRUSTED, HOOK]):
                configuration, before = {"metadata": {}, "webhooks": untrusted}, asked
                await until(lambda: asked > before + 1)  # noqa: B023 -- it is awaited here
                assert trust.unready_reason() == UNTRUSTED
            configuration = {"metadata": {}, "webhooks": [TRUSTED]}
            async with asyncio.timeout(60):
                await looking
            assert trust.unready_reason() is None
            await client.close()

    asyncio.run(told())
