# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the daemon with 10,000 queued jobs and while it is idle."""

import asyncio
import gc
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from bench.harness import Figure, at_most, benchmark
from cotenant.client.client import Client
from cotenant.client.problems import NoDaemonError
from cotenant.core.queueing.limits import Limits
from cotenant.core.units import MiB
from cotenant.local import attempts
from cotenant.local.account_settings import AccountRules
from cotenant.local.config import Resources, Settings
from cotenant.local.engine import Engine
from cotenant.local.journal import Journal
from cotenant.local.owners import Owner
from cotenant.node.devices.finding import find_backend
from cotenant.node.launch import Paths
from cotenant.node.shares import Means, Shares
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from tests.local.users import as_user

QUEUED = 10_000
SUBMITTED = 1_000
KINDS = 50
"""number of different demands in the queue"""
USERS = 50
EACH = QUEUED // USERS
"""jobs of each user"""
IDLE_S = 15.0
REPEATS = 9
FIRST = JobRequest(command=("sleep", "600"), cwd="/", gpus=2, memory="100%", priority=1000)
"""holds both GPUs"""
FIFO = Settings(policy="binpack", queue="fifo")
ENVIRONMENT = {name: name.lower() * 4 for name in ("PATH", "HOME", "USER", "LANG", "VIRTUAL_ENV", "PYTHONPATH")}


@benchmark("api-load")
def api_load() -> Iterator[Figure]:
    """Measures submissions, listing and scheduling with a long queue, and then an idle daemon."""
    with state_folder() as state:
        fill(state, QUEUED - SUBMITTED)
        with daemon(state) as pid:
            until(lambda: Client().get("/v1/jobs?state=running", list[JobView]))
            start, before = time.perf_counter(), cpu_seconds(pid)
            submit_all(Client())
            taken, own = time.perf_counter() - start, cpu_seconds(pid) - before
            note = f"the last of {QUEUED:,} queued; the daemon's CPU {own:.1f} s"
            yield at_most(f"{SUBMITTED:,} submissions, one after the other", taken, "s", limit=10, note=note)
            yield from listing(pid)
            yield Figure(name=f"memory with {QUEUED:,} queued", figure=memory_mib(pid), unit="MiB")
        stop_jobs(state)
    for kinds in (KINDS, QUEUED):
        with state_folder() as state:
            yield from passes(state, kinds)
    for kinds in (KINDS, QUEUED):
        with state_folder() as state:
            yield from passes_of_users(state, kinds)
    yield from requests_of_users()
    with state_folder() as state, daemon(state) as pid:
        time.sleep(2)
        before = cpu_seconds(pid)
        time.sleep(IDLE_S)
        yield at_most("idle, memory", memory_mib(pid), "MiB", limit=80)
        yield at_most("idle, of a core", (cpu_seconds(pid) - before) / IDLE_S * 100, "%", limit=1)


def job(number: int, kinds: int = KINDS) -> JobRequest:
    """A job of a queue with this number of different demands."""
    kind = number % kinds
    words = ("python", "train.py", "--epochs", str(number))
    memory, compute = f"{100 + kind % 900}MiB", f"{1 + kind // 900}%"
    return JobRequest(command=words, cwd="/", env=ENVIRONMENT, memory=memory, compute=compute, batch=64)


def fill(state: Path, count: int, kinds: int = KINDS) -> None:
    """Writes a journal with this number of queued jobs, behind a job that holds both GPUs."""
    with Journal.open(state / "journal.db") as journal:
        now = time.time()
        requests = [FIRST, *(job(number, kinds) for number in range(count))]
        journal.submit_many([(msgspec.json.encode(one), now) for one in requests])


def submit_all(client: Client) -> None:
    for number in range(SUBMITTED):
        client.post("/v1/jobs", JobView, msgspec.json.encode(job(number)))


def listing(pid: int) -> Iterator[Figure]:
    """The time of listing jobs: one page, all jobs, and as a command."""
    client = Client()
    for name, limit in (("a page of 1,000", 1000), (f"all {QUEUED:,}", 20_000)):
        before = cpu_seconds(pid)
        taken = median(partial(client.get, f"/v1/jobs?limit={limit}", list[JobView]))
        own = (cpu_seconds(pid) - before) / REPEATS
        note = f"median of {REPEATS}, with decoding; the daemon's CPU {1000 * own:.0f} ms"
        yield at_most(f"jobs, {name}, API", 1000 * taken, "ms", limit=200, note=note)
    yield at_most("one job, API", 1000 * median(lambda: client.get("/v1/jobs/j-000500", JobView)), "ms", limit=200)
    command = [sys.executable, "-m", "cotenant", "jobs"]
    whole = median(lambda: subprocess.run(command, capture_output=True, check=True))
    yield at_most("cotenant jobs, the whole command", 1000 * whole, "ms", limit=200, note="a page of 1,000")


def passes(state: Path, kinds: int) -> Iterator[Figure]:
    """A scheduling pass in this process over a queue in which no job fits."""
    fill(state, QUEUED, kinds)
    with Journal.open(state / "journal.db") as journal:
        found, unchanged, changed = asyncio.run(measured_passes(state, journal))
    if kinds == KINDS:
        yield Figure(name=f"finding {QUEUED:,} queued jobs again, CPU", figure=found, unit="s")
        yield at_most(f"a pass over {QUEUED:,}, nothing changed, CPU", 1000 * unchanged, "ms", limit=50)
        note = f"{kinds} kinds of demand; a GPU was cordoned or uncordoned, with the write of that"
        yield at_most(f"a pass over {QUEUED:,}, a GPU changed, CPU", 1000 * changed, "ms", limit=50, note=note)
    else:
        note = "every job asks for something else; 170 ms before kinds that cannot fit were dropped"
        yield at_most(f"the same, {kinds:,} kinds, CPU", 1000 * changed, "ms", limit=50, note=note)


def passes_of_users(state: Path, kinds: int) -> Iterator[Figure]:
    """A pass in which fair shares and limits of many users count; no job fits."""
    limits = Limits(gpus=64, memory=MiB(10**6), running=1000, gpu_hours=10**6)
    settings = Settings(policy="binpack", queue="fair", accounts=AccountRules(default=limits))
    with Journal.open(state / "journal.db") as journal:
        fill_for_users(journal, kinds)
        _, again, changed = asyncio.run(measured_passes(state, journal, settings))
    of = f"of {USERS} users, {kinds:,} kinds, CPU"
    note = "order fair, every user has limits"
    yield at_most(f"a pass over {QUEUED:,} {of}", 1000 * again, "ms", limit=50, note=note)
    note = "a GPU was cordoned or uncordoned, with the write of that"
    yield at_most(f"the same {of}, a GPU changed", 1000 * changed, "ms", limit=50, note=note)


def fill_for_users(journal: Journal, kinds: int) -> None:
    """The queue of many users, behind a job that holds both GPUs."""
    now = time.time()
    journal.submit(msgspec.json.encode(FIRST), now)
    for user in range(USERS):
        owner = Owner(10_001 + user, 10_000, f"user{user}", "users")
        own = (job(user * EACH + number, kinds) for number in range(EACH))
        journal.submit_many([(msgspec.json.encode(one), now) for one in own], owner)


def requests_of_users() -> Iterator[Figure]:
    """Requests of one of many users to a daemon for all users, which hides from each what belongs to others."""
    if os.geteuid() != 0:
        return  # only root can serve all users
    with state_folder() as state, tempfile.TemporaryDirectory(prefix="ct") as runtime:
        os.chmod(runtime, 0o755)
        with Journal.open(state / "journal.db") as journal:
            fill_for_users(journal, KINDS)
        options = ("--system", "--queue", "fair")
        with daemon(state, *options, runtime=Path(runtime)) as pid:
            client, of = Client(at=Path(runtime, "cotenant.sock")), f"{USERS} users"
            until(lambda: client.get("/v1/jobs?state=running", list[JobView]))
            before = cpu_seconds(pid)
            taken = as_user("nobody", lambda: seconds(lambda: submit_all(client), time.perf_counter))
            note = f"one after the other, by a user beside {USERS} with {QUEUED:,} queued jobs"
            note += f"; the daemon's CPU {cpu_seconds(pid) - before:.1f} s"
            yield at_most(f"{SUBMITTED:,} submissions, {of}", taken, "s", limit=10, note=note)
            page = partial(client.get, "/v1/jobs?limit=1000", list[JobView])
            listed, note = 1000 * as_user("nobody", lambda: median(page)), "a daemon for all users, order fair"
            yield at_most(f"jobs, a page of 1,000, {of}", listed, "ms", limit=200, note=note)
        stop_jobs(state)


async def measured_passes(state: Path, journal: Journal, settings: Settings = FIFO) -> tuple[float, float, float]:
    """CPU seconds to restore all jobs, of a pass without changes, and of a pass after a change."""
    backend, shares = find_backend(2, MiB(1024)), Shares(Means.SLOTS, None, "bench")
    paths = Paths(agent=state / "agent.sock")
    resources = Resources(
        state=state, journal=journal, backend=backend, paths=paths, shares=shares, launch=lambda folder: None
    )
    engine = Engine(resources, settings)
    start = time.process_time()
    engine.recover()
    found = time.process_time() - start
    gc.collect()
    gc.freeze()  # as the daemon does
    engine.schedule()

    def after_changes() -> None:
        for cordoned in (True, False):
            engine.cordon("0", cordoned)
            engine.schedule()

    return found, median(engine.schedule, time.process_time), median(after_changes, time.process_time) / 2


# Measuring


def seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def median(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of wall-clock time, or of another clock."""
    return statistics.median(seconds(run, clock) for _ in range(REPEATS))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


# The daemon under test


@contextmanager
def state_folder() -> Iterator[Path]:
    state = Path(tempfile.mkdtemp(prefix="ct"))  # a socket's path must be short
    before = os.environ.get("COTENANT_STATE")
    os.environ["COTENANT_STATE"] = str(state)
    try:
        yield state
    finally:
        shutil.rmtree(state, ignore_errors=True)
        del os.environ["COTENANT_STATE"]
        if before is not None:
            os.environ["COTENANT_STATE"] = before


@contextmanager
def daemon(state: Path, *options: str, runtime: Path | None = None) -> Iterator[int]:
    """Starts a daemon and yields its process ID; `runtime` is the folder of the socket of one for all users."""
    command = [sys.executable, "-m", "cotenant", "up", "--simulate", "2", "--gpu-memory", "1GiB", *options]
    at = (runtime or state) / "cotenant.sock"
    env = {**os.environ, "COTENANT_RUNTIME": str(runtime or state)}
    with (
        (state / "daemon.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=env) as process,
    ):
        try:
            until(lambda: process.poll() is not None or answers(at))
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def answers(at: Path) -> bool:
    try:
        return bool(Client(at=at).get("/v1/status", dict[str, object]))
    except NoDaemonError:
        return False


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the daemon did not come so far in a minute")
        time.sleep(0.05)


def stop_jobs(state: Path) -> None:
    """Kills the processes that a stopped daemon left running, and waits for them."""
    for run in (state / "jobs").glob("*/*/"):
        attempts.cancel(run)
        until((run / "exit").exists)
