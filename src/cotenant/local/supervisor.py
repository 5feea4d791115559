# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The supervisor: one small process per run, which owns the job's process, its log, its limits and its exit record.

Because of it, a killed daemon loses nothing. Run as `python -I -S supervisor.py JOBDIR`, it is one file that uses only
the standard library: it imports nothing of cotenant, needs no search path, and an upgrade of cotenant while a job runs
cannot give it half of a new version. So the formats of its files are defined here too, and the daemon's side
(`attempts.py`) reads them with these same functions. A folder belongs to one run of a job and contains:

    lock    locked (flock) while the supervisor or its keeper lives; unlike a pid, it cannot be taken over by another
            process
    intent  on disk before the fork: a run with an intent is never started again
    run     pid and start time of the job's first process
    log     its output, rotated to log.1, log.2, ...; log.begins contains the number of bytes before `log`
    exit    how it ended, written completely or not at all
    cancel  exists if the run was cancelled before it began
    orders  what the daemon changed since: whether the run is paused, its time limit and its memory; read at the start
            and after each SIGUSR1

The supervisor has a parent, the keeper: if the supervisor is killed, the keeper inherits all processes of the run and
kills them, even those that left their session and cleared their environment. Until then it holds the lock.

Two causes of an end cannot be recognised. An allocation that RLIMIT_DATA refuses looks like an error of the program,
which exits or aborts as it likes. A kill by the kernel because the whole machine is out of memory looks like any
SIGKILL; the exit record then mentions it as a possibility.
"""

import ctypes
import errno
import fcntl
import json
import os
import pwd
import resource
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple, NoReturn

VERSION = 1
MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
TOKEN = "COTENANT_RUN"  # a secret in the job's environment, by which its remaining processes are recognised
EXIT_BYTES = 4096  # reserved before the job starts, so that the exit record can be written on a full disk
NEW_FILE = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW  # a link would lead out of the run's folder

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC

TICK_S = 0.05  # between two checks of the process tree if a limit is to be enforced
FAST_TICK_S = 0.01  # the same, if memory use is close to the limit
LAZY_TICK_S = 1.0  # the same without limits, to measure the peak
THOROUGH_S = 10.0  # between two checks that read every process again
RECLAIM_GRACE_S = 1.0  # between SIGTERM and SIGKILL of a job whose memory another job needs, at most
CLEAN_UP_S = 30.0  # for the command `after`
SLOT_S = 0.1  # length of a slot of the stop-and-continue share

Outcome = Literal["exited", "signalled", "out-of-memory", "time-limit", "cancelled", "exec-failed", "interrupted"]

libc = ctypes.CDLL(None, use_errno=True)


class Spec(NamedTuple):
    """The specification of a run, as in spec.json."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    cpus: list[int] | None = None
    rlimit_data_mib: int | None = None
    memory_mib: int | None = None
    memory_baseline_mib: int = 0
    share_percent: int | None = None
    cgroup: str | None = None
    grace_s: float = 10.0
    log_bytes: int = 64 * MIB
    log_files: int = 3
    max_processes: int | None = None
    open_files: int | None = None
    contain: str | None = None
    partition: str | None = None
    time_s: float | None = None
    warn_s: float | None = None
    uid: int | None = None  # of the user that the job runs as; None: that of the supervisor
    user: str = ""
    umask: int | None = None
    limits: dict[str, list[int]] = {}  # noqa: RUF012 - never changed
    program: str | None = None  # a Python file whose function `main` is called instead of the command
    host_memory_mib: int | None = None
    host_memory_cgroup: str | None = None  # None: we watch that limit
    after: list[str] = []  # noqa: RUF012 - never changed; a command that removes what the run left behind
    terminal: dict[str, Any] = {}  # noqa: RUF012 - never changed; of an interactive run: `Supervision.open_terminal`
    new_privileges: bool = False  # whether set-user-ID programs gain rights in a job of another user


class Exit(NamedTuple):
    """How a job ended, as in the exit record."""

    outcome: Outcome
    code: int | None
    signal: int | None
    error: str | None
    started: float
    ended: float
    peak_mib: int
    dropped_bytes: int = 0
    of_host: bool = False  # whether the memory that it ran out of is that of --host-memory


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The run cannot be started; nothing was done."""


# ---------------------------------------------------------------- files


def write_durably(path: str, content: Mapping[str, object], room: int = 0) -> None:
    """Replaces a file atomically and durably; with `room`, overwrites space that was reserved by `set_aside`."""
    text = json.dumps(content).encode().ljust(room)
    file = os.open(path + ".tmp", NEW_FILE | (0 if room else os.O_TRUNC), 0o600)
    try:
        if os.write(file, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    finally:
        os.close(file)
    os.rename(path + ".tmp", path)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Makes the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def set_aside(path: str) -> None:
    """Reserves the disk space of the exit record."""
    file = os.open(path, NEW_FILE | os.O_TRUNC, 0o600)
    try:
        if os.write(file, b" " * EXIT_BYTES) != EXIT_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    finally:
        os.close(file)


def read_json(path: str) -> dict[str, Any] | None:
    """A record; None: the file does not exist or is not a JSON object."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_spec(path: str) -> Spec:
    """The specification in a file; Refused says why it is not valid."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            seen = os.fstat(file.fileno())
            if seen.st_uid not in (os.geteuid(), 0) or seen.st_mode & 0o022:
                raise Refused(f"{path} can be changed by another user: expected a file that only its owner can write")
            content = json.loads(file.read())
        version = content.pop("version")
        spec = Spec(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Refused(f"{path} is not the specification of a job: {error}") from error
    if version != VERSION:
        raise Refused(f"{path} has version {version!r}; this supervisor understands version {VERSION}")
    if not spec.argv or not all(isinstance(word, str) for word in spec.argv):
        raise Refused(f"{path}: argv must be a list of at least one text, not {spec.argv!r}")
    if spec.share_percent is not None and not 1 <= spec.share_percent <= 100:
        raise Refused(f"{path}: share_percent must be 1 to 100, not {spec.share_percent}")
    if spec.log_bytes < 1 or spec.log_files < 1:
        raise Refused(f"{path}: log_bytes and log_files must be at least 1")
    return spec


def boot_id() -> str:
    """An identifier of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def locked(job_dir: str) -> bool:
    """Whether a supervisor lives. This takes the lock for an instant; a starting supervisor tries again."""
    try:
        lock = os.open(f"{job_dir}/lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


# ---------------------------------------------------------------- processes


class Seen(NamedTuple):
    """The fields of /proc/PID/stat that we need."""

    state: str
    parent: int
    session: int
    start: int  # in clock ticks since boot; together with the pid it identifies a process uniquely


def look_at(pid: int) -> Seen | None:
    """A process as it is now; None: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may contain spaces and brackets
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Seen(fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19])) if len(fields) > 19 else None


def all_pids() -> set[int]:
    """Every process that this one can see."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> number - 1 & 1)
    return False


def send(pid: int, start: int, number: int) -> None:
    """Signals a process, never a later one with its pid: the handle is opened before the start time is compared."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        seen = look_at(pid)
        if seen is not None and seen.start == start:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it has ended, or belongs to another user now (setuid)
    finally:
        os.close(handle)


class Tree:
    """All descendants of this process. It is their subreaper, so even those that leave the session stay descendants."""

    def __init__(self) -> None:
        self.members: dict[int, int] = {}  # pid -> start time
        self._others: set[int] = {0}
        self._overcounted: dict[int, int] = {}  # pid -> bytes of its resident pages that are not counted for the job
        self._measure_at = 0.0

    def refresh(self, thorough: bool = False) -> None:
        """Finds new and ended processes; only unknown pids are read, so usually it costs one directory listing."""
        if thorough:
            self.members, self._others = {}, {0}
        listed = all_pids()
        listed.discard(os.getpid())
        self.members = {pid: start for pid, start in self.members.items() if pid in listed}
        self._others &= listed | {0}
        unknown = {pid: seen for pid in listed - self.members.keys() - self._others if (seen := look_at(pid))}
        found = True
        while found:  # a child may be listed before its parent
            found = False
            for pid, seen in list(unknown.items()):
                if seen.parent == os.getpid() or seen.parent in self.members:
                    self.members[pid] = seen.start
                elif seen.parent in self._others:
                    self._others.add(pid)
                else:
                    continue  # its parent is not known yet: decided in this loop or at the next refresh
                del unknown[pid]
                found = True

    def signal(self, number: int) -> None:
        """Signals every known member."""
        for pid, start in self.members.items():
            send(pid, start, number)

    def cpu_s(self, before: dict[int, float]) -> float:
        """CPU seconds used since `before`, which is updated; the last moments of ended processes are not counted."""
        used = 0.0
        now: dict[int, float] = {}
        for pid in self.members:
            try:
                now[pid] = time.clock_gettime(~pid << 3 | 2)  # the clock id of the CPU time of a process
            except OSError:
                continue
            used += now[pid] - before.get(pid, 0.0)
        before.clear()
        before.update(now)
        return used

    def memory(self, limit: int | None, now: float) -> int:
        """Bytes that count for the job: resident pages, each shared page once, without pages of mapped files.

        The exact number costs milliseconds, the sum of resident sizes microseconds, and their difference changes
        slowly. So the difference is stored per process, and measured again about once a second, or when the estimate
        exceeds the limit.
        """
        resident = {pid: size for pid in self.members if (size := resident_bytes(pid))}
        estimate = sum(max(size - self._overcounted.get(pid, 0), 0) for pid, size in resident.items())
        if now < self._measure_at and (limit is None or estimate <= limit):
            return estimate
        began = time.monotonic()
        exact = {pid: size if (charged := charged_bytes(pid)) is None else charged for pid, size in resident.items()}
        self._overcounted = {pid: size - exact[pid] for pid, size in resident.items()}
        self._measure_at = now + max(1.0, 100 * (time.monotonic() - began))  # at most 1 % of a core
        return sum(exact.values())


def resident_bytes(pid: int) -> int:
    """The resident size of a process; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def charged_bytes(pid: int) -> int | None:
    """Its share of resident pages without those of mapped files; None: the kernel does not report it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file.read().splitlines()[1:])
        return (int(lines[b"Pss"].split()[0]) - int(lines.get(b"Pss_File", b"0").split()[0])) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None


# ---------------------------------------------------------------- parts of the loop


class Log:
    """The job's output on disk, bounded by rotation. On a full disk output is dropped; the job continues."""

    def __init__(self, path: str, file_bytes: int, files: int) -> None:
        self.dropped = 0
        self._path, self._file_bytes, self._files = path, file_bytes, files
        self._file = -1
        self._size = 0
        self._begins = 0  # bytes of output in earlier files
        self._unreported = 0

    def write(self, output: bytes) -> None:
        """Appends output, or drops and counts it."""
        try:
            if self._unreported:
                self._append(b"\n[cotenant: %d bytes of output dropped: no room on the disk]\n" % self._unreported)
                self._unreported = 0
            while output:
                output = output[self._append(output) :]
        except OSError:
            self.dropped += len(output)
            self._unreported += len(output)

    def _append(self, output: bytes) -> int:
        if self._file < 0 or self._size >= self._file_bytes:
            self._turn()
        written = os.write(self._file, output[: self._file_bytes - self._size])
        self._size += written
        return written

    def _turn(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._begins += self._size
            names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._files))]
            for older, oldest in zip(names[-2::-1], names[:0:-1], strict=True):
                with suppress(FileNotFoundError):
                    os.rename(older, oldest)
            with suppress(FileNotFoundError):
                os.unlink(self._path)  # if only one file is kept
        if self._begins:  # written before the new `log`, so that a reader of `log` finds its offset
            with open(f"{self._path}.begins.tmp", "w") as file:
                file.write(str(self._begins))
            os.rename(f"{self._path}.begins.tmp", f"{self._path}.begins")
        self._file = os.open(self._path, NEW_FILE | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size


class Share:
    """A compute share by SIGSTOP and SIGCONT: in each slot the tree runs until it has used its part of the CPU time.

    CPU time is counted rather than elapsed time, so a neighbour on the same core may delay a job but cannot use up its
    share, and a job that mostly waits is never stopped. An excess in one slot is subtracted from the next.
    """

    def __init__(self, percent: int, cores: int, now: float) -> None:
        self._quota = percent / 100 * cores * SLOT_S
        self._cores = cores
        self._left = self._quota
        self._slot_ends = now + SLOT_S
        self._used: dict[int, float] = {}
        self.stopped = False
        self.due = now

    def step(self, tree: Tree, leader: int, now: float) -> None:
        """Stops or continues the job, and sets the time of the next call."""
        self._left -= tree.cpu_s(self._used)
        if now >= self._slot_ends:
            self._left = min(max(self._left, -2 * self._quota), 0.0) + self._quota
            self._slot_ends = max(self._slot_ends + SLOT_S, now + SLOT_S / 2)
        stop = self._left <= 0
        if stop != self.stopped:
            self.stopped = stop
            signal_job(tree, leader, signal.SIGSTOP if stop else signal.SIGCONT)
        self.due = self._slot_ends if stop else min(self._slot_ends, now + max(self._left / self._cores, 0.003))


def signal_job(tree: Tree, leader: int, number: int) -> None:
    """Signals the job's process group and every other member of its tree, each only once.

    A second SIGTERM may mean something else to a program. Call it only before the leader is reaped: until then no other
    process group can have its number.
    """
    if number != signal.SIGCONT:
        with suppress(OSError):  # it is not the leader of a group yet
            os.killpg(leader, number)
    for pid, start in tree.members.items():
        with suppress(OSError):
            if os.getpgid(pid) != leader:
                send(pid, start, number)
    if number == signal.SIGCONT:  # last, because a shell that sees its child stopped thinks that Ctrl-Z was pressed
        with suppress(OSError):
            os.killpg(leader, number)


def out_of_memory_kills(cgroup: str | None) -> int:
    """The number of out-of-memory kills in this control group; 0 if the kernel does not report it."""
    for name in ("memory.events", "memory.oom_control") if cgroup else ():
        try:
            with open(f"{cgroup}/{name}") as file:
                return int(next((line.split()[1] for line in file if line.startswith("oom_kill ")), 0))
        except OSError:
            continue
    return 0


def machine_out_of_memory_kills() -> int:
    """The same for the whole machine."""
    with open("/proc/vmstat") as file:
        return int(next((line.split()[1] for line in file if line.startswith("oom_kill ")), 0))


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


def machine_going_down(sender: int) -> bool:
    """Whether a SIGTERM comes from the init system, which means a shutdown rather than a cancellation."""
    try:
        with open(f"/proc/{sender}/comm") as file:
            return file.read().startswith(("systemd", "init"))
    except OSError:
        return False


# ---------------------------------------------------------------- the job's own process


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
            become_user(spec.uid, spec.user, supervisor, spec.new_privileges)
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


def become_user(uid: int, name: str, supervisor: int, new_privileges: bool = False) -> None:
    """Gives up all rights but those of a user, for good: with the user's groups, and without set-user-ID programs,
    unless `new_privileges` allows them."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise ValueError("this machine has no such user any more") from None
    if entry.pw_name != name:
        raise ValueError(f"this user ID belongs to {entry.pw_name} now")
    for output in (1, 2):
        os.fchown(output, uid, entry.pw_gid)  # so that the job can open /dev/stdout
    os.initgroups(name, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or (not new_privileges and libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0):
        raise ValueError("the kernel did not change the user")
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # the kernel forgets it when the user changes
    if os.getppid() != supervisor:
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
                become_user(spec.uid, spec.user, above, spec.new_privileges)
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


# ---------------------------------------------------------------- the supervisor


class Supervision:
    """One run, from the fork to the exit record."""

    def __init__(self, job_dir: str, spec: Spec, token: str, signals: int) -> None:
        self.dir, self.spec, self.token, self.signals = job_dir, spec, token, signals
        self.grace_s = spec.grace_s
        self.log = Log(f"{job_dir}/log", spec.log_bytes, spec.log_files)
        self.tree = Tree()
        self.share: Share | None = None
        self.leader = 0
        self.wait_status: int | None = None
        self.started = time.time()
        self.peak = 0
        self.began = time.monotonic()
        self.paused = False
        self.cause: tuple[Outcome, str | None] | None = None  # why we ended it; None: it ended by itself
        self.kill_at: float | None = None
        self.warn_at: float | None = None
        self.end_at: float | None = None
        self.check_at = 0.0
        self.lazy_s = TICK_S
        self.refresh_at = 0.0
        self.thorough_at = 0.0
        self.kills_before = out_of_memory_kills(spec.host_memory_cgroup), machine_out_of_memory_kills()
        self.of_host = False
        self.report, self.report_writer = os.pipe()
        self.output, self.output_writer = os.pipe()
        os.set_blocking(self.output, False)
        self.terminal: Any = None  # a `Terminal` of terminal.py, instead of the pipe
        self.poller = select.poll()
        for fd in (self.signals, self.report, self.output):
            self.poller.register(fd, select.POLLIN)

    def start(self, lock: int) -> None:
        """Forks, writes the record `run`, then lets the new process continue."""
        go_reader, go = os.pipe()
        supervisor = os.getpid()
        try:
            self.open_terminal()
        except OSError as error:
            self.cause = ("exec-failed", f"cannot make a terminal: {error.strerror}")
            return
        try:
            self.leader = os.fork()
        except OSError as error:
            self.cause = ("exec-failed", f"cannot start a process: {error.strerror}")
            return
        if self.leader == 0:
            for fd in (lock, go, self.report, self.output):
                os.close(fd)
            become_job(self.spec, self.token, supervisor, go_reader, self.report_writer, self.output_writer)
        for fd in (go_reader, self.report_writer, *(() if self.terminal else (self.output_writer,))):
            os.close(fd)
        seen = look_at(self.leader)  # our child, not reaped yet, so it exists
        start = seen.start if seen else 0
        self.tree.members[self.leader] = start
        try:
            record = {"version": VERSION, "pid": self.leader, "start": start, "started": self.started}
            write_durably(f"{self.dir}/run", record)
            os.write(go, b"g")
        except OSError as error:
            self.cause = ("exec-failed", f"cannot record the start in {self.dir}: {error.strerror}")
        os.close(go)
        self.began = time.monotonic()
        self.set_time(self.spec.time_s)
        if self.spec.share_percent is not None and self.spec.share_percent < 100:
            self.set_share(self.spec.share_percent)
        self.obey()

    def open_terminal(self) -> None:
        """Replaces the pipe by a terminal, if the run is interactive: `program` is the file that contains `Terminal`,
        `socket` the path at which clients connect, `rows` and `columns` the size."""
        settings = self.spec.terminal
        if settings:
            made = load_program(settings["program"])["Terminal"]
            uid = os.geteuid() if self.spec.uid is None else self.spec.uid
            terminal = made(settings["socket"], uid, settings["rows"], settings["columns"], self.poller)
            self.poller.unregister(self.output)
            os.close(self.output)
            os.close(self.output_writer)
            self.output, self.output_writer, self.terminal = terminal.master, terminal.slave, terminal

    def set_share(self, percent: int) -> None:
        """Stops and continues the job from now on, so that it has this part of the CPU time."""
        if self.share is not None and self.share.stopped and not self.paused:
            signal_job(self.tree, self.leader, signal.SIGCONT)
        self.share = Share(percent, len(self.spec.cpus or os.sched_getaffinity(0)), time.monotonic())

    def set_time(self, time_s: float | None) -> None:
        """Ends the run so long after its start; a pause does not stop this clock, because others rely on the end."""
        if time_s is not None:
            now, before, warn_s = time.monotonic(), self.end_at, self.spec.warn_s
            self.end_at = self.began + time_s
            if warn_s is not None and (before is None or self.end_at - warn_s > now):
                self.warn_at = self.end_at - warn_s

    def obey(self) -> None:
        """Does what the daemon has written to `orders` since the start."""
        orders = read_json(f"{self.dir}/orders")
        if orders is None or self.cause is not None or self.wait_status is not None:
            return
        time_s, memory = orders.get("time_s"), orders.get("memory_mib")
        if isinstance(time_s, int | float) and time_s != self.spec.time_s:
            self.spec = self.spec._replace(time_s=time_s)
            self.set_time(time_s)
        if isinstance(memory, int) and self.spec.memory_mib is not None:
            self.spec = self.spec._replace(memory_mib=memory)
        percent = orders.get("share_percent")
        if isinstance(percent, int) and self.share is not None and percent != self.spec.share_percent:
            self.spec = self.spec._replace(share_percent=percent)
            self.set_share(percent)
        if (orders.get("paused") is True) != self.paused:
            self.pause(not self.paused)

    def pause(self, paused: bool) -> None:
        """Stops all processes of the job, or lets them go on."""
        self.paused = paused
        self.tree.refresh(thorough=True)
        signal_job(self.tree, self.leader, signal.SIGSTOP if paused else signal.SIGCONT)
        if self.share is not None:
            self.share.stopped, self.share.due = False, time.monotonic()
        self.check_at, self.lazy_s = time.monotonic(), TICK_S  # a process that was being made is stopped by a check

    def run(self) -> None:
        """Runs until the first process has ended."""
        while self.leader and self.wait_status is None:
            share_due = None if self.share is None or self.paused else self.share.due
            due = (self.check_at, self.kill_at, self.warn_at, self.end_at, share_due)
            self.handle(max(min(at for at in due if at is not None) - time.monotonic(), 0.0))
            self.act(time.monotonic())

    def act(self, now: float) -> None:
        """Does what is due."""
        if self.wait_status is not None:
            return  # from now on another process group may have its number
        if self.kill_at is not None and now >= self.kill_at:  # before the check, which postpones it
            signal_job(self.tree, self.leader, signal.SIGKILL)
            self.kill_at = now + TICK_S  # repeated until no process is left that could fork
        if self.warn_at is not None and now >= self.warn_at:
            self.warn_at = None
            send(self.leader, self.tree.members.get(self.leader, 0), signal.SIGUSR1)
        if self.end_at is not None and now >= self.end_at:
            self.ask_to_end("time-limit", f"ran for its time limit of {self.spec.time_s:g} s", self.spec.grace_s)
        if now >= self.check_at:
            self.check(now)
        if self.share is not None and not self.paused and now >= self.share.due:
            self.share.step(self.tree, self.leader, now)

    def handle(self, timeout_s: float) -> None:
        """Waits for signals, output or the result of exec, and handles them."""
        for fd, events in self.poller.poll(timeout_s * 1000):
            if fd == self.signals:
                self.take_signals()
            elif self.terminal is not None and self.terminal.handle(fd, events) and fd != self.output:
                pass
            elif fd == self.output:
                if self.take_output() == b"":
                    self.poller.unregister(fd)  # every writer has closed it
            elif fd != self.report:
                pass  # a client of the terminal that has just left
            elif text := os.read(fd, EXIT_BYTES):
                self.cause = self.cause or ("exec-failed", text.decode(errors="replace"))
            else:
                self.poller.unregister(fd)  # exec has closed it

    def take_output(self) -> bytes | None:
        """Moves one piece of output to the log; empty: the end of the output, None: there is none now."""
        try:
            piece: bytes | None = self.terminal.read() if self.terminal else os.read(self.output, 1 << 16)
        except BlockingIOError:
            return None
        if piece is None:
            return None
        self.log.write(piece)
        return piece

    def take_signals(self) -> None:
        """Reaps children on SIGCHLD; begins to cancel on SIGTERM, and on SIGINT with a short grace period."""
        try:
            while letter := os.read(self.signals, 128):
                number = int.from_bytes(letter[:4], sys.byteorder)
                if number == signal.SIGUSR1:
                    self.obey()
                elif number != signal.SIGCHLD:
                    most_s = RECLAIM_GRACE_S if number == signal.SIGINT else self.spec.grace_s
                    self.cancel(int.from_bytes(letter[12:16], sys.byteorder), most_s)
        except BlockingIOError:
            self.reap()

    def reap(self) -> bool:
        """Reaps ended children; False if no descendant is left (all orphans become our children)."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.leader:
                    self.wait_status = ended[1]
        except ChildProcessError:
            return False
        return True

    def cancel(self, sender: int, most_s: float) -> None:
        """Asks the job to end because the machine goes down, or because it was cancelled."""
        if machine_going_down(sender):
            self.ask_to_end("interrupted", "the machine went down", most_s)
        else:
            self.ask_to_end("cancelled", None, most_s)

    def ask_to_end(self, outcome: Outcome, error: str | None, most_s: float) -> None:
        """Asks the job to end; it is killed when the grace period is over, after `most_s` seconds at most."""
        self.warn_at = self.end_at = None
        if self.cause is not None or self.wait_status is not None:
            return
        self.cause = (outcome, error)
        self.share, self.paused = None, False
        self.grace_s = min(self.spec.grace_s, most_s)
        self.kill_at = time.monotonic() + self.grace_s
        self.tree.refresh()  # a command that a shell has just started has a process group of its own
        signal_job(self.tree, self.leader, signal.SIGTERM)
        signal_job(self.tree, self.leader, signal.SIGCONT)

    def hang_up(self) -> None:
        """Ends a shell that was asked to end: interactive shells ignore SIGTERM. Called when its commands have ended,
        because it passes SIGHUP on to them."""
        if ignores(self.leader, signal.SIGTERM):
            send(self.leader, self.tree.members[self.leader], signal.SIGHUP)

    def kill(self, outcome: Outcome, error: str) -> None:
        """Kills the job at once."""
        if self.cause is None or self.cause[0] in ("cancelled", "interrupted"):
            self.cause = (outcome, error)
        self.share, self.paused = None, False
        self.kill_at = time.monotonic()

    def check(self, now: float) -> None:
        """Checks the number of processes and the memory of the tree, and sets the time of the next check."""
        if now >= self.thorough_at:
            self.tree.refresh(thorough=True)
            self.thorough_at = now + THOROUGH_S
            self.refresh_at = now + TICK_S
        elif now >= self.refresh_at:
            self.tree.refresh()
            self.refresh_at = now + TICK_S
        if self.paused:  # the job may have continued itself, or made a process in the last moment
            signal_job(self.tree, self.leader, signal.SIGSTOP)
        if self.terminal is not None and self.kill_at is not None and self.tree.members.keys() == {self.leader}:
            self.hang_up()
        spec = self.spec
        limit = None if spec.memory_mib is None else (spec.memory_mib + spec.memory_baseline_mib) * MIB
        used = self.tree.memory(limit, now)
        self.peak = max(self.peak, used)
        limited = limit is not None or spec.host_memory_mib is not None or spec.max_processes is not None
        limited = limited or self.share is not None
        self.check_at = now + (TICK_S if limited else self.lazy_s)
        self.lazy_s = min(2 * self.lazy_s, LAZY_TICK_S)
        if limit is not None and used > limit:
            self.kill("out-of-memory", memory_sentence(used, spec))
        elif limit is not None and used > 0.8 * limit:
            self.check_at = now + FAST_TICK_S
        self.check_host_memory(used)
        if spec.max_processes is not None and len(self.tree.members) > spec.max_processes:
            count = len(self.tree.members)
            self.kill("signalled", f"had {count} processes, its limit is {spec.max_processes}: killed with all of them")

    def check_host_memory(self, used: int) -> None:
        """Ends the job if it exceeds its limit of host memory, or if the kernel killed one of its processes for it."""
        spec = self.spec
        if spec.host_memory_mib is None or self.of_host:
            return
        if spec.host_memory_cgroup is None:
            self.of_host = used > spec.host_memory_mib * MIB
            text = f"used {-(-used // MIB)} MiB of host memory, its limit is {spec.host_memory_mib} MiB: killed"
        else:
            self.of_host = out_of_memory_kills(spec.host_memory_cgroup) > self.kills_before[0]
            text = killed_by_kernel(spec)
        if self.of_host:
            self.kill("out-of-memory", text)

    def finish(self) -> Exit:
        """Kills and reaps the remaining processes, stores the last output, and returns how the run ended."""
        ended = time.time()
        pause = 0.001
        while self.reap():
            # after a cancellation every process has the grace period, even if the shell around it has ended already
            if self.kill_at is None or time.monotonic() >= self.kill_at:
                self.tree.refresh(thorough=True)
                self.tree.signal(signal.SIGKILL)
            self.handle(pause)
            pause = min(pause * 2, 0.5)
        for _ in range(64):  # more than a pipe holds; bounded, because a foreign process may still write to the pipe
            if not self.take_output():
                break
        code = None if self.wait_status is None else os.waitstatus_to_exitcode(self.wait_status)
        outcome, error = self.cause or self.own_end(code or 0)
        of_host = self.of_host and outcome == "out-of-memory"
        if outcome == "exec-failed":
            code = 127
        if outcome in ("cancelled", "time-limit") and code == -signal.SIGKILL:
            late = f"did not end within {self.grace_s:g} s of SIGTERM: killed"
            error = late if error is None else f"{error}; {late}"
        number = -code if code is not None and code < 0 else None
        peak, dropped = -(-self.peak // MIB), self.log.dropped
        return Exit(outcome, None if number else code, number, error, self.started, ended, peak, dropped, of_host)

    def kill_rest(self) -> None:
        """Kills processes that the last command has left behind."""
        while self.reap():
            self.tree.refresh(thorough=True)
            self.tree.signal(signal.SIGKILL)
            time.sleep(0.01)

    def own_end(self, code: int) -> tuple[Outcome, str | None]:
        """The outcome of a run that we did not end."""
        if code != 0 and out_of_memory_kills(self.spec.host_memory_cgroup) > self.kills_before[0]:
            self.of_host = True
            return "out-of-memory", killed_by_kernel(self.spec)
        if code >= 0:
            return "exited", None
        error = f"ended by {signal_name(-code)}"
        if code == -signal.SIGKILL and machine_out_of_memory_kills() > self.kills_before[1]:
            error += "; the kernel killed processes meanwhile because the machine was out of memory, perhaps this job"
        return "signalled", error


def memory_sentence(used: int, spec: Spec) -> str:
    """Why a job was killed for its memory use, with the numbers."""
    own = -(-used // MIB) - spec.memory_baseline_mib
    beside = f" besides a baseline of {spec.memory_baseline_mib} MiB" if spec.memory_baseline_mib else ""
    return f"used {own} MiB of memory{beside}, its limit is {spec.memory_mib} MiB: killed"


def killed_by_kernel(spec: Spec) -> str:
    """Why the kernel killed a process of a job."""
    return f"needed more than its {spec.host_memory_mib} MiB of host memory: killed by the kernel"


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def record_exit(job_dir: str, end: Exit) -> None:
    """Writes the exit record, and retries until the disk allows it; meanwhile the lock is held."""
    record: dict[str, object] = {"version": VERSION, **end._asdict()}
    if end.error is not None:
        record["error"] = end.error[: EXIT_BYTES // 8]  # JSON escapes may make six characters of one
    pause = 0.05
    while os.path.isdir(job_dir):
        with suppress(OSError):
            write_durably(f"{job_dir}/exit", record, room=EXIT_BYTES)
            break
        time.sleep(pause)
        pause = min(pause * 2, 2.0)


def open_lock(job_dir: str) -> int:
    """Opens the lock. The keeper opens it before it forks, so that it holds the lock that the supervisor takes."""
    return os.open(f"{job_dir}/lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def take_lock(job_dir: str, lock: int) -> bool:
    """Takes the lock; False: another supervisor has it. Retries, because `status` holds the lock for an instant."""
    for _ in range(200):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if os.path.exists(f"{job_dir}/intent"):
                break
            time.sleep(0.01)
        else:
            return True
    return False


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
