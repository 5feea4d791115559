# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon: one process that owns the journal, schedules, and serves the API. It may be killed at any moment."""

import asyncio
import hashlib
import json
import time
from contextlib import ExitStack

from cotenant.core.tuning.episode import Tuning
from cotenant.core.units import MiB, Seconds
from cotenant.errors import CotenantError, InputError
from cotenant.history.decisions import DecisionRecorder, begin_line
from cotenant.history.segments import FolderSegments, SegmentError
from cotenant.history.store import History, HistoryError, Limits
from cotenant.local.config import Resources, Settings
from cotenant.local.containers import find_runtime
from cotenant.local.daemon_options import Options, accounts_of, check, gpu_memory_of, host_of
from cotenant.local.devices import ORDER
from cotenant.local.engine import Engine
from cotenant.local.events import log_error, stored_setting
from cotenant.local.identity import Callers
from cotenant.local.isolation import BY_DEFAULT, JobIsolation
from cotenant.local.job_slices import JobSlices, find_slices
from cotenant.local.journal import Journal
from cotenant.local.lifecycle import ACTIVE
from cotenant.local.pages import MakePages, open_socket
from cotenant.local.serving import open_sockets, serve
from cotenant.local.system import find_admin_group, make_runtime_folder
from cotenant.local.tls import find_certificate
from cotenant.node.containment import find_containment
from cotenant.node.devices.backend import Backend, KnownGpu
from cotenant.node.devices.finding import find_backend
from cotenant.node.devices.nvml import NvmlBackend
from cotenant.node.devices.vendors import REAL, Vendor
from cotenant.node.host_memory import find_host_memory
from cotenant.node.launch import Paths
from cotenant.node.partitions import find_partitions
from cotenant.node.shares import find_shares
from cotenant.wire.recording import Begin

HISTORY, DECISIONS = "history.db", "decisions"
"""names in the state folder"""
DEVICES = "devices"
"""the journal's key for the vendor of the GPUs"""
SIMULATED = "simulated"
"""the journal's key for the memory of simulated GPUs, by their number"""


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
            host=host_of(options),
            accounts=accounts_of(options),
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
    memory = None if options.gpu_memory is None else gpu_memory_of(options.gpu_memory)
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
