# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The sockets of a daemon, and the servers that answer on them while its engine runs."""

import asyncio
import gc
import os
import resource
import signal
import socket
import traceback
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, NoReturn

import uvicorn
from starlette.types import ASGIApp

from cotenant.errors import CotenantError
from cotenant.local.api import application
from cotenant.local.daemon_options import Options, token_in
from cotenant.local.engine import Engine
from cotenant.local.events import log_error
from cotenant.local.identity import Callers, PeerProtocol
from cotenant.local.system import make_runtime_folder, open_system_socket
from cotenant.local.tls import Certificate
from cotenant.local.tokens import TokenAccess
from cotenant.node.connections import accept_encrypted, drop_slow_heads, is_loopback, shed_connections

MOST_FILES = 65_536
"""open files that the daemon allows itself, if the system permits that many; a quarter of them may be connections"""
SHED_EVERY_S = 1.0
"""between two checks of the number of connections"""
HEAD_S = 20.0
"""seconds within which a connection must send a complete request head"""


def open_sockets(options: Options, stack: ExitStack) -> Iterable[socket.socket]:
    """The unix socket, for its owner only or for all users; and the TCP socket, if one is requested. `stack` closes
    them."""
    if options.system is not None:
        make_runtime_folder()
        yield open_system_socket(stack)
    else:
        path = options.state / "cotenant.sock"
        path.unlink(missing_ok=True)
        local = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        os.fchmod(local.fileno(), 0o600)  # bind() makes the file with this mode, so others can never connect
        local.bind(str(path))
        yield local
    if options.listen is not None:
        host, _, port = options.listen.rpartition(":")
        tcp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tcp.bind((host or "127.0.0.1", int(port)))
            tcp.listen()  # a second process may bind to the same port, but not listen on it
        except OSError as error:
            raise CotenantError(f"--listen {options.listen}: {error.strerror}") from None
        yield tcp


async def serve(
    engine: Engine,
    options: Options,
    sockets: Sequence[socket.socket],
    certificate: Certificate | None,
    callers: Callers,
    browsers: socket.socket | None = None,
) -> None:
    """Serves and schedules until the engine is asked to stop, or a part of the daemon fails."""
    asyncio.get_running_loop().set_exception_handler(_log_fault)
    most = _raise_file_limit() // 4
    engine.recover()
    # Most objects of now stay: if the garbage collector scanned thousands of jobs again, a pass would take longer.
    gc.collect()
    gc.freeze()
    token = None if options.token_file is None else token_in(options.token_file)
    by_token = TokenAccess(engine.tokens, callers, token).identify
    servers = [
        _server(application(engine, callers.of_connection if bound.family == socket.AF_UNIX else by_token))
        for bound in sockets
    ]
    _announce(engine, options, sockets, certificate)
    serving, limiting = [], list[asyncio.Task[NoReturn]]()
    for server, bound in zip(servers, sockets, strict=True):
        if bound.family != socket.AF_UNIX and certificate is not None:
            serving.append(asyncio.create_task(server.serve(sockets=[])))
            limiting.append(asyncio.create_task(accept_encrypted(server, bound, certificate.context())))
        else:
            serving.append(asyncio.create_task(server.serve(sockets=[bound])))
    if browsers is not None and engine.pages is not None:
        host, port = browsers.getsockname()
        print(f"cotenant: pages at http://{host}:{port}; `cotenant web` prints a link that signs in", flush=True)
        servers.append(_server(engine.pages.app))
        serving.append(asyncio.create_task(servers[-1].serve(sockets=[browsers])))
    limiting += [asyncio.create_task(drop_slow_heads(server, HEAD_S)) for server in servers]
    limiting += [asyncio.create_task(shed_connections(server, most, SHED_EVERY_S)) for server in servers]
    scheduling = asyncio.create_task(engine.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, engine.ask_to_stop)
    if options.accounts is not None or options.system is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload_accounts, engine)
    await asyncio.wait([*serving, *limiting, scheduling], return_when=asyncio.FIRST_COMPLETED)
    # A daemon that accepts no connections any more would look healthy, so it stops with the error.
    ended = [task for task in (*serving, *limiting) if task.done()]
    engine.ask_to_stop()
    for limit in limiting:
        limit.cancel()
    for server in servers:
        server.should_exit = True
    await asyncio.wait([*serving, scheduling], timeout=5)
    for task in (*ended, scheduling):
        task.result()


def _announce(
    engine: Engine, options: Options, sockets: Sequence[socket.socket], certificate: Certificate | None
) -> None:
    """Print what the daemon serves and where; warn if tokens can be read on their way."""
    if options.listen is not None and certificate is None and not _is_local(options.listen):
        log_error(
            f"warning: --listen {options.listen} is not encrypted: anyone on the way to this machine can read the "
            "token and run programs here; add --tls, or listen on 127.0.0.1 and use an SSH tunnel"
        )
    print(f"cotenant: {engine.queries.status()['notice']}; state in {options.state}", flush=True)
    for bound in (bound for bound in sockets if bound.family != socket.AF_UNIX):
        host, port = bound.getsockname()
        url = f"{'http' if certificate is None else 'https'}://{host}:{port}"
        print(f"cotenant: listens on TCP, too, at {url}", flush=True)
    if certificate is not None:
        engine.queries.notes.append(f"TCP is encrypted; fingerprint of the certificate: {certificate.fingerprint}")
        print(f"cotenant: {engine.queries.notes[-1]}", flush=True)


def _reload_accounts(engine: Engine) -> None:
    try:
        engine.reload_accounts()
    except CotenantError as error:
        log_error(f"the accounts stay as they are: {error}")


def _server(app: ASGIApp) -> uvicorn.Server:
    # Streams have no end, so a server that stops does not wait for it.
    config = uvicorn.Config(app, http=PeerProtocol, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    # uvicorn's own signal handlers would end the process before the engine has stopped.
    server.capture_signals = nullcontext  # type: ignore[assignment, method-assign]
    return server


def _is_local(listen: str) -> bool:
    """Whether PORT or HOST:PORT can be reached from this machine only."""
    host = listen.rpartition(":")[0]
    return not host or is_loopback(host)


def _raise_file_limit() -> int:
    """Allows as many open files as the system permits (each job needs a descriptor); the new limit. Jobs keep the old
    one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most) if soft != resource.RLIM_INFINITY else MOST_FILES


def _log_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """One line per fault: without free file descriptors, asyncio reports each connection that it cannot accept."""
    error = context.get("exception")
    log_error(context["message"] if error is None else f"{context['message']}: {error!r}")
    if error is not None and not isinstance(error, OSError):
        traceback.print_exception(error)
