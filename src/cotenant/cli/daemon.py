# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The commands for the daemon of one machine: up, down and status."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cotenant.cli.options import age_option, complete_policies, complete_queues, finite, output_option, size_option
from cotenant.cli.output import emit
from cotenant.cli.request import length
from cotenant.client.addresses import own_socket, state_folder, system_socket
from cotenant.client.client import TIMEOUT_S, Client
from cotenant.client.problems import NoDaemonError
from cotenant.core.isolation import Fallback, Rung
from cotenant.errors import CotenantError, InputError
from cotenant.local.state_folder import SYSTEM_STATE, make_state_folder
from cotenant.node.devices.vendors import REAL_NAMES, Vendor
from cotenant.wire.machine import WebLink
from cotenant.wire.pruning import PruneRequest
from cotenant.wire.text import counted

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

    from cotenant.local.isolation import IsolationSettings
    from cotenant.local.pages import MakePages

LARGEST_LOG = 8 * 1024 * 1024
"""bytes; a larger log is renamed to daemon.log.1 when a daemon starts"""
STARTED_WITHIN_S = 30.0
LOG_TAIL = 4096
"""bytes at the end of the log in which the reason of a failed start is looked for"""
STATUS_COLUMNS = (
    ("PID", lambda one: str(one["pid"]), False),
    ("POLICY", lambda one: one["policy"], False),
    ("DEVICES", lambda one: f"{one['gpus']} {one['devices']}", False),
    ("RUNNING", lambda one: str(one["running"]), False),
    ("QUEUED", lambda one: str(one["queued"]), False),
    ("NOTE", lambda one: one["notice"], False),
)


def gpu_isolation(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Rung]:
    """Converts `0=mps` and `GPU-…=none`."""
    found = {}
    for text in texts:
        gpu, equals, rung = text.rpartition("=")
        if not (gpu and equals and rung in tuple(Rung)):
            expected = f"GPU=ISOLATION with an index or UUID and one of {', '.join(Rung)}, for example 0=mps"
            raise InputError(f"--gpu-isolation {text[:80]}: expected {expected}")
        found[gpu] = Rung(rung)
    return found


UP_EPILOG = """\b
Examples:
  cotenant up --detach
  cotenant up --simulate 2 --policy binpack
  cotenant up --detach --web 8600
  cotenant up --isolation-fallback next --gpu-isolation 0=mps
  cotenant up --system --admin-group gpu-admins
"""


@click.command(epilog=UP_EPILOG)
@click.option("--detach", is_flag=True, help="Run in the background; return when the daemon answers.")
@click.option(
    "--system",
    is_flag=True,
    help="Serve all users of this machine (needs root): jobs run as their owners. Default: serve only you.",
)
@click.option(
    "--admin-group",
    metavar="GROUP",
    help="With --system: group whose members are administrators. Default: cotenant-admin if it exists; root always is.",
)
@click.option(
    "--vendor",
    type=click.Choice(REAL_NAMES),
    help="Use the GPUs of this vendor. Default: the first vendor whose driver lists a GPU.",
)
@click.option(
    "--simulate",
    type=click.IntRange(1, 64),
    help="Simulate this number of GPUs on CPU cores. Default: real GPUs, else 2 simulated ones.",
)
@click.option("--gpu-memory", metavar="4GiB", help="Memory of each simulated GPU. Default: a part of the free memory.")
@click.option(
    "--policy",
    default="least-loaded",
    show_default=True,
    shell_complete=complete_policies,
    help="Placement policy: which GPU a job gets (least-loaded, binpack, cotenant, …).",
)
@click.option(
    "--queue",
    default="fifo",
    show_default=True,
    shell_complete=complete_queues,
    help="Queue order among jobs of equal priority (fifo, fair, sjf, …).",
)
@click.option(
    "--cpus",
    type=click.FloatRange(0.01, 100_000),
    callback=finite,
    metavar="30",
    help="CPUs that jobs may request together with --cpus. Default: all of the machine.",
)
@click.option(
    "--host-memory",
    metavar="200GiB",
    help="Memory of the machine that jobs may request together with --host-memory. Default: all of it.",
)
@click.option(
    "--accounts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the weights and limits of users and groups. Default: equal weights, no limits.",
)
@click.option(
    "--backfill/--no-backfill",
    default=True,
    show_default="on",
    help="Reserve GPUs for the first job in the queue; later jobs start only if they do not delay it.",
)
@click.option(
    "--probe",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Duration of each measurement while batch sizes are tuned.",
)
@click.option(
    "--look",
    type=click.FloatRange(1, 3600),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that new neighbours run together before their measured speeds count.",
)
@click.option(
    "--listen", metavar="PORT|HOST:PORT", help="Also listen on TCP; needs --token-file. Default: the unix socket only."
)
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the token that TCP clients must send.")
@click.option("--web", metavar="PORT", help="Serve the pages on 127.0.0.1 at this port. Default: no pages.")
@click.option(
    "--reports",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder whose reports of the simulator the pages list.",
)
@click.option("--tls", is_flag=True, help="Encrypt TCP with a certificate made here; its fingerprint is printed.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Encrypt TCP with this certificate (PEM).")
@click.option("--tls-key", type=click.Path(path_type=Path), help="File with the key of the certificate (PEM).")
@click.option(
    "--isolation",
    type=click.Choice([rung.value for rung in Rung]),
    help="What holds jobs on NVIDIA GPUs to their limits. Default: preload, or none if the vGPU library is not built.",
)
@click.option(
    "--isolation-fallback",
    type=click.Choice([one.value for one in Fallback]),
    default=Fallback.REFUSE.value,
    show_default=True,
    help="What becomes of a job whose isolation no GPU has: refuse it, or give it the next lower one.",
)
@click.option(
    "--gpu-isolation",
    multiple=True,
    metavar="GPU=ISOLATION",
    callback=gpu_isolation,
    help="Reserve a GPU, by index or UUID, for jobs with one isolation; repeatable.",
)
@click.option(
    "--decisions/--no-decisions",
    default=True,
    show_default="on",
    help="Record decisions, for `cotenant decisions` and to replay them.",
)
@click.option(
    "--idle-after",
    default="30m",
    show_default=True,
    metavar="TIME",
    callback=length,
    help="Time without use of its GPU after which a job is reported as idle.",
)
@click.option(
    "--idle-action",
    type=click.Choice(["report", "requeue", "end"]),
    default="report",
    show_default=True,
    help="What becomes of an idle job: only an event, back to the queue, or its end.",
)
@age_option("--history", "Keep samples of GPUs and jobs for this long; 0s records none. Default: 1d.")
@age_option("--keep-for", "Every hour, remove the files of jobs that ended longer ago than this.")
@size_option("--keep-size", "Every hour, remove the oldest files of ended jobs beyond this size.")
def up(
    detach: bool,
    system: bool,
    admin_group: str | None,
    vendor: str | None,
    simulate: int | None,
    gpu_memory: str | None,
    policy: str,
    queue: str,
    cpus: float | None,
    host_memory: str | None,
    accounts: Path | None,
    backfill: bool,
    probe: float,
    look: float,
    listen: str | None,
    token_file: Path | None,
    web: str | None,
    reports: Path | None,
    tls: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    isolation: str | None,
    isolation_fallback: str,
    gpu_isolation: dict[str, Rung],
    decisions: bool,
    idle_after: float,
    idle_action: str,
    history: float | None,
    keep_for: float | None,
    keep_size: int | None,
) -> None:
    """Starts the daemon, which queues jobs and places them on the GPUs of this machine."""
    if token_file is not None and listen is None:
        raise InputError("--token-file needs --listen")
    if listen is not None and token_file is None and not system:
        raise InputError("--listen needs --token-file, or anyone could run programs here")
    if admin_group is not None and not system:
        raise InputError("--admin-group needs --system: a daemon without it has one user")
    if not system and simulate is None:
        refuse_second_daemon()
    state, address = (_system_state(), system_socket()) if system else (state_folder(), own_socket())
    running = status_of_daemon(address) if detach else None
    if detach and running is None:
        _detach(state, address)
        return
    from cotenant.history.store import DAY_S
    from cotenant.local.daemon import run
    from cotenant.local.daemon_options import Options, check
    from cotenant.local.idle import IdleAction, IdleSettings
    from cotenant.local.system import SystemOptions

    options = Options(
        state=state,
        system=SystemOptions(admin_group) if system else None,
        vendor=None if vendor is None else Vendor(vendor),
        simulate=simulate,
        gpu_memory=gpu_memory,
        policy=policy,
        queue=queue,
        cpus=cpus,
        host_memory=host_memory,
        accounts=accounts,
        backfill=backfill,
        probe_s=probe,
        look_s=look,
        listen=listen,
        token_file=token_file,
        web=web,
        tls=tls,
        tls_cert=tls_cert,
        tls_key=tls_key,
        record_decisions=decisions,
        history_s=DAY_S if history is None else history,
        idle=IdleSettings(after_s=idle_after, action=IdleAction(idle_action)),
        keep=PruneRequest(older_than_s=keep_for, keep_bytes=keep_size),
        isolation=_isolation(isolation, isolation_fallback, gpu_isolation),
    )
    if running is None:
        run(options, None if web is None else _pages(reports))
        return
    check(options)
    _print_already_up(running)
    _warn_of_options()


def _isolation(default: str | None, fallback: str, gpus: "Mapping[str, Rung]") -> "IsolationSettings":
    from cotenant.local.isolation import IsolationSettings

    return IsolationSettings(default=None if default is None else Rung(default), fallback=Fallback(fallback), gpus=gpus)


def _warn_of_options() -> None:
    """Says that a daemon that runs already keeps the options with which it was started."""
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given != ["detach"]:
        click.echo("the options of this command have no effect on it; `cotenant down --wait` stops it first", err=True)


def _pages(reports: Path | None) -> "MakePages":
    from cotenant.web.serving import local_pages

    return local_pages(reports)


def _system_state() -> Path:
    named = os.environ.get("COTENANT_STATE")
    return Path(named) if named else SYSTEM_STATE


def refuse_second_daemon() -> None:
    """InputError if a daemon for all users has the GPUs of this machine: two would place jobs on the same GPU."""
    if system_socket().exists() and (found := status_of_daemon(system_socket())) is not None:
        raise InputError(
            f"the GPUs of this machine belong to the daemon for all users (pid {found['pid']}): `cotenant submit` uses "
            "it, without any option; for a daemon of your own with simulated GPUs, run `cotenant up --simulate 2`"
        )


def status_of_daemon(address: Path, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
    """What the daemon at this socket says of itself; None: none answers."""
    try:
        return Client(at=address, timeout_s=timeout_s).get("/v1/status", dict[str, Any])
    except NoDaemonError:
        return None


def _print_already_up(status: dict[str, Any]) -> None:
    click.echo(f"cotenant is already up (pid {status['pid']}): {status['notice']}")


def _detach(state: Path, address: Path) -> None:
    """Starts the same command without --detach in its own session, and waits until it answers."""
    import subprocess  # `status` and `down` start sooner without it

    make_state_folder(state)
    if not os.access(state, os.W_OK | os.X_OK):
        raise InputError(f"{state}: the state folder is not writable; set COTENANT_STATE to another folder")
    words = [word for word in sys.argv[1:] if word != "--detach"]
    log = str(state / "daemon.log")
    if os.path.exists(log) and os.path.getsize(log) > LARGEST_LOG:
        os.replace(log, f"{log}.1")
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        # Not os.posix_spawn: an interpreter that was built for an old glibc, as those of uv are, has no `setsid` there.
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "cotenant", *words],  # -P: no module is imported from the current folder
            env={**os.environ, "COTENANT_STATE": str(state.resolve())},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    finally:
        os.close(written)
    try:
        _await_answer(child, state, address, words)
    finally:
        child.returncode = child.returncode or 0  # it runs on; otherwise Popen would warn about that at the end


def _await_answer(child: "subprocess.Popen[bytes]", state: Path, address: Path, words: "Sequence[str]") -> None:
    """Waits until a daemon answers, the child or another one that was faster, and prints its address."""
    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline:
        ended = child.poll() is not None
        answer = status_of_daemon(address)
        if ended and answer is not None:  # another `up` was faster
            _print_already_up(answer)
            return
        if ended:
            raise _not_started(state / "daemon.log", child.returncode)
        if answer is not None and answer["pid"] == child.pid:
            click.echo(f"cotenant is up (pid {child.pid}): {answer['notice']}")
            for note in answer["notes"]:
                if "fingerprint" in note:
                    click.echo(note)
            if "--web" in " ".join(words):
                click.echo(f"pages: {Client(at=address).post('/v1/web', WebLink).url}")
            return
        time.sleep(0.05)
    raise CotenantError(f"the daemon did not answer within {STARTED_WITHIN_S:.0f} s; see {state / 'daemon.log'}")


def _not_started(log: Path, code: int) -> CotenantError:
    """The last line of the daemon's log as an error with its exit code."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL))
        last = file.read().decode(errors="replace").strip().splitlines()[-1:]
    error = CotenantError(f"the daemon did not start: {' '.join(last).removeprefix('cotenant: ')}")
    error.exit_code = max(CotenantError.exit_code, code)
    return error


@click.command(epilog="\b\nExample:\n  cotenant down --wait\n")
@click.option("--wait", is_flag=True, help="Return only when the daemon has stopped.")
def down(wait: bool) -> None:
    """Stops the daemon. Running jobs continue, and `cotenant up` takes them over again."""
    status = Client().post("/v1/shutdown", dict[str, Any])
    while wait and Path(f"/proc/{status['pid']}").exists():
        time.sleep(0.05)
    running, queued = counted(status["running"], "running job"), counted(status["queued"], "queued job")
    click.echo(f"the daemon stops; {running} will continue, {queued} will stay in the queue")


@click.command(epilog="\b\nExample:\n  cotenant status -o json\n")
@output_option
def status(output: str) -> None:
    """Shows the state of the daemon: GPUs, policy, number of running and queued jobs."""
    emit(Client().get("/v1/status", dict[str, Any]), output, STATUS_COLUMNS)
