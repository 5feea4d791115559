# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed again and again, at any moment: no accepted job is lost, and none runs twice."""

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
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cotenant.cli.client import Client, NoDaemonError
from cotenant.wire.local import JobRequest, JobView
from tests.local.daemon import SOURCE

pytestmark = pytest.mark.slow

KILLS, JOBS = 50, 60
PATIENCE_S = 90.0


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ct"))  # a socket's path must be short
    monkeypatch.setenv("COTENANT_STATE", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


# Imports the daemon once; for each line it is sent it becomes two, of which one is the daemon. So a daemon is there in
# a moment, and even its first moments can be hit.
STARTER = """if True:
    import os, signal, sys
    from pathlib import Path
    from cotenant.local.daemon import Options, run
    state = Path(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            log = os.open(state / "daemon.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            run(Options(state=state, simulate=2, gpu_memory="2GiB"))
            os._exit(0)
        print(pid, flush=True)
    """


class Crashing:
    """A daemon that can be started in a moment and killed in any."""

    def __init__(self, state: Path) -> None:
        self._log = state / "daemon.log"
        command = [sys.executable, "-c", STARTER, str(state)]
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


def submit(mark: str, folder: Path, chance: random.Random) -> str | None:
    """The id of an accepted job, which leaves its mark once each time it runs; None where nobody answered."""
    script = f"echo {mark} >> ran; sleep {chance.uniform(0.05, 1.0):.2f}; exit {len(mark) % 2}"
    request = JobRequest(command=("sh", "-c", script), cwd=str(folder), env={"MARK": mark}, memory="100MiB")
    try:
        return Client().post("/v1/jobs", JobView, msgspec.json.encode(request)).id
    except NoDaemonError:
        return None


def all_jobs() -> list[JobView]:
    return Client().get("/v1/jobs?limit=20000", list[JobView])


def kill_again_and_again(daemon: Crashing, chance: random.Random, folder: Path) -> tuple[dict[str, str], list[JobView]]:
    """The marks of all jobs that were accepted meanwhile, by id; and all jobs, once they have ended."""
    accepted: dict[str, str] = {}
    tries = 0
    for kill in range(KILLS):
        daemon.start()
        until = time.monotonic() + chance.uniform(0.05, 0.6)
        while time.monotonic() < until:
            # A few at a time, so that jobs of all ages are about at every kill.
            if len(accepted) < min(JOBS, 2 * (kill + 1)):
                tries += 1
                mark = f"m{tries}"
                if (job := submit(mark, folder, chance)) is not None:
                    accepted[job] = mark
            time.sleep(0.01)
        daemon.end(signal.SIGKILL)
    daemon.start()
    deadline = time.monotonic() + PATIENCE_S
    while (jobs := ended_jobs()) is None or len(accepted) < JOBS:
        assert time.monotonic() < deadline, "it did not end in time"
        tries += 1
        if jobs is not None and (job := submit(f"m{tries}", folder, chance)) is not None:
            accepted[job] = f"m{tries}"
        time.sleep(0.05)
    return accepted, jobs


def test_fifty_kills_lose_no_job_and_run_none_twice(state: Path, tmp_path: Path) -> None:
    seed = int(os.environ.get("COTENANT_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"COTENANT_SEED={seed}")  # shown when it fails
    chance = random.Random(seed)
    with closing(Crashing(state)) as daemon:
        accepted, jobs = kill_again_and_again(daemon, chance, tmp_path)
        kept = {job.id: mark_of(job.id) for job in jobs}
    ran = Counter((tmp_path / "ran").read_text().split())
    assert accepted.items() <= kept.items()  # a job may be there although its owner did not hear so
    assert ran == Counter(kept.values())
    assert {job.id: (job.state, job.outcome, job.code, job.attempts) for job in jobs} == {
        job: ("finished", "exited", len(mark) % 2, 1) for job, mark in kept.items()
    }
    with sqlite3.connect(state / "journal.db") as journal:
        assert journal.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    journal.close()


def ended_jobs() -> list[JobView] | None:
    """All jobs, once all have ended and the daemon answers."""
    try:
        jobs = all_jobs()
    except NoDaemonError:
        return None
    return jobs if all(job.ended is not None for job in jobs) else None


def mark_of(job: str) -> str:
    request = Client().get(f"/v1/jobs/{job}", JobView).request
    assert request is not None
    return request.command[2].split()[1]  # the environment is never shown
