# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube web` as a process: its options, and its end while pages are open."""

import asyncio
import signal
from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.web.kube.process import WebOptions, check
from tests.kube.http import ask, connect
from tests.kube.process import ANY_PORT, a_process, kubeconfig, ports_of, until_listening
from tests.web.kube.world import ADMIN, shared_cluster

pytestmark = pytest.mark.slow


def test_tokens_are_not_sent_in_clear(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must not be sent in clear"):
        check(WebOptions(listen=("0.0.0.0", 8443)))
    with pytest.raises(InputError, match="give both or neither"):
        check(WebOptions(listen=("127.0.0.1", 0), certificate=tmp_path / "tls.crt"))
    check(WebOptions(listen=("127.0.0.1", 0)))


def test_a_process_with_an_open_page_ends_at_once_and_without_complaint(tmp_path: Path) -> None:
    cluster = shared_cluster()
    cluster.users[""] = "pages"  # without TLS no token is sent

    async def story() -> None:
        async with cluster.serving():
            words = ("--listen", ANY_PORT, "--kubeconfig", kubeconfig(tmp_path, cluster.port))
            async with a_process(*words, program="web") as process:
                (port,) = await ports_of(process)
                await until_listening(port)
                while (await ask(port, "GET", "/readyz")).status != 200:
                    await asyncio.sleep(0.05)
                reader, writer = await connect(port)
                head = f"GET /live/overview/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}\r\n\r\n"
                writer.write(head.encode())
                await reader.readuntil(b"train")
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(8):  # less than the grace for running requests
                    _, complaints = await process.communicate()
                assert (process.returncode, complaints) == (0, b"")
                assert (await reader.read()).endswith(b"0\r\n\r\n")  # the response was completed
                writer.transport.abort()

    asyncio.run(story())
