# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The supervisor: one small process per run, which owns the job's process, its log, its limits and its exit record.

Because of it, a killed daemon loses nothing. It is run as `python -I -S supervisor.py JOBDIR`, and uses the standard
library and a few modules of ours, which use nothing else either. All of them are loaded before it claims a run, so an
upgrade of cotenant while a job runs changes nothing for it. The daemon's side is `attempts.py`; both use the formats of
`run_files.py`.

The supervisor has a parent, the keeper: if the supervisor is killed, the keeper inherits all processes of the run and
kills them, even those that left their session and cleared their environment. Until then it holds the lock.

Two causes of an end cannot be recognised. An allocation that RLIMIT_DATA refuses looks like an error of the program,
which exits or aborts as it likes. A kill by the kernel because the whole machine is out of memory looks like any
SIGKILL; the exit record then mentions it as a possibility.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

if __name__ == "__main__":  # run by its path: after the standard library, modules are found beside it
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from cotenant.local.job_process import clean_up, libc
from cotenant.local.processes import Tree, look_at
from cotenant.local.run_files import (
    VERSION,
    Refused,
    Spec,
    boot_id,
    open_lock,
    read_spec,
    record_exit,
    set_aside,
    take_lock,
    write_durably,
)
from cotenant.local.supervision import Supervision

PR_SET_CHILD_SUBREAPER = 36
SFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


def open_signals() -> int:
    """Blocks the signals that we handle; they are read from this descriptor, with the sender's pid."""
    numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    mask = ctypes.create_string_buffer(128)
    libc.sigemptyset(mask)
    for number in numbers:
        libc.sigaddset(mask, int(number))
    fd: int = libc.signalfd(-1, mask, SFD_NONBLOCK_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return fd


def claim(job_dir: str, lock: int | None, keeper: int | None) -> tuple[int, Spec, str] | None:
    """Lock, specification and token of a run to start now; None: it was started before, which is not an error."""
    spec = read_spec(f"{job_dir}/spec.json")
    try:
        lock = open_lock(job_dir) if lock is None else lock
        if not take_lock(job_dir, lock) or os.path.exists(f"{job_dir}/intent"):
            return None
        me, above = look_at(os.getpid()), None if keeper is None else look_at(keeper)
        token = os.urandom(16).hex()
        set_aside(f"{job_dir}/exit.tmp")
        intent = {"version": VERSION, "boot": boot_id(), "pid": os.getpid(), "start": me.start if me else 0}
        intent["obeys"] = ["orders"]  # SIGUSR1 would kill a supervisor of an earlier version
        kept_by = {} if above is None else {"keeper": keeper, "keeper_start": above.start}
        write_durably(f"{job_dir}/intent", {**intent, **kept_by, "token": token})
    except OSError as error:
        raise Refused(f"cannot start the job in {job_dir}: {error.strerror}") from error
    return lock, spec, token


def supervise(job_dir: str, answer: Callable[[str], object], lock: int | None = None, keeper: int | None = None) -> int:
    """Supervises a run to its end; `answer` gets an empty text once the intent is on disk, else the error."""
    signals = open_signals()  # before the intent is written, by which others find our pid and signal us
    try:
        claimed = claim(job_dir, lock, keeper)
    except Refused as refusal:
        answer(str(refusal))
        return 1
    answer("")
    if claimed is None:
        return 0
    lock, spec, token = claimed
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    job = Supervision(job_dir, spec, token, signals)
    try:
        if os.path.exists(f"{job_dir}/cancel"):
            job.cause = ("cancelled", "cancelled before it started")
        else:
            job.start(lock)
            job.run()
    except Exception as fault:  # noqa: BLE001 - the job must not outlive us, and its owner must learn of it
        job.cause = ("interrupted", f"the supervisor failed: {fault!r}")
    end = job.finish()
    if job.leader:
        clean_up(spec)
        job.kill_rest()
    record_exit(job_dir, end)
    if job.terminal is not None:
        job.terminal.close()
    return 0


def keep(job_dir: str, answer: Callable[[str], object], close: Callable[[], object]) -> int:
    """Runs the supervisor in a child, and kills every process of the run that outlives it.

    This process does nothing else, so only a job that looks for it can harm it: then its cgroup is what remains.
    """
    try:
        lock = open_lock(job_dir)
    except OSError as error:
        answer(f"cannot start the job in {job_dir}: {error.strerror}")
        return 1
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # at a shutdown the supervisor ends the job
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os._exit(supervise(job_dir, answer, lock, keeper))
    close()
    os.waitpid(child, 0)
    tree = Tree()
    pause = 0.001
    with suppress(ChildProcessError):  # no process is left
        while True:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            tree.refresh(thorough=True)
            tree.signal(signal.SIGKILL)
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
    with suppress(Refused):
        if not os.path.exists(f"{job_dir}/exit"):  # the supervisor was killed
            clean_up(read_spec(f"{job_dir}/spec.json"))
    return 0


def detach(job_dir: str) -> int:
    """Supervises in a detached process, and passes on its answer."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)

        def answer(text: str) -> None:
            with suppress(OSError):
                os.write(writer, f"{text}\n".encode())
            os.close(writer)

        os._exit(keep(job_dir, answer, lambda: os.close(writer)))
    os.close(writer)
    with open(reader, "rb") as answers:
        line = answers.read()
    return say((line or b"the supervisor ended before the job started").decode(errors="replace").strip())


def say(problem: str) -> int:
    """Writes an error to stderr, if there is one; the exit code."""
    if problem:
        sys.stderr.write(f"{problem}\n")
    return 1 if problem else 0


if __name__ == "__main__":
    words = sys.argv[1:]
    if not words or words[:-1] not in ([], ["--detach"]):
        sys.exit("usage: supervisor.py [--detach] JOBDIR")
    sys.exit(detach(words[-1]) if words[:-1] else supervise(words[-1], say))
