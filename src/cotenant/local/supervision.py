# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The loop of a supervisor: output, signals, limits and the end of one run."""

import os
import select
import signal
import sys
import time
from typing import Any

from cotenant.local.cpu_share import Share
from cotenant.local.job_process import become_job, load_program
from cotenant.local.processes import Tree, ignores, look_at, send, signal_job
from cotenant.local.run_files import EXIT_BYTES, MIB, VERSION, Exit, Outcome, Spec, read_json, write_durably
from cotenant.local.run_log import Log

TICK_S = 0.05  # between two checks of the process tree if a limit is to be enforced
FAST_TICK_S = 0.01  # the same, if memory use is close to the limit
LAZY_TICK_S = 1.0  # the same without limits, to measure the peak
THOROUGH_S = 10.0  # between two checks that read every process again
RECLAIM_GRACE_S = 1.0  # between SIGTERM and SIGKILL of a job whose memory another job needs, at most


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


def machine_going_down(sender: int) -> bool:
    """Whether a SIGTERM comes from the init system, which means a shutdown rather than a cancellation."""
    try:
        with open(f"/proc/{sender}/comm") as file:
            return file.read().startswith(("systemd", "init"))
    except OSError:
        return False
