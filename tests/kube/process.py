# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler and the webhook as processes of their own, beside an API server that can fail."""

import asyncio
import json
import re
import ssl
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import trustme

from tests.kube.api_server import ApiServer

LONGEST_S = 180.0
ANY_PORT = "127.0.0.1:0"
"""the process chooses a free port itself and says which: no other process can take it in between"""


def kubeconfig(folder: Path, port: int) -> Path:
    found = folder / "kubeconfig"
    found.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    return found


@asynccontextmanager
async def a_process(
    *words: object,
    program: str = "scheduler",
    env: Mapping[str, str] | None = None,
    log: IO[bytes] | int = PIPE,
    longest_s: float | None = LONGEST_S,
) -> AsyncIterator[Process]:
    """`cotenant kube PROGRAM` with these options, killed at the end of the block if it still runs."""
    command = (sys.executable, "-m", "cotenant", "kube", program, *map(str, words))
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=log, env=env)
    try:
        async with asyncio.timeout(longest_s):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@dataclass(frozen=True, slots=True)
class Doors:
    """Where the processes of a scheduler and of a webhook are asked, and how they are doing."""

    extender: int
    webhook: int
    tls: ssl.SSLContext
    authority: Path
    log: Path
    """of both"""
    pids: tuple[int, ...]


def write_certificate(folder: Path) -> trustme.CA:
    """Makes a certificate, its key and that of its authority in a folder."""
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    leaf.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
    leaf.private_key_pem.write_to_path(str(folder / "tls.key"))
    return authority


@asynccontextmanager
async def a_ready_process(
    folder: Path, server: ApiServer, *more: str, hold_s: float, env: Mapping[str, str] | None = None
) -> AsyncIterator[Doors]:
    """Both processes, beside a server; they must be there at the end as well."""
    authority = write_certificate(folder)
    (folder / "settings.yaml").write_text(f"version: 1\nscheduler: {{hold-s: {hold_s}}}\n")
    tls = ssl.create_default_context()
    authority.configure_trust(tls)
    log = folder / "log"
    options = {
        "kubeconfig": kubeconfig(folder, server.port),
        "settings": folder / "settings.yaml",
        "extender": ANY_PORT,
    }
    with log.open("ab") as file:
        async with (
            a_process(*words_of(options), *more, env=env, log=file, longest_s=None) as process,
            a_webhook(folder, env=env, log=file) as (other, webhook),
        ):
            assert process.stdout is not None
            (extender,) = await ports_of(process)
            while b"is ready" not in (line := await process.stdout.readline()):
                assert line, log.read_text()
            yield Doors(extender, webhook, tls, folder / "ca.crt", log, (process.pid, other.pid))
            assert (process.returncode, other.returncode) == (None, None), log.read_text()


def words_of(options: Mapping[str, object]) -> list[object]:
    """As on a command line."""
    return [word for name, value in options.items() for word in (f"--{name}", value)]


@asynccontextmanager
async def a_webhook(
    folder: Path, *, env: Mapping[str, str] | None = None, log: IO[bytes] | int = PIPE
) -> AsyncIterator[tuple[Process, int]]:
    """The webhook's process, which has the certificate and the settings in this folder, and the port where it
    listens."""
    options = {
        "settings": folder / "settings.yaml",
        "listen": ANY_PORT,
        "certificate": folder / "tls.crt",
        "key": folder / "tls.key",
    }
    async with a_process(*words_of(options), program="webhook", env=env, log=log, longest_s=None) as process:
        (port,) = await ports_of(process)
        await until_listening(port)
        yield process, port


async def ports_of(process: Process) -> list[int]:
    """Where a process listens, as its first line says."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert "listens at " in line, line
    return [int(port) for port in re.findall(r"https?://127\.0\.0\.1:(\d+)", line)]


async def until_listening(port: int) -> None:
    while not await is_listening(port):
        await asyncio.sleep(0.01)


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.transport.abort()
    return True
