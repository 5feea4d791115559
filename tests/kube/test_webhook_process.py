# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The webhook's process: it needs no cluster, shows a renewed certificate, and answers a while after it was stopped."""

import asyncio
import os
import ssl
from pathlib import Path

import pytest
import trustme

from tests.kube.http import ask
from tests.kube.process import a_webhook
from tests.kube.reviews import response, review, written

pytestmark = pytest.mark.slow


def write_pair(folder: Path, authority: trustme.CA) -> bytes:
    """A new certificate and its key, put in place of those before; the certificate as the server sends it."""
    leaf = authority.issue_cert("localhost")
    for name, pem in (("tls.crt", leaf.cert_chain_pems[0]), ("tls.key", leaf.private_key_pem)):
        pem.write_to_path(str(folder / "new"))
        os.replace(folder / "new", folder / name)
    return ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())


async def shown(port: int, tls: ssl.SSLContext) -> bytes | None:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="localhost")
    found: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return found


def test_it_reviews_pods_without_a_cluster_and_renews_its_certificate_and_ends_late(tmp_path: Path) -> None:
    authority, tls = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(tls)
    first = write_pair(tmp_path, authority)
    (tmp_path / "settings.yaml").write_text("webhook: {allow-privileged: true}\n")
    nowhere = {name: value for name, value in os.environ.items() if "KUBE" not in name} | {"HOME": str(tmp_path)}

    async def told() -> None:
        async with asyncio.timeout(40), a_webhook(tmp_path, env=nowhere) as (process, port):
            made = written({"nvidia.com/gpumem": 500})
            made["spec"]["containers"][0]["securityContext"] = {"privileged": True}
            answer = await ask(port, "POST", "/mutate", review(made), tls=tls)
            assert response(answer.body)["allowed"]
            assert (await ask(port, "POST", "/mutate", b"nonsense", tls=tls)).status == 400
            assert (await ask(port, "POST", "/mutate", b" " * 9_000_000, tls=tls)).status == 413
            for path in ("why/team/a", "filter", "bind"):
                assert (await ask(port, "GET", f"/{path}", tls=tls)).status == 404
            assert await shown(port, tls) == first
            second = write_pair(tmp_path, authority)
            while await shown(port, tls) != second:
                await asyncio.sleep(0.05)
            process.terminate()
            for path in ("healthz", "readyz"):
                assert (await ask(port, "GET", f"/{path}", tls=tls)).status == 200  # reviews may be sent here yet
            assert await process.wait() == 0

    asyncio.run(told())
