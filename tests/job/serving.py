# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Servers and processes for tests: a scripted agent, and the real servers in a thread or a process of their own."""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from cotenant.node.sockets import listen

SOON = 30.0
"""seconds; generous, for a busy machine: nothing waits for it unless it fails"""


def until(condition: Callable[[], bool], seconds: float = SOON) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class ScriptedAgent:
    """An agent that a test plays itself, message by message."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.listener = listen(self.path)
        self.connection: socket.socket | None = None

    def accept(self) -> None:
        select.select([self.listener], [], [], SOON)
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(SOON)

    def read(self) -> dict[str, Any]:
        assert self.connection is not None
        message: dict[str, Any] = json.loads(self.connection.recv(5000))
        return message

    def say(self, message: bytes | dict[str, object]) -> None:
        assert self.connection is not None
        self.connection.send(message if isinstance(message, bytes) else json.dumps(message).encode())

    def die(self) -> None:
        self.listener.close()
        Path(self.path).unlink()
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Server(Protocol):
    """What the agent and the engine have in common."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...


@contextlib.contextmanager
def running(server: Server) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Serve in a thread; yields a way to call something there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(SOON)

        async def call(function: Callable[[], object]) -> None:
            function()

        yield lambda function: asyncio.run_coroutine_threadsafe(call(function), loop).result(SOON)
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(SOON)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SOON)
        loop.close()


@contextlib.contextmanager
def process(code: str, *args: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Python code in a process of its own; neither it nor its children outlive the block."""
    child = subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate(timeout=SOON)


def line_of(child: subprocess.Popen[str]) -> str:
    """The next line it prints."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        assert child.stderr is not None
        raise AssertionError(f"it ended: {child.stderr.read()}")
    return line.strip()


SERVE = """
import asyncio, sys
from cotenant.node.agent import AgentServer
from cotenant.node.compute_lock import ComputeLockServer

async def main():
    tell = lambda event: print(type(event).__name__, flush=True)
    agent = AgentServer(sys.argv[1], job_of=lambda pid: "j-1", sink=tell)
    engine = ComputeLockServer(sys.argv[2])
    await engine.start()
    await agent.start()
    print("serving", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
"""arguments: the agent's socket and the engine's"""
