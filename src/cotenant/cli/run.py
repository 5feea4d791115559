# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant run`: runs a command on a slice of GPUs, without the daemon."""

import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.options import CommandOfWords, complete_files, output_option
from cotenant.cli.slices import chosen_gpu, driver, show_slices
from cotenant.core.units import MIB_BYTES, WHOLE_GPU, MilliGpu, parse_compute, parse_memory
from cotenant.errors import CotenantError, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from cotenant.node.limits import Limits


TALLY_EVERY_S = 1.0
RUN_EPILOG = """\b
Examples:
  cotenant run --memory 2GiB --compute 30% -- python train.py
  cotenant run --gpu 0 --memory 4GiB --host-memory 8GiB -- ./solver input
  cotenant run --priority low --summary -- python sweep.py
"""


def amount(_context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Converts `2GiB` into bytes."""
    if text is None:
        return None
    name = f"--{option.name}".replace("_", "-")
    if text.strip().isdecimal():
        raise InputError(f"{name} {text}: the unit is missing; expected for example 2GiB or 2048MiB")
    try:
        return parse_memory(text) * MIB_BYTES
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None


def share(_context: click.Context, _option: click.Parameter, text: str) -> MilliGpu:
    """Converts `30%` into thousandths of a GPU."""
    try:
        compute = parse_compute(text)
    except ValueError as error:
        raise InputError(f"--compute: {error}") from None
    if not 1 <= compute <= WHOLE_GPU:
        raise InputError(f"--compute {text}: expected 1% to 100%")
    return compute


@click.command(cls=CommandOfWords, epilog=RUN_EPILOG, context_settings={"allow_interspersed_args": False})
@click.option("--gpu", "gpus", multiple=True, metavar="UUID|INDEX", help="Use only this GPU; repeatable.")
@click.option("--memory", metavar="2GiB", callback=amount, help="Memory limit on each GPU. Default: no limit.")
@click.option("--host-memory", metavar="8GiB", callback=amount, help="Host memory for allocations beyond --memory.")
@click.option(
    "--compute", metavar="30%", default="100%", show_default=True, callback=share, help="Compute share of each GPU."
)
@click.option(
    "--policy",
    type=click.Choice(["conserving", "always", "never"]),
    default="conserving",
    show_default=True,
    help="When to enforce --compute: while other tenants use the GPU, always, or never.",
)
@click.option(
    "--priority",
    type=click.Choice(["high", "low"]),
    default="high",
    show_default=True,
    help="A low-priority slice pauses while a high-priority slice uses the same GPU.",
)
@click.option(
    "--overhead",
    type=click.Choice(["counted", "ignored"]),
    default="counted",
    show_default=True,
    help="Whether memory that the driver takes for contexts and modules counts against --memory.",
)
@click.option("--strict", is_flag=True, help="Also limit programs that are statically linked or clear LD_PRELOAD.")
@click.option("--summary", is_flag=True, help="Print the resource usage to standard error when the command has ended.")
@output_option
@click.argument("command", nargs=-1, required=True, shell_complete=complete_files)
def run(command: tuple[str, ...], strict: bool, summary: bool, output: str, **options: Any) -> None:
    """Runs a command in the foreground on a slice of GPUs, and exits with its exit code. The daemon is not needed."""
    from cotenant.node.limits import VARIABLE
    from cotenant.node.preload import NONE_BUILT, find_library, preload, stage, staged_library
    from cotenant.node.slices import LIMITS, REGION, hold_slice, make_slice, remove_unused_slices, slices_folder

    library = find_library()
    if library is None:
        raise CotenantError(f"the vGPU library is missing, {NONE_BUILT}")
    limits = _limits(**options)
    staged = stage(library)
    env = os.environ | {"LD_PRELOAD": preload(staged, os.environ.get("LD_PRELOAD"))}
    if options["gpus"]:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(limit.uuid for limit in limits.gpus)
    root = slices_folder()
    remove_unused_slices(root)
    is_root = os.geteuid() == 0  # its commands may change to other users, which must be able to read the slice
    name = f"run-{os.getpid()}-{secrets.token_hex(16 if is_root else 2)}"
    folder = make_slice(root, name, replace(limits, region=root / name / REGION), for_anyone=is_root)
    with hold_slice(folder) as lock:
        os.set_inheritable(lock, True)  # processes that outlive the command keep the slice alive
        env[VARIABLE] = str(folder / LIMITS)
        if strict:
            _preload_strictly(env, staged_library(staged), folder)
        code = _run(command, env, folder, output if summary else None)
    sys.exit(code)


def _run(command: Sequence[str], env: dict[str, str], folder: "Path", output: str | None) -> int:
    from cotenant.node.monitor import UsageHistory, slice_view
    from cotenant.node.priorities import POLL_S, PriorityPauser
    from cotenant.node.slices import read_slice

    pauser, history, sampled = PriorityPauser(folder.parent), UsageHistory(), time.monotonic()

    def tick() -> None:
        nonlocal sampled
        now = time.monotonic()
        pauser.step(now)
        if output is not None and now - sampled >= TALLY_EVERY_S:
            sampled, seen = now, read_slice(folder)
            if seen is not None and seen.region is not None:
                history.add(seen.region)

    try:
        code = run_in_foreground(command, env, tick=tick, every_s=POLL_S)
    finally:
        pauser.close()
    seen = read_slice(folder)
    if output is not None and seen is not None:
        with redirect_stdout(sys.stderr):  # standard output belongs to the command
            show_slices(slice_view(seen, history=history), output)
    return code


def _preload_strictly(env: dict[str, str], library: "Path", folder: "Path") -> None:
    """Puts our own libcuda.so.1 before the driver's on the library path."""
    from cotenant.node.strict import find_driver, make_front_end

    front = make_front_end(find_driver(env), library, folder / "strict")
    env["LD_LIBRARY_PATH"] = ":".join([str(front.parent), *filter(None, [env.get("LD_LIBRARY_PATH")])])


def _limits(
    *,
    gpus: tuple[str, ...],
    memory: int | None,
    host_memory: int | None,
    compute: MilliGpu,
    policy: str,
    priority: str,
    overhead: str,
) -> "Limits":
    """Builds the limits from the options and the GPUs of this machine."""
    from cotenant.node.limits import MOST_GPUS, ComputePolicy, GpuLimit, Limits, Priority

    if host_memory and memory is None:
        raise InputError("--host-memory needs --memory: it holds the allocations beyond that limit")
    limit = GpuLimit("", memory, compute, host_memory or 0)
    uuids = _uuids(gpus)
    return Limits(
        gpus=tuple(limit._replace(uuid=uuid) for uuid in uuids[:MOST_GPUS]),
        others=GpuLimit("", 0) if gpus else limit,
        policy=ComputePolicy(policy),
        priority=Priority(priority),
        overhead=overhead == "counted",
    )


def _uuids(gpus: tuple[str, ...]) -> list[str]:
    """UUIDs of the chosen GPUs, or of all GPUs; without a driver, UUIDs are not checked."""
    backend = driver()
    if backend is None:
        numbers = [gpu for gpu in gpus if gpu.isdecimal()]
        if numbers:
            raise InputError(f"--gpu {numbers[0]}: no NVIDIA driver answers, so a GPU must be given by its UUID")
        return list(dict.fromkeys(gpus))
    try:
        found = [gpu.uuid for gpu in backend.machine().gpus]
    finally:
        backend.close()
    return list(dict.fromkeys([chosen_gpu(gpu, found) for gpu in gpus] or found))


FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""reset to their defaults in the program, which must not inherit Python's setting"""
FROM_THE_KERNEL = 128
"""`si_code` of a signal that the kernel sent, such as Ctrl-C in a terminal (SI_KERNEL)"""


class NotStartedError(CotenantError):
    """The command was not found or cannot be executed."""


def run_in_foreground(argv: Sequence[str], env: Mapping[str, str], *, tick: Callable[[], None], every_s: float) -> int:
    """Runs the program and calls `tick` every `every_s` seconds until it ends; returns its exit code, or 128 +
    signal."""
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # if it were ignored, the kernel would discard the exit status of the child
    waited = {signal.SIGCHLD, *FORWARDED}
    # Signals are blocked and read with sigtimedwait, so none can arrive between two steps of the loop and be missed.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        child = _spawn(argv, env, before)
        due = time.monotonic() + every_s
        while True:
            caught = signal.sigtimedwait(waited, max(0.0, due - time.monotonic()))
            if caught is not None and caught.si_signo != signal.SIGCHLD and not _was_sent_to_program(caught):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, caught.si_signo)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if time.monotonic() >= due:
                tick()
                due = time.monotonic() + every_s
    finally:
        while signal.sigtimedwait(waited, 0) is not None:
            pass  # pending signals were meant for the program, which has ended
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _was_sent_to_program(caught: signal.struct_siginfo) -> bool:
    """Whether the kernel sent this signal to the program too. A terminal signals its whole foreground group, except
    that SIGHUP goes to the session leader alone."""
    only_us = caught.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()
    return caught.si_code == FROM_THE_KERNEL and not only_us


def _spawn(argv: Sequence[str], env: Mapping[str, str], mask: Iterable[int]) -> int:
    try:
        return os.posix_spawnp(argv[0], list(argv), env, setsigmask=mask, setsigdef=IGNORED_BY_PYTHON)
    except (OSError, ValueError) as error:
        failed = NotStartedError(f"{argv[0][:200]}: cannot be executed: {getattr(error, 'strerror', None) or error}")
        failed.exit_code = 127 if isinstance(error, FileNotFoundError) else 126
        raise failed from None
