# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler is not ready before the API server trusts the webhook, because no pod with GPUs could be created."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.names import SCHEDULER
from cotenant.kube.api.server import Listener, Reply, Route, application, json_reply, listen, status_reply
from cotenant.kube.scheduler.certificates import UNTRUSTED, WebhookTrust
from tests.kube.api_server import ApiServer
from tests.kube.control_plane import QUICK, until
from tests.kube.http import ask, serving
from tests.kube.process import ANY_PORT, a_process, kubeconfig, ports_of, words_of, write_certificate

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


def test_the_second_port_says_it_and_the_first_one_answers_kube_scheduler_all_the_same(tmp_path: Path) -> None:
    tls = ssl.create_default_context()
    write_certificate(tmp_path).configure_trust(tls)

    async def told() -> None:
        server = ApiServer()
        async with server.serving():
            options = {
                "kubeconfig": kubeconfig(tmp_path, server.port),
                "extender": ANY_PORT,
                "status": ANY_PORT,
                "certificate": tmp_path / "tls.crt",
                "key": tmp_path / "tls.key",
            }
            async with a_process(*words_of(options), "--await-webhook") as process:
                extender, status = await ports_of(process)
                assert process.stdout is not None
                while b"is ready" not in (line := await process.stdout.readline()):
                    assert line
                server.hooks.merge(SCHEDULER, {"webhooks": [HOOK]})
                answer = await ask(status, "GET", "/readyz", tls=tls)
                assert answer.status == 503
                assert b"webhook" in answer.body
                assert (await ask(extender, "GET", "/readyz")).status == 200
                server.hooks.merge(SCHEDULER, {"webhooks": [TRUSTED]})
                async with asyncio.timeout(60):
                    while (await ask(status, "GET", "/readyz", tls=tls)).status != 200:
                        await asyncio.sleep(0.05)

    asyncio.run(told())
