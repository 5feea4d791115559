# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler as a process of its own, beside an API server that can fail."""

import asyncio
import json
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

LONGEST_S = 40.0


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
    env: Mapping[str, str] | None = None,
    log: IO[bytes] | int = PIPE,
    longest_s: float | None = LONGEST_S,
) -> AsyncIterator[Process]:
    """`cotenant kube scheduler` with these options, killed at the end of the block if it still runs."""
    command = (sys.executable, "-m", "cotenant", "kube", "scheduler", *map(str, words))
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=log, env=env)
    try:
        async with asyncio.timeout(longest_s):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])
