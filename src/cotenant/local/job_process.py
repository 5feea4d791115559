# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The first process of a job, from the fork to exec: it gives itself the limits and the user of the job."""

import ctypes
import errno
import fcntl
import os
import pwd
import resource
import signal
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from cotenant.local.run_files import MIB, Spec

TOKEN = "COTENANT_RUN"  # a secret in the job's environment, by which its remaining processes are recognised
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
CLEAN_UP_S = 30.0  # for the command `after`
libc = ctypes.CDLL(None, use_errno=True)


def become_job(spec: Spec, token: str, supervisor: int, go: int, report: int, output: int) -> NoReturn:
    """In the new process: waits until `run` is written, applies the limits, and executes the command."""
    doing = "start a session"
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != supervisor or not os.read(go, 1):
            os._exit(125)  # the supervisor died before prctl took effect
        for group in {spec.cgroup, spec.contain, spec.partition, spec.host_memory_cgroup} - {None, ""}:
            doing = f"join the control group {group}"
            join_cgroup(str(group))
        if spec.cpus is not None:
            doing = f"run on the CPUs {spec.cpus}"
            os.sched_setaffinity(0, spec.cpus)  # before exec: afterwards it would apply to one thread only
        doing = "open the log"
        os.dup2(output if spec.terminal else os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if spec.terminal:
            doing = "use its terminal"
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        doing = "set limits"
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if spec.open_files is not None:  # the daemon may have raised its own limit, which we inherited
            resource.setrlimit(resource.RLIMIT_NOFILE, (spec.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for name, (soft, hard) in spec.limits.items():
            lower_limit(getattr(resource, f"RLIMIT_{name}"), soft, hard)
        if spec.rlimit_data_mib is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (spec.rlimit_data_mib * MIB, spec.rlimit_data_mib * MIB))
        # loaded here, because the user may not be able to read it
        main = None if spec.program is None else load_program(spec.program)["main"]
        if spec.uid is not None:
            doing = f"run as {spec.user} (user ID {spec.uid})"
            become_user(spec, supervisor, outputs=(1, 2))
        if spec.umask is not None:
            os.umask(spec.umask)
        doing = f"enter the working directory '{spec.cwd}'"  # with the rights of the user
        os.chdir(spec.cwd)
        doing = f"run the command '{spec.argv[0]}'"
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # Python ignores some signals, which exec would pass on
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if main is not None:
            call_program(main, {**spec.env, TOKEN: token})
        os.execvpe(spec.argv[0], spec.argv, {**spec.env, TOKEN: token})
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "no number")
        os.write(report, f"cannot {doing}: {error.strerror} ({name})".encode())
    except (ValueError, TypeError, MemoryError) as error:
        os.write(report, f"cannot {doing}: {error}".encode())
    finally:
        os._exit(127)


def load_program(path: str) -> dict[str, Any]:
    """The names of a Python file, with all that the file imports."""
    import runpy

    return runpy.run_path(path)


def call_program(main: Callable[[], int], env: Mapping[str, str]) -> NoReturn:
    """Ends this process with what the function returns."""
    os.environ.clear()
    os.environ.update(env)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - until the process ends
    os._exit(main())


def lower_limit(which: int, soft: int, hard: int) -> None:
    """Sets a limit of this process, and keeps its own hard limit if that is lower."""
    own = resource.getrlimit(which)[1]
    most = own if hard == resource.RLIM_INFINITY or (own != resource.RLIM_INFINITY and own < hard) else hard
    within = soft != resource.RLIM_INFINITY and (most == resource.RLIM_INFINITY or soft < most)
    resource.setrlimit(which, (soft if within else most, most))


def become_user(spec: Spec, above: int, outputs: tuple[int, ...] = ()) -> None:
    """Gives up all rights but those of the user of a job, for good: with the user's groups, and without set-user-ID
    programs, unless the specification allows them. `above` is the parent of this process. `outputs` are pipes or
    terminals of the job alone: the user gets them, so that the job can open /dev/stdout."""
    assert spec.uid is not None
    uid, name = spec.uid, spec.user
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise ValueError("this machine has no such user any more") from None
    if entry.pw_name != name:
        raise ValueError(f"this user ID belongs to {entry.pw_name} now")
    for output in outputs:
        os.fchown(output, uid, entry.pw_gid)
    os.initgroups(name, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(uid, uid, uid)
    restricted = spec.new_privileges or libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if os.getresuid() != (uid, uid, uid) or not restricted:
        raise ValueError("the kernel did not change the user")
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # the kernel forgets it when the user changes
    if os.getppid() != above:
        os._exit(125)


def clean_up(spec: Spec) -> None:
    """Runs the command that removes what a run left behind, as its user, for a bounded time. All its processes have
    ended."""
    if not spec.after:
        return
    above = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            if spec.uid is not None:
                become_user(spec, above)  # /dev/null belongs to the whole machine
            os.chdir("/")
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execvpe(spec.after[0], spec.after, spec.env)
        finally:
            os._exit(127)
    until = time.monotonic() + CLEAN_UP_S
    with suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.02)


def join_cgroup(path: str) -> None:
    """Moves this process into a control group of version 1 or 2."""
    name = "cgroup.procs" if os.path.exists(f"{path}/cgroup.procs") else "tasks"
    with open(f"{path}/{name}", "w") as file:
        file.write(str(os.getpid()))
