# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The options of a daemon, and whether one can be started with them."""

from dataclasses import dataclass
from pathlib import Path

from cotenant.core.placement.policies import QUEUES, build_policy
from cotenant.core.units import MiB, MilliCpu, parse_memory
from cotenant.errors import InputError
from cotenant.history.store import DAY_S
from cotenant.local.account_settings import NO_RULES, AccountRules, read_accounts
from cotenant.local.devices import HostAmounts
from cotenant.local.idle import IdleSettings
from cotenant.local.isolation import BY_DEFAULT, IsolationSettings
from cotenant.local.pages import address_of
from cotenant.local.state_folder import make_state_folder
from cotenant.local.system import SystemOptions, check_system
from cotenant.local.tls import read_certificate
from cotenant.node.devices.vendors import Vendor
from cotenant.node.host_memory import host_memory
from cotenant.node.measurement import OBSERVE_S
from cotenant.wire.job_demands import host_memory_of
from cotenant.wire.pruning import KEEP_ALL, PruneRequest

SHORTEST_TOKEN = 16
MOST_SOCKET_PATH = 100
"""bytes; Linux allows 107"""


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


def check(options: Options) -> None:
    """Refuses options that no daemon could be started with."""
    if options.queue not in QUEUES:
        raise InputError(f"--queue {options.queue!r:.60}: unknown queue order; choose one of {', '.join(QUEUES)}")
    try:
        build_policy(options.policy, queue=options.queue)
    except ValueError as error:
        raise InputError(f"--policy: {error}") from None
    accounts_of(options)
    host_of(options)
    port = "0" if options.listen is None else options.listen.rpartition(":")[2]
    if not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise InputError(f"--listen {options.listen}: expected PORT or HOST:PORT")
    if options.system is not None:
        check_system(options.system, options.isolation)
    if options.listen is not None and options.token_file is None and options.system is None:
        raise InputError(f"--listen {options.listen}: needs --token-file, or anyone could run programs here")
    if options.token_file is not None:
        token_in(options.token_file)
    if (options.tls or options.tls_cert is not None) and options.listen is None:
        raise InputError("--tls and --tls-cert need --listen: the unix socket is not encrypted")
    if (options.tls_cert is None) != (options.tls_key is None) or (options.tls and options.tls_cert is not None):
        raise InputError("give --tls alone, or --tls-cert and --tls-key together")
    if options.tls_cert is not None and options.tls_key is not None:
        read_certificate(options.tls_cert, options.tls_key)
    if options.web is not None:
        address_of(options.web)
    if options.gpu_memory is not None:
        gpu_memory_of(options.gpu_memory)
    if len(str(options.state / "engine-00.sock").encode()) > MOST_SOCKET_PATH:
        raise InputError(f"{options.state}: this path is too long for a socket; set COTENANT_STATE to a shorter one")
    make_state_folder(options.state)


def accounts_of(options: Options) -> AccountRules:
    return NO_RULES if options.accounts is None else read_accounts(options.accounts)


def host_of(options: Options) -> HostAmounts:
    """CPUs and memory of the machine that jobs may request together."""
    memory = host_memory() if options.host_memory is None else host_memory_of(options.host_memory)
    return HostAmounts(None if options.cpus is None else MilliCpu(round(1000 * options.cpus)), memory)


def gpu_memory_of(text: str) -> MiB:
    try:
        return parse_memory(text)
    except ValueError as error:
        raise InputError(f"--gpu-memory: {error}") from None


def token_in(path: Path) -> str:
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
