# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The journal keeps what it accepted, through kills, full disks and wrong hands."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.errors import CotenantError
from cotenant.local import journal as journal_module
from cotenant.local.journal import EVENTS_BETWEEN_SWEEPS, EVENTS_KEPT, Journal
from cotenant.local.journal_schema import MIGRATIONS, JournalError
from cotenant.local.lifecycle import ACTIVE, JobState, WrongStateError

REQUEST = b'{"command": ["true"], "cwd": "/", "name": "tiny"}'
SOURCES = str(Path(journal_module.__file__).parents[2])


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.db") as opened:
        yield opened


def run_apart(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python process of its own, with the journal at hand."""
    imports = "import sys\nfrom cotenant.local.journal import *\nfrom cotenant.local.journal_schema import JournalError"
    command = [sys.executable, "-c", f"{imports}\n{code}", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": SOURCES}
    )


def test_ids_grow_and_the_queue_keeps_its_order(journal: Journal) -> None:
    assert journal.submit(REQUEST, 5.0) == "j-000001"
    assert journal.submit_many([(REQUEST, 4.0), (REQUEST, 3.0)]) == ["j-000002", "j-000003"]
    assert [job.id for job in journal.queued_in_order()] == ["j-000001", "j-000002", "j-000003"]
    assert journal.job("j-000002").submitted == 4.0
    assert journal.job("j-000002").request == REQUEST


def test_a_job_is_found_by_id_or_by_its_newest_name(journal: Journal) -> None:
    journal.submit_many([(REQUEST, 1.0), (REQUEST, 2.0), (b'{"command": ["x"]}', 3.0)])
    assert [found and found.id for found in map(journal.find, ("j-000001", "tiny", "other", "j-9", "j-x", "j-²"))] == [
        "j-000001",
        "j-000002",
        None,
        None,
        None,
        None,
    ]
    with pytest.raises(CotenantError, match="no job 'j-000009'"):
        journal.job("j-000009")


def test_a_transition_happens_once(journal: Journal) -> None:
    job = journal.submit(REQUEST, 1.0)
    started = journal.transition(job, ("queued",), JobState.STARTING, slot="[0]", attempts=1, started=2.0)
    assert (started.state, started.slot, started.attempts, started.started) == ("starting", "[0]", 1, 2.0)
    with pytest.raises(WrongStateError, match="j-000001 is starting, not queued"):
        journal.transition(job, ("queued",), JobState.STARTING)
    ended = journal.transition(job, ACTIVE, JobState.FINISHED, outcome="signalled", signal=9, ended=3.0)
    assert (ended.state, ended.outcome, ended.signal, ended.code, ended.slot) == (
        "finished",
        "signalled",
        9,
        None,
        "[0]",
    )
    assert len(journal.jobs(("finished",))) == 1


def test_changes_together_happen_all_or_not_at_all(journal: Journal) -> None:
    first, second = journal.submit_many([(REQUEST, 1.0), (REQUEST, 1.0)])

    def start_and_finish() -> None:
        with journal.transaction():
            journal.transition(first, ("queued",), JobState.STARTING)
            journal.transition(second, ("running",), JobState.FINISHED)

    with pytest.raises(WrongStateError):
        start_and_finish()
    assert journal.job(first).state == "queued"
    with journal.transaction():
        journal.transition(first, ("queued",), JobState.STARTING)
        journal.record_event(1.0, "started", first, "on GPU 0")
    assert journal.job(first).state == "starting"


def test_listing_by_state_and_in_pages(journal: Journal) -> None:
    ids = journal.submit_many([(REQUEST, 1.0)] * 10)
    for job in ids[:4]:
        journal.transition(job, ("queued",), JobState.STARTING)
        journal.transition(job, ("starting",), JobState.RUNNING)
    assert [job.id for job in journal.jobs(("running",), limit=3)] == ids[1:4]
    assert [job.id for job in journal.jobs(("running",), limit=3, after="j-000000")] == ids[:3]
    assert [job.id for job in journal.jobs(("running",), limit=3, after=ids[2])] == ids[3:4]
    assert [job.id for job in journal.jobs(limit=100, after=ids[7])] == ids[8:]
    assert [job.state for job in journal.jobs(("queued", "running"))] == ["running"] * 4 + ["queued"] * 6


def test_only_the_last_events_are_kept(journal: Journal) -> None:
    last = 0
    with journal.transaction():
        for i in range(EVENTS_KEPT + 2 * EVENTS_BETWEEN_SWEEPS):
            last = journal.record_event(float(i), "tick", None if i % 2 else "j-000007", str(i))
    kept = journal.events(after=0, limit=10**6)
    assert EVENTS_KEPT <= len(kept) <= EVENTS_KEPT + EVENTS_BETWEEN_SWEEPS
    assert kept[-1].id == last
    assert [event.job for event in journal.events(last - 2, 10)] == ["j-000007", None]


def test_settings_are_remembered_and_forgotten(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        journal.remember("cordoned", '["GPU-1"]')
        journal.remember("other", "x")
        journal.remember("other", None)
    with Journal.open(tmp_path / "journal.db") as journal:
        assert (journal.recall("cordoned"), journal.recall("other")) == ('["GPU-1"]', None)


def test_ids_are_not_used_again_after_a_restart(tmp_path: Path) -> None:
    for number in range(1, 4):
        with Journal.open(tmp_path / "journal.db") as journal:
            assert journal.submit(REQUEST, 1.0) == f"j-{number:06d}"


def test_threads_may_share_it(journal: Journal) -> None:
    threads = [threading.Thread(target=lambda: [journal.submit(REQUEST, 1.0) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(journal.queued_in_order()) == 40


def test_ten_thousand_jobs_are_listed_quickly(journal: Journal) -> None:
    journal.submit_many([(REQUEST, 1.0)] * 10_000)
    began = time.thread_time()
    assert len(journal.queued_in_order()) == 10_000
    assert time.thread_time() - began < 0.25  # about 0.03 s; room for a slow machine


def test_a_second_opener_is_told_who_has_it(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=f"in use by another daemon, process {os.getpid()}"):
        Journal.open(tmp_path / "journal.db")
    journal.submit(REQUEST, 1.0)


def test_a_journal_of_the_first_schema_is_brought_up_to_date_and_keeps_its_jobs(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "journal.db")
    database.executescript(f"{MIGRATIONS[0]}; PRAGMA user_version = 1;")
    insert = "INSERT INTO jobs (number, name, state, submitted, attempts, request) VALUES (?, ?, ?, ?, ?, ?)"
    database.executemany(insert, [(1, "a", "finished", 1.0, 2, b"{}"), (7, None, "queued", 2.0, 0, b"{}")])
    database.commit()
    database.close()
    with Journal.open(tmp_path / "journal.db") as journal:
        first, second = journal.jobs()
        assert (first.id, first.state, first.attempts, first.forgiven, first.stop) == (
            "j-000001",
            "finished",
            2,
            0,
            None,
        )
        assert (second.id, second.submitted, second.request) == ("j-000007", 2.0, b"{}")
        assert journal.find("a") == first
        assert journal.submit(b"{}", 3.0) == "j-000008"


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal.open(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"schema version 99, this cotenant knows versions up to \d.*newer cotenant"):
        Journal.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("where", [0, 4096 + 3, None])
def test_a_damaged_journal_is_refused_and_kept(tmp_path: Path, where: int | None) -> None:
    path = tmp_path / "journal.db"
    with Journal.open(path) as journal:
        journal.submit_many([(REQUEST, 1.0)] * 500)
    content = bytearray(path.read_bytes())
    if where is None:
        content = content[: len(content) // 2]
    else:
        content[where : where + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(JournalError, match=r"is damaged .*left as it is"):
        Journal.open(path)
    assert path.read_bytes() == content


def test_a_folder_that_takes_no_files_is_a_clear_error() -> None:
    with pytest.raises(JournalError, match=r"cannot open the journal /sys/journal.db: .* folder that it can write to"):
        Journal.open(Path("/sys/journal.db"))


def test_a_full_disk_refuses_new_jobs_and_keeps_the_accepted(tmp_path: Path) -> None:
    fill = """if True:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))  # no file may grow further, as on a full disk
        journal = Journal.open(Path(sys.argv[1]))
        try:
            while True:
                print(journal.submit(b'{"pad": "%s"}' % (b"x" * 3000), 1.0), flush=True)
        except JournalError as error:
            print(error, file=sys.stderr)
        print(len(journal.queued_in_order()), file=sys.stderr)
        """
    process = run_apart(fill, tmp_path / "journal.db")
    accepted, errors = process.communicate(timeout=50)
    sentence, count = errors.splitlines()
    assert "cannot write the journal" in sentence
    assert "free some space on that disk" in sentence
    assert int(count) == len(accepted.split()) > 10
    with Journal.open(tmp_path / "journal.db") as journal:
        assert [job.id for job in journal.queued_in_order()] == accepted.split()
        journal.submit(REQUEST, 1.0)


@pytest.mark.slow
def test_what_was_accepted_survives_kill_9(tmp_path: Path) -> None:
    write = """if True:
        journal = Journal.open(Path(sys.argv[1]))
        while True:
            job = journal.submit(b'{"command": ["true"]}', 1.0)
            print("submitted", job, flush=True)
            journal.transition(job, ("queued",), JobState.STARTING, attempts=1)
            print("starting", job, flush=True)
            for job in journal.submit_many([(b'{"command": ["true"]}', 1.0)] * 3):
                print("submitted", job, flush=True)
        """
    chance = random.Random(4)
    accepted: dict[str, str] = {}
    for _ in range(20):
        process = run_apart(write, tmp_path / "journal.db")
        assert process.stdout is not None
        assert process.stderr is not None
        said = [process.stdout.readline() for _ in range(chance.randint(1, 12))]
        time.sleep(chance.uniform(0.0, 0.01))
        process.send_signal(signal.SIGKILL)
        with process:
            said += process.stdout  # `communicate` would not return what `readline` has read ahead
            assert process.stderr.read() == ""
        for line in said:
            if line.endswith("\n"):
                word, job = line.split()
                assert word == "starting" or job not in accepted, "an id was given twice"
                accepted[job] = word
    with Journal.open(tmp_path / "journal.db") as journal:
        there = {job.id: job for job in journal.jobs(limit=-1)}
    assert len(accepted) > 20
    assert set(accepted) <= set(there)
    assert all(there[job].state == "starting" for job, word in accepted.items() if word == "starting")
    assert all(json.loads(job.request) == {"command": ["true"]} for job in there.values())


def test_what_a_killed_daemon_was_starting_may_hold_the_lock_for_a_moment(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    path = tmp_path / "journal.db"
    Journal.open(path).close()
    hold = "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.flock(f, 2); print(flush=True); time.sleep(0.5)"
    lock = Path(f"{path}.lock")
    lock.write_text(str(dead.pid))
    with subprocess.Popen([sys.executable, "-c", hold, str(lock)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        Journal.open(path).close()


def test_the_name_of_a_new_journal_is_on_the_disk_before_a_job_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    with Journal.open(tmp_path / "journal.db"):
        assert str(tmp_path) in synced, "a power failure could lose the whole file"
