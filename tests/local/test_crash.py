# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed again and again, at any moment: no accepted job is lost, none runs twice, and arrays,
dependencies, holds and pauses are obeyed; with a daemon for all users, each job runs as its owner."""

import os
import random
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from cotenant.client.addresses import system_socket
from cotenant.client.client import Client
from cotenant.client.problems import NoDaemonError, RefusedByDaemonError, raise_problem
from cotenant.local.dependencies import Kind, verdict
from cotenant.wire.arrays import Array
from cotenant.wire.dependencies import Condition
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from tests.local.daemon import SOURCE
from tests.local.users import Asker, a_user

pytestmark = pytest.mark.slow

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make users")
KILLS, JOBS = 50, 60
PATIENCE_S = 90.0


class Place(NamedTuple):
    """Where a daemon and its jobs have their files, and by whom jobs are submitted."""

    state: Path
    work: Path
    """the working directory of all jobs, which every user may write to"""
    users: tuple[Asker, ...] = ()
    """empty: by this process"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="ct"))  # a socket's path must be short
    monkeypatch.setenv("COTENANT_STATE", str(folder))
    (folder / "work").mkdir()
    yield Place(folder, folder / "work")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shared_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """For a daemon for all users, and two of them."""
    folder = Path(tempfile.mkdtemp(prefix="ct"))
    folder.chmod(0o755)
    for name, mode in (("state", 0o700), ("work", 0o777)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    for name in ("ran", "users"):
        (folder / "work" / name).touch()
        (folder / "work" / name).chmod(0o666)
    monkeypatch.delenv("COTENANT_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "none"))
    monkeypatch.setenv("COTENANT_RUNTIME", str(folder / "run"))
    with a_user(f"ada{os.getpid():x}") as ada, a_user(f"bob{os.getpid():x}") as bob:
        users = (Asker(ada), Asker(bob))
        yield Place(folder / "state", folder / "work", users)
        for user in users:
            user.end()
    shutil.rmtree(folder, ignore_errors=True)


# Imports the daemon once; for each line it is sent it becomes two, of which one is the daemon. So a daemon is there in
# a moment, and even its first moments can be hit.
STARTER = """if True:
    import os, signal, sys
    from pathlib import Path
    from cotenant.local.daemon import run
    from cotenant.local.daemon_options import Options
    from cotenant.local.system import SystemOptions
    state, system = Path(sys.argv[1]), SystemOptions() if sys.argv[2] == "system" else None
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            log = os.open(state / "daemon.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            run(Options(state=state, simulate=2, gpu_memory="2GiB", system=system))
            os._exit(0)
        print(pid, flush=True)
    """


class Crashing:
    """A daemon that can be started in a moment and killed in any."""

    def __init__(self, place: Place) -> None:
        self._log = place.state / "daemon.log"
        command = [sys.executable, "-c", STARTER, str(place.state), "system" if place.users else "own"]
        self._starter = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": SOURCE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._daemon = -1

    def start(self) -> None:
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._starter.stdin.write("another\n")
        self._daemon = os.pidfd_open(int(self._starter.stdout.readline()))

    def end(self, number: signal.Signals) -> None:
        assert not self._ended(0), self._log.read_text()
        signal.pidfd_send_signal(self._daemon, number)
        assert self._ended(PATIENCE_S)
        os.close(self._daemon)
        self._daemon = -1

    def close(self) -> None:
        if self._daemon >= 0:
            self.end(signal.SIGTERM)
        self._starter.communicate(timeout=PATIENCE_S)

    def _ended(self, within_s: float) -> bool:
        return bool(select.select([self._daemon], [], [], within_s)[0])


class Sent(NamedTuple):
    """What was requested under a mark."""

    mark: str
    code: int
    after: str = ""
    """mark of the job that it waits for, and how that must end"""
    size: int = 0
    """elements, if it is an array"""


def script_of(mark: str, code: int, chance: random.Random) -> str:
    wait = f"sleep {chance.uniform(0.05, 0.6):.2f}"
    return f"echo start {mark} >> ran; echo $(id -un) {mark} >> users; {wait}; echo end {mark} >> ran; exit {code}"


class Submitter:
    """Submits jobs of all kinds, and remembers which were accepted; a daemon that was killed answers nothing."""

    def __init__(self, place: Place, chance: random.Random) -> None:
        self._place, self._folder, self._chance, self._tries = place, place.work, chance, 0
        self.accepted: dict[str, Sent] = {}
        """by id of the job or array"""
        self.held: dict[str, bool] = {}
        """jobs that were held before they started, by id; whether their release was requested"""

    @property
    def jobs(self) -> int:
        return sum(one.size or 1 for one in self.accepted.values())

    def submit(self) -> None:
        self._tries += 1
        kind, code, mark = self._chance.choice(("single", "after", "array", "held")), self._tries % 2, f"m{self._tries}"
        fields: dict[str, Any] = {}
        sent = Sent(mark, code)
        if kind == "after" and self.accepted:
            other = self._chance.choice(list(self.accepted))
            condition = self._chance.choice(("ok", "any", "failed"))
            fields = {"after": (f"{other}:{condition}",)}
            sent = Sent(mark, code, f"{self.accepted[other].mark}:{condition}")
        if kind == "array":
            fields = {"array": Array(indexes="0-3", at_most=2)}
            sent = Sent(mark, code, size=4)
        words = ("sh", "-c", script_of(f"{mark}.{{}}" if kind == "array" else mark, code, self._chance))
        request = JobRequest(command=words, cwd=str(self._folder), memory="100MiB", **fields)
        with suppress(NoDaemonError, RefusedByDaemonError):  # it may wait for a job that has ended in the wrong way
            job = self._submit(msgspec.json.encode(request))
            self.accepted[job] = sent
            if kind == "held" and Client().post(f"/v1/jobs/{job}/hold", JobView).held:
                self.held[job] = False

    def _submit(self, request: bytes) -> str:
        """The ID of the new job, of this user or of a random one."""
        if not self._place.users:
            return Client().post("/v1/jobs", JobView, request).id
        try:
            answer = self._chance.choice(self._place.users).ask(str(system_socket()), "POST", "/v1/jobs", request)
        except OSError as error:
            raise NoDaemonError(str(error)) from None
        if answer.status != 201:
            raise_problem(answer.status, answer.body)
        return str(answer.json()["id"])

    def pause(self) -> None:
        """Stops some job that runs just now."""
        with suppress(NoDaemonError, RefusedByDaemonError):
            running = Client().get("/v1/jobs?state=running", list[JobView])
            if running:
                Client().post(f"/v1/jobs/{self._chance.choice(running).id}/pause", JobView)

    def release(self, job: str) -> None:
        """The mark in the file comes before the request: nothing may run before it."""
        if not self.held[job]:
            with (self._folder / "ran").open("a") as file:
                file.write(f"release {self.accepted[job].mark}\n")
        self.held[job] = True
        with suppress(RefusedByDaemonError, NoDaemonError):  # it was released already
            Client().post(f"/v1/jobs/{job}/release", JobView)


def all_jobs() -> list[JobView]:
    return Client().get("/v1/jobs?limit=20000&requests=1", list[JobView])


def kill_again_and_again(daemon: Crashing, chance: random.Random, submitter: Submitter) -> list[JobView]:
    """All jobs, once they have ended."""
    for kill in range(KILLS):
        daemon.start()
        until = time.monotonic() + chance.uniform(0.05, 0.6)
        while time.monotonic() < until:
            # A few at a time, so that jobs of all ages are about at every kill.
            if submitter.jobs < min(JOBS, 2 * (kill + 1)):
                submitter.submit()
            elif submitter.held and chance.random() < 0.1:
                submitter.release(chance.choice(list(submitter.held)))
            elif chance.random() < 0.1:
                submitter.pause()
            time.sleep(0.01)
        daemon.end(signal.SIGKILL)
    daemon.start()
    deadline = time.monotonic() + PATIENCE_S
    while (jobs := ended_jobs()) is None or submitter.jobs < JOBS:
        assert time.monotonic() < deadline, "it did not end in time"
        if submitter.jobs < JOBS:
            submitter.submit()
        for job in submitter.held:
            submitter.release(job)
        resume_all()
        time.sleep(0.05)
    return jobs


def resume_all() -> None:
    with suppress(NoDaemonError, RefusedByDaemonError):
        for job in all_jobs():
            if job.paused:
                Client().post(f"/v1/jobs/{job.id}/resume", JobView)


@pytest.mark.parametrize("kind", ["place", pytest.param("shared_place", marks=needs_root)])
def test_fifty_kills_lose_no_job_and_run_none_twice(kind: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(kind)
    seed = int(os.environ.get("COTENANT_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"COTENANT_SEED={seed}")  # shown when it fails
    chance = random.Random(seed)
    submitter = Submitter(place, chance)
    with closing(Crashing(place)) as daemon:
        jobs = {mark_of(job): job for job in kill_again_and_again(daemon, chance, submitter)}
    lines = [tuple(line.split()) for line in (place.work / "ran").read_text().splitlines()]
    for name, sent in submitter.accepted.items():  # a job may be there although its owner did not hear so
        marks = [f"{sent.mark}.{index}" for index in range(sent.size)] or [sent.mark]
        assert set(marks) <= jobs.keys(), f"{name} is lost"
    starts = Counter(mark for word, mark in lines if word == "start")
    ends = Counter(mark for word, mark in lines if word == "end")
    ran = {mark for mark, job in jobs.items() if job.outcome != "dependency-failed"}
    assert starts == ends == Counter(dict.fromkeys(ran, 1))
    for mark, job in jobs.items():
        code = int(mark.partition(".")[0][1:]) % 2
        expected = ("finished", "exited", code, 1) if mark in ran else ("cancelled", "dependency-failed", None, 0)
        assert (job.state, job.outcome, job.code, job.attempts) == expected, mark
    users = dict(line.split()[::-1] for line in (place.work / "users").read_text().splitlines())
    assert users == {mark: jobs[mark].user for mark in ran}
    check_dependencies(submitter, jobs, lines)
    check_bounds(submitter, lines)
    for held in submitter.held:
        mark = submitter.accepted[held].mark
        assert lines.index(("release", mark)) < lines.index(("start", mark)), f"{held} was held"
    with sqlite3.connect(place.state / "journal.db") as journal:
        assert journal.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    journal.close()


def check_dependencies(submitter: Submitter, jobs: Mapping[str, JobView], lines: list[tuple[str, ...]]) -> None:
    """A job that waited began after the others had ended as it demanded, and one that could not run did not."""
    for sent in filter(lambda one: one.after, submitter.accepted.values()):
        mark, _, condition = sent.after.partition(":")
        before = [one for one in jobs if one.partition(".")[0] == mark]
        kinds = {kind_of_view(jobs[one]) for one in before}
        assert (jobs[sent.mark].state == "finished") is bool(verdict(Condition(condition), kinds)), sent
        if jobs[sent.mark].state == "finished":
            began = lines.index(("start", sent.mark))
            assert all(lines.index(("end", one)) < began for one in before if ("end", one) in lines), sent


def kind_of_view(job: JobView) -> Kind:
    return "cancelled" if job.state == "cancelled" else "ok" if job.code == 0 else "failed"


def check_bounds(submitter: Submitter, lines: list[tuple[str, ...]]) -> None:
    for sent in filter(lambda one: one.size, submitter.accepted.values()):
        running = 0
        for word, mark in lines:
            if mark.partition(".")[0] == sent.mark:
                running += 1 if word == "start" else -1
                assert running <= 2, f"{running} elements of {sent.mark} ran at a time"


def ended_jobs() -> list[JobView] | None:
    """All jobs, once all have ended and the daemon answers."""
    try:
        jobs = all_jobs()
    except NoDaemonError:
        return None
    return jobs if all(job.ended is not None for job in jobs) else None


def mark_of(job: JobView) -> str:
    assert job.request is not None
    return job.request.command[2].split()[2]
