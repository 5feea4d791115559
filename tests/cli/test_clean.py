# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant clean`: which jobs it removes and which it keeps, and that a kill in the middle leaves nothing half."""

import asyncio
import json
import os
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.client.problems import NoDaemonError, NotFoundError, RefusedByDaemonError
from cotenant.errors import CotenantError
from cotenant.local.cleaning import Cleaner, Selection
from cotenant.local.journal import Journal
from cotenant.local.lifecycle import JobState
from cotenant.local.pruning import REMOVED, Pruner
from cotenant.wire.arrays import Array
from cotenant.wire.cleaning import Cleaned, CleanRequest
from cotenant.wire.job_views import JobView
from tests.cli.command import refusal, run
from tests.local.daemon import Daemon, running_daemon, until


def clean(daemon: Daemon, **wanted: object) -> Cleaned:
    body = msgspec.json.encode(msgspec.convert(wanted, CleanRequest))
    return daemon.client.post("/v1/clean", Cleaned, body)


def listed(daemon: Daemon) -> set[str]:
    return {job.id for job in daemon.client.get("/v1/jobs?limit=20000", list[JobView])}


def test_ended_jobs_go_with_their_files_and_events_and_others_stay(daemon: Daemon, env: dict[str, str]) -> None:
    good, bad = daemon.submit("sh", "-c", "yes | head -c 3000000").id, daemon.submit("false").id
    assert (daemon.ended(good).code, daemon.ended(bad).code) == (0, 1)
    alive = daemon.submit("sleep", "600").id
    until(lambda: daemon.job(alive).state == "running")
    waiting = daemon.submit("true", gpus=2, memory="100%").id
    planned = run("clean", "--state", "done", "--dry-run", env=env).stdout
    assert planned.startswith("would remove ")
    assert {good, bad, alive, waiting} <= listed(daemon)
    done = json.loads(run("clean", "--state", "done", "-o", "json", env=env).stdout)
    assert [(one["jobs"], one["bytes"] > 2_900_000) for one in done["jobs"] if one["id"] == good] == [(1, True)]
    assert listed(daemon) & {good, bad, alive, waiting} == {bad, alive, waiting}
    assert not (daemon.state / "jobs" / good).exists()
    assert run("show", good, env=env).returncode == 4
    assert f"removed {len(listed(daemon)) - 2} job" in run("clean", "--all", env=env).stdout
    assert listed(daemon) == {alive, waiting}
    assert (daemon.job(alive).state, daemon.job(waiting).state) == ("running", "queued")
    with closing(sqlite3.connect(daemon.state / "journal.db")) as journal:
        kept = {number for (number,) in journal.execute("SELECT DISTINCT job FROM events WHERE job IS NOT NULL")}
        assert kept <= {int(alive[2:]), int(waiting[2:])}
    daemon.clear()
    assert daemon.submit("true").id > waiting, "a number is never used again"


def test_an_age_spares_what_has_ended_since(daemon: Daemon, env: dict[str, str]) -> None:
    job = daemon.ended(daemon.submit("true").id).id
    assert "removed 0 jobs" in run("clean", "--older-than", "1h", env=env).stdout
    assert job in listed(daemon)
    wide = run("clean", "--older-than", "0s", "-o", "wide", env=env).stdout
    assert job in wide
    assert job not in listed(daemon)


def test_named_jobs_are_removed_if_all_of_them_have_ended(daemon: Daemon, env: dict[str, str]) -> None:
    ended = daemon.ended(daemon.submit("true", name="short").id).id
    alive = daemon.submit("sleep", "600").id
    until(lambda: daemon.job(alive).state == "running")
    assert f"{alive} is running; only jobs that have ended can be removed" in refusal("clean", ended, alive, env=env)
    assert ended in listed(daemon)
    assert run("clean", "no-such-job", env=env).returncode == 4
    assert run("clean", "short", env=env).stdout.startswith("removed 1 job")
    assert ended not in listed(daemon)
    daemon.clear()


def test_an_array_goes_as_a_whole(daemon: Daemon, env: dict[str, str]) -> None:
    array = daemon.submit("sh", "-c", "exit {}", array=Array(indexes="0-2")).id
    elements = daemon.client.get(f"/v1/jobs?array={array}", list[JobView])
    for one in elements:
        daemon.ended(one.id)
    assert f"{elements[0].id} is an element of {array}" in refusal("clean", elements[0].id, env=env)
    assert array not in run("clean", "--state", "done", "-o", "wide", env=env).stdout, "two elements have failed"
    assert daemon.job(array).elements == {"done": 1, "failed": 2}
    assert run("clean", array, env=env).stdout.startswith("removed 3 jobs")
    assert listed(daemon).isdisjoint(one.id for one in elements)
    with pytest.raises(NotFoundError, match="no job"):
        daemon.job(array)


@pytest.mark.parametrize("held", [False, True])
def test_a_job_stays_while_another_one_runs_after_it(daemon: Daemon, env: dict[str, str], held: bool) -> None:
    first = daemon.ended(daemon.submit("true").id).id
    blocker = daemon.submit("sleep", "600", gpus=2, memory="100%").id
    until(lambda: daemon.job(blocker).state == "running")
    second = daemon.submit("true", after=(f"{first}:ok", f"{blocker}:any")).id
    if held:
        daemon.client.post(f"/v1/jobs/{second}/hold", JobView)
    done = run("clean", first, env=env)
    assert (done.returncode, first in listed(daemon)) == (2, True)
    assert f"{first} is still there: a job that has not ended runs after it" in done.stderr
    daemon.kill()
    daemon.up()
    if held:
        daemon.client.post(f"/v1/jobs/{second}/release", JobView)
    daemon.client.post(f"/v1/jobs/{blocker}/cancel", JobView)
    assert daemon.ended(second).code == 0
    assert clean(daemon, jobs=[first]).jobs[0].id == first
    with pytest.raises(RefusedByDaemonError, match=f"{first} was removed, but must be done before"):
        daemon.client.post(f"/v1/jobs/{second}/retry", JobView)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "clean: name the jobs, or select them by --older-than, --state or --all"),
        ("j-000001 --all", "clean: name the jobs, or select them by --older-than, --state or --all"),
        ("j-000001 --user ada", "clean: name the jobs, or select them by --older-than, --state or --all"),
        ("--all --user ada --all-users", "clean: give --user or --all-users"),
        ("--older-than 7", "--older-than 7: expected an age, for example 45m, 12h or 30d"),
        ("--state nonsense", "--state nonsense: unknown state"),
    ],
)
def test_what_cannot_be_understood_is_refused(env: dict[str, str], words: str, sentence: str) -> None:
    assert refusal("clean", *words.split(), env=env).startswith(sentence)


def test_jobs_that_wait_or_run_cannot_be_selected(daemon: Daemon, env: dict[str, str]) -> None:
    sentence = "--state running: only jobs that have ended can be removed"
    assert refusal("clean", "--state", "done,running", env=env).startswith(sentence)
    with pytest.raises(RefusedByDaemonError, match="name the jobs, or select them by conditions"):
        clean(daemon, jobs=["j-000001"], state="done")


# A journal and folders without a daemon


def with_ended_jobs(folder: Path, count: int) -> Journal:
    journal = Journal.open(folder / "journal.db")
    request = b'{"command": ["true"], "cwd": "/"}'
    for job in journal.submit_many([(request, 1.0)] * count):
        journal.transition(job, ("queued",), JobState.CANCELLED, ended=2.0)
        (folder / "jobs" / job / "1").mkdir(parents=True)
        (folder / "jobs" / job / "1" / "log").write_text(job)
    return journal


def cleaner_of(folder: Path, journal: Journal) -> tuple[Cleaner, Pruner]:
    pruner = Pruner(
        folder / "jobs",
        ended=lambda: (),
        can_be_pruned=lambda job: journal.job(job).state is JobState.CANCELLED,
        stopping=lambda: False,
    )
    return Cleaner(journal, pruner), pruner


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("at", ["moved", "synced", "removed from the journal"])
def test_what_a_killed_daemon_has_not_removed_the_next_request_removes(tmp_path: Path, at: str) -> None:
    with with_ended_jobs(tmp_path, 3) as journal:
        cleaner, pruner = cleaner_of(tmp_path, journal)
        name = {"moved": "move", "synced": "sync", "removed from the journal": "remove_moved"}[at]
        kill_after(pruner, name, 2 if at == "moved" else 1)
        with pytest.raises(Killed):
            asyncio.run(cleaner.clean(Selection(), dry_run=False))
    with Journal.open(tmp_path / "journal.db") as journal:  # as the next daemon does
        stored = {record.id for record in journal.jobs()}
        assert len(stored) == (0 if at == "removed from the journal" else 3)
        folders = {path.name for path in (tmp_path / "jobs").iterdir()} - {REMOVED}
        assert folders <= stored, "no folder is left without a job that names it"
        cleaner, pruner = cleaner_of(tmp_path, journal)
        asyncio.run(pruner.remove_leftovers())
        asyncio.run(cleaner.clean(Selection(), dry_run=False))
        assert journal.jobs() == []
        assert [path.name for path in (tmp_path / "jobs").iterdir()] == [REMOVED]
        assert list((tmp_path / "jobs" / REMOVED).iterdir()) == []


def kill_after(pruner: Pruner, name: str, calls: int) -> None:
    """The process ends in the n-th call of a method."""
    real, left = getattr(pruner, name), [calls]

    def counted(*words: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return real(*words)

    setattr(pruner, name, counted)


def test_a_job_that_is_run_again_meanwhile_stays(tmp_path: Path) -> None:
    with with_ended_jobs(tmp_path, 2) as journal:
        cleaner, pruner = cleaner_of(tmp_path, journal)
        first, second = (record.id for record in journal.jobs())
        real = pruner.sync

        async def sync() -> None:
            journal.transition(first, ("cancelled",), JobState.QUEUED, ended=None)
            await real()

        pruner.sync = sync  # type: ignore[method-assign]
        done = asyncio.run(cleaner.clean(Selection(), dry_run=False))
        assert [one.id for one in done.jobs] == [second]
        assert [(one.id, one.why) for one in done.kept] == [(first, "it was run again meanwhile")]
        assert [record.id for record in journal.jobs()] == [first]


def test_a_job_stays_until_its_notices_are_sent(tmp_path: Path) -> None:
    with with_ended_jobs(tmp_path, 2) as journal:
        cleaner, _ = cleaner_of(tmp_path, journal)
        first, second = journal.jobs()
        journal.add_notice(first, b"{}")
        done = asyncio.run(cleaner.clean(Selection(), dry_run=False))
        assert [one.id for one in done.jobs] == [second.id]
        assert [(one.id, one.why) for one in done.kept] == [(first.id, "a notice about it has not been sent yet")]
        assert (tmp_path / "jobs" / first.id).exists()


def test_a_failing_journal_keeps_the_rows(tmp_path: Path) -> None:
    with with_ended_jobs(tmp_path, 2) as journal:
        cleaner, _ = cleaner_of(tmp_path, journal)
        journal._database.execute("PRAGMA query_only = ON")
        with pytest.raises(CotenantError, match="cannot write the journal"):
            asyncio.run(cleaner.clean(Selection(), dry_run=False))
        journal._database.execute("PRAGMA query_only = OFF")
        assert len(journal.jobs()) == 2


@pytest.mark.slow
def test_kills_while_a_thousand_jobs_are_removed_leave_nothing_half() -> None:
    with running_daemon() as one:
        array = one.submit("true", gpus=2, memory="100%", array=Array(indexes="0-999")).id
        one.client.post(f"/v1/jobs/{array}/cancel", JobView)
        kept = [one.submit("true", gpus=2).id for _ in range(20)]
        for job in kept:
            one.ended(job)
        for number in range(6):
            for job in listed(one):
                (one.state / "jobs" / job / "1").mkdir(parents=True, exist_ok=True)
            asking = threading.Thread(target=asks_to_clean, args=(one,))
            asking.start()
            time.sleep(0.02 * number)
            one.kill()
            asking.join()
            one.up()
            folders = {path.name for path in (one.state / "jobs").iterdir()} - {REMOVED}
            assert folders <= listed(one), "no folder is left without a job that names it"
            elements = [job for job in listed(one) if job not in kept]
            assert len(elements) in (0, 1000), "an array goes as a whole"
        clean(one)
        assert listed(one) == set()
        until(lambda: os.listdir(one.state / "jobs" / REMOVED) == [])
        assert one.ended(one.submit("true").id).code == 0


def asks_to_clean(daemon: Daemon) -> None:
    with suppress(NoDaemonError, CotenantError):
        clean(daemon)
