# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon: one process that owns the journal, schedules, and serves the API. It may be killed at any moment."""

import asyncio
import gc
import hashlib
import json
import os
import resource
import signal
import socket
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import uvicorn
from starlette.types import ASGIApp

from cotenant.core.placement.policies import QUEUES, build_policy
from cotenant.core.tuning.episode import Tuning
from cotenant.core.units import MiB, MilliCpu, Seconds, parse_memory
from cotenant.errors import CotenantError, InputError
from cotenant.history.decisions import DecisionRecorder, begin_line
from cotenant.history.segments import FolderSegments, SegmentError
from cotenant.history.store import DAY_S, History, HistoryError, Limits
from cotenant.local.account_settings import NO_RULES, AccountRules, read_accounts
from cotenant.local.api import application
from cotenant.local.config import Resources, Settings
from cotenant.local.containers import find_runtime
from cotenant.local.devices import ORDER, HostAmounts
from cotenant.local.engine import Engine
from cotenant.local.events import log_error, stored_setting
from cotenant.local.identity import Callers, PeerProtocol
from cotenant.local.idle import IdleSettings
from cotenant.local.isolation import BY_DEFAULT, IsolationSettings, JobIsolation
from cotenant.local.job_slices import JobSlices, find_slices
from cotenant.local.journal import Journal
from cotenant.local.lifecycle import ACTIVE
from cotenant.local.pages import MakePages, address_of, open_socket
from cotenant.local.state_folder import make_state_folder
from cotenant.local.system import (
    SystemOptions,
    check_system,
    find_admin_group,
    make_runtime_folder,
    open_system_socket,
)
from cotenant.local.tls import Certificate, find_certificate, read_certificate
from cotenant.local.tokens import TokenAccess
from cotenant.node.connections import accept_encrypted, drop_slow_heads, is_loopback, shed_connections
from cotenant.node.containment import find_containment
from cotenant.node.devices.backend import Backend, KnownGpu
from cotenant.node.devices.finding import find_backend
from cotenant.node.devices.nvml import NvmlBackend
from cotenant.node.devices.vendors import REAL, Vendor
from cotenant.node.host_memory import find_host_memory, host_memory
from cotenant.node.launch import Paths
from cotenant.node.measurement import OBSERVE_S
from cotenant.node.partitions import find_partitions
from cotenant.node.shares import find_shares
from cotenant.wire.local import KEEP_ALL, PruneRequest, host_memory_of
from cotenant.wire.recording import Begin

MOST_SOCKET_PATH = 100
"""bytes; Linux allows 107"""
SHORTEST_TOKEN = 16
MOST_FILES = 65_536
"""open files that the daemon allows itself, if the system permits that many; a quarter of them may be connections"""
HEAD_S = 20.0
"""seconds within which a connection must send a complete request head"""
SHED_EVERY_S = 1.0
"""between two checks of the number of connections"""
HISTORY, DECISIONS = "history.db", "decisions"
"""names in the state folder"""
DEVICES = "devices"
"""the journal's key for the vendor of the GPUs"""
SIMULATED = "simulated"
"""the journal's key for the memory of simulated GPUs, by their number"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command-line options of the daemon."""

    state: Path
    """journal, logs, sockets"""
    vendor: Vendor | None = None
    """whose GPUs are used; None: those of the first vendor in the table whose driver answers"""
    simulate: int | None = None
    gpu_memory: str | None = None
    policy: str = "least-loaded"
    queue: str = "fifo"
    cpus: float | None = None
    """that jobs may request together; None: all of the machine"""
    host_memory: str | None = None
    """the same, memory of the host"""
    backfill: bool = True
    accounts: Path | None = None
    """file with weights and limits of users and groups"""
    probe_s: float = 1.0
    """seconds that each trial of batch sizes is measured"""
    look_s: float = OBSERVE_S
    """seconds that tenants are measured together before their speeds are believed"""
    listen: str | None = None
    """PORT or HOST:PORT to serve besides the unix socket; the default host is 127.0.0.1"""
    token_file: Path | None = None
    tls: bool = False
    """serve TCP with a certificate of our own, made at the first start"""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    idle: IdleSettings = IdleSettings()  # noqa: RUF009 -- frozen
    """when a job is idle, and what becomes of it"""
    keep: PruneRequest = KEEP_ALL
    """which folders of ended jobs are removed every hour"""
    web: str | None = None
    """PORT or HOST:PORT of the pages; None: none are served"""
    history_s: float = DAY_S
    """seconds for which samples of GPUs and tenants are kept; 0: none are recorded"""
    record_decisions: bool = True
    """whether decisions are recorded, to download and replay them"""
    isolation: IsolationSettings = BY_DEFAULT
    """what holds jobs on NVIDIA GPUs to their limits"""
    system: SystemOptions | None = None
    """for a daemon for all users; None: it serves the user who started it"""


def run(options: Options, pages: MakePages | None = None) -> None:
    """Runs until it is stopped by SIGTERM, SIGINT or `cotenant down`."""
    check(options)
    with ExitStack() as stack:
        journal = stack.enter_context(Journal.open(options.state / "journal.db"))
        # Before anything is started: openssl may be missing, and a port may be in use.
        certificate = find_certificate(options.state, options.tls, options.tls_cert, options.tls_key)
        sockets = list(open_sockets(options, stack))
        browsers = None if options.web is None else open_socket(options.web, stack)
        backend = _backend(options, journal)
        stack.callback(backend.close)
        notes: list[str] = []
        owner = hashlib.sha256(str(options.state.resolve()).encode()).hexdigest()[:8]
        count = len(backend.machine().gpus) if backend.vendor is Vendor.SIMULATED else 0
        runtime = None if options.system is None else make_runtime_folder()
        sockets_in = runtime or options.state
        engines = {gpu: sockets_in / f"engine-{gpu}.sock" for gpu in range(count)}
        slices = find_slices(owner) if backend.vendor.row.preload else None
        containment = find_containment(owner)
        resources = Resources(
            state=options.state,
            journal=journal,
            backend=backend,
            paths=Paths(agent=sockets_in / "agent.sock", compute_locks=engines, shared=runtime is not None),
            runtime=runtime,
            shares=find_shares(owner),
            containment=containment,
            host_memory=find_host_memory(owner, containment),
            containers=find_runtime(for_all_users=options.system is not None),
            slices=slices,
            isolation=_isolation(options, backend, slices),
            mig=backend.mig_layouts if isinstance(backend, NvmlBackend) else None,
            history=_history(options, stack, notes),
            decisions=_decisions(options, stack, notes),
        )
        callers = Callers(admin_group=None if options.system is None else find_admin_group(options.system.admin_group))
        settings = Settings(
            policy=options.policy,
            queue=options.queue,
            backfill=options.backfill,
            host=_host(options),
            accounts=_accounts(options),
            accounts_file=options.accounts,
            tuning=Tuning(probe=Seconds(options.probe_s)),
            observe=Seconds(options.look_s),
            idle=options.idle,
            is_administrator=lambda owner: callers.of_uid(owner.uid, owner.gid).administrator,
            keep=options.keep,
        )
        engine = Engine(resources, settings)
        engine.queries.notes += notes
        if browsers is not None and pages is not None:
            host, port = browsers.getsockname()
            engine.pages = pages(engine, options.state, f"http://{host}:{port}", callers)
        asyncio.run(serve(engine, options, sockets, certificate, callers, browsers))


def _accounts(options: Options) -> AccountRules:
    return NO_RULES if options.accounts is None else read_accounts(options.accounts)


def _host(options: Options) -> HostAmounts:
    """CPUs and memory of the machine that jobs may request together."""
    memory = host_memory() if options.host_memory is None else host_memory_of(options.host_memory)
    return HostAmounts(None if options.cpus is None else MilliCpu(round(1000 * options.cpus)), memory)


def _history(options: Options, stack: ExitStack, notes: list[str]) -> History | None:
    """The history of the last day. The daemon also works without it, and then a note says why."""
    if options.history_s == 0:
        return None
    try:
        limits = Limits(keep_s=options.history_s)
        return stack.enter_context(History.open(options.state / HISTORY, limits))
    except HistoryError as error:
        notes.append(f"no history is recorded: {error}")
        log_error(notes[-1])
        return None


def _decisions(options: Options, stack: ExitStack, notes: list[str]) -> DecisionRecorder | None:
    """Records decisions, unless that is turned off or impossible; then a note says why."""
    if not options.record_decisions:
        return None

    def begin() -> Begin:
        return begin_line(time.time(), "local", options.policy, options.queue, options.backfill)

    try:
        recorder = DecisionRecorder(FolderSegments(options.state / DECISIONS), begin, log_error)
    except SegmentError as error:
        notes.append(f"no decisions are recorded: {error}")
        log_error(notes[-1])
        return None
    stack.callback(recorder.close)
    return recorder


def _backend(options: Options, journal: Journal) -> Backend:
    """The GPUs. Simulated GPUs keep the memory size of the last start, because jobs may still run on them."""
    usual = {count: MiB(memory) for count, memory in stored_setting(journal, SIMULATED, dict[int, int], {}).items()}
    memory = None if options.gpu_memory is None else _memory(options.gpu_memory)
    backend = find_backend(options.simulate, memory, usual_memory=usual, vendor=options.vendor)
    before = next((vendor for vendor in REAL if vendor == journal.recall(DEVICES)), None)
    if backend.vendor is Vendor.SIMULATED and options.simulate is None and before is not None:
        backend.close()
        raise CotenantError(
            f"no {before.row.title} GPU was found, but the last daemon in this folder used some: repair the driver, "
            "or use simulated GPUs with --simulate"
        )
    if isinstance(backend, NvmlBackend) and journal.jobs(ACTIVE, 1, None):
        backend.keep_order(stored_setting(journal, ORDER, list[KnownGpu], []))
    if journal.recall(DEVICES) != backend.vendor:
        journal.remember(DEVICES, backend.vendor)
    if backend.vendor is Vendor.SIMULATED:
        gpus = backend.machine().gpus
        sizes = usual | {len(gpus): gpus[0].memory}
        if sizes != usual:
            journal.remember(SIMULATED, json.dumps(sizes))
    return backend


def _isolation(options: Options, backend: Backend, slices: JobSlices | None) -> JobIsolation | None:
    """The isolation ladder of NVIDIA GPUs."""
    settings = options.isolation
    if not isinstance(backend, NvmlBackend) or slices is None:
        if settings != BY_DEFAULT:
            raise InputError(f"--isolation: {backend.vendor.row.title} GPUs have no choice of isolation; NVIDIA's have")
        return None
    root = slices.root.parent / "mps"
    preload = slices.library is not None
    return JobIsolation(
        settings,
        backend.modes,
        backend.machine(),
        partitions=find_partitions(slices.owner, backend.memory_limits),
        preload=preload,
        root=root,
        owner=slices.owner,
        several_users=options.system is not None,
    )


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
    token = None if options.token_file is None else _token(options.token_file)
    by_token = TokenAccess(engine.tokens, callers, token).identify
    servers = [
        _server(application(engine, callers.of_connection if bound.family == socket.AF_UNIX else by_token))
        for bound in sockets
    ]
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


def check(options: Options) -> None:
    """Refuses options that no daemon could be started with."""
    if options.queue not in QUEUES:
        raise InputError(f"--queue {options.queue!r:.60}: unknown queue order; choose one of {', '.join(QUEUES)}")
    try:
        build_policy(options.policy, queue=options.queue)
    except ValueError as error:
        raise InputError(f"--policy: {error}") from None
    _accounts(options)
    _host(options)
    port = "0" if options.listen is None else options.listen.rpartition(":")[2]
    if not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise InputError(f"--listen {options.listen}: expected PORT or HOST:PORT")
    if options.system is not None:
        check_system(options.system, options.isolation)
    if options.listen is not None and options.token_file is None and options.system is None:
        raise InputError(f"--listen {options.listen}: needs --token-file, or anyone could run programs here")
    if options.token_file is not None:
        _token(options.token_file)
    if (options.tls or options.tls_cert is not None) and options.listen is None:
        raise InputError("--tls and --tls-cert need --listen: the unix socket is not encrypted")
    if (options.tls_cert is None) != (options.tls_key is None) or (options.tls and options.tls_cert is not None):
        raise InputError("give --tls alone, or --tls-cert and --tls-key together")
    if options.tls_cert is not None and options.tls_key is not None:
        read_certificate(options.tls_cert, options.tls_key)
    if options.web is not None:
        address_of(options.web)
    if options.gpu_memory is not None:
        _memory(options.gpu_memory)
    if len(str(options.state / "engine-00.sock").encode()) > MOST_SOCKET_PATH:
        raise InputError(f"{options.state}: this path is too long for a socket; set COTENANT_STATE to a shorter one")
    make_state_folder(options.state)


def _memory(text: str) -> MiB:
    try:
        return parse_memory(text)
    except ValueError as error:
        raise InputError(f"--gpu-memory: {error}") from None


def _token(path: Path) -> str:
    try:
        token = path.read_text().strip()
        readable_by_others = path.stat().st_mode & 0o077
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not plain text; a token must be") from None
    if len(token) < SHORTEST_TOKEN:
        raise InputError(f"{path}: a token needs at least {SHORTEST_TOKEN} characters")
    if readable_by_others:
        raise InputError(f"{path}: other users can read the token; run `chmod 600 {path}`")
    return token
