# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of the journal that are damaged, or that a newer version wrote: each is set aside, and all else goes on."""

import json
import sqlite3
from pathlib import Path

import pytest

from cotenant.client.problems import NotFoundError, RefusedByDaemonError
from cotenant.local.journal import Journal
from cotenant.local.lifecycle import JobState, request_of, unreadable
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView
from tests.local.daemon import Daemon, running_daemon, until

FULL = {"gpus": 2, "memory": "100%"}
"""a job that leaves no room on either GPU"""


def change_rows(state: Path, change: str, *values: object) -> None:
    with sqlite3.connect(state / "journal.db") as database:
        database.execute(change, values)
    database.close()


def newer(job: str) -> tuple[str, bytes, int]:
    """Changes the request of a job as a newer version might have stored it."""
    request = {"command": ["true"], "cwd": "/", "memory": "100MiB", "invented_later": 3}
    return "UPDATE jobs SET request = ? WHERE number = ?", json.dumps(request).encode(), int(job[2:])


@pytest.mark.slow
def test_a_queued_request_of_a_newer_version_is_set_aside_and_runs_when_it_can_be_read_again() -> None:
    with running_daemon() as daemon:
        blocker = daemon.submit("sleep", "60", **FULL).id
        first, damaged, second = (daemon.submit("true", name=name).id for name in ("first", "damaged", "second"))
        daemon.kill()
        with sqlite3.connect(daemon.state / "journal.db") as database:
            (before,) = database.execute("SELECT request FROM jobs WHERE number = ?", (int(first[2:]),)).fetchone()
        database.close()
        change_rows(daemon.state, *newer(first))
        change_rows(daemon.state, "UPDATE jobs SET request = ? WHERE number = ?", b"\xff{", int(damaged[2:]))
        daemon.up()
        for job, why in ((first, "unknown field `invented_later`"), (damaged, "")):
            view = daemon.job(job)
            assert view.state == "queued"
            assert "set aside: its request cannot be read" in (view.reason or "")
            assert why in (view.reason or "")
            assert daemon.client.get(f"/v1/jobs/{job}/why", dict[str, object])["reason"] == view.reason
        daemon.client.post(f"/v1/jobs/{blocker}/cancel", JobView)
        assert daemon.ended(second).code == 0
        assert [one.id for one in daemon.client.get("/v1/jobs?state=queued", list[JobView])] == [first, damaged]
        log = (daemon.state / "daemon.log").read_text()
        assert log.count(f"{first} is set aside") == log.count(f"{damaged} is set aside") == 1
        assert daemon.client.post(f"/v1/jobs/{damaged}/cancel", JobView).state == "cancelled"
        with pytest.raises(RefusedByDaemonError, match="its stored request cannot be read"):
            daemon.client.post(f"/v1/jobs/{damaged}/retry", JobView)
        daemon.kill()
        change_rows(daemon.state, "UPDATE jobs SET request = ? WHERE number = ?", before, int(first[2:]))
        daemon.up()
        assert daemon.ended(first).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "state = 'paused'",
        "submitted = 'yesterday'",
        "attempts = 'many'",
        "started = x'00'",
        "code = 'zero'",
        "request = 'text'",
    ],
)
def test_a_damaged_row_is_left_out_and_everything_else_goes_on(change: str) -> None:
    with running_daemon() as daemon:
        good, bad = daemon.submit("true").id, daemon.submit("true").id
        daemon.ended(good)
        daemon.ended(bad)
        change_rows(daemon.state, f"UPDATE jobs SET {change} WHERE number = ?", int(bad[2:]))
        assert [one.id for one in daemon.client.get("/v1/jobs", list[JobView])] == [good]
        daemon.kill()
        daemon.up()
        assert [one.id for one in daemon.client.get("/v1/jobs", list[JobView])] == [good]
        with pytest.raises(NotFoundError):
            daemon.job(bad)
        assert f"{bad} left out of all answers: its row in the journal is damaged" in log_of(daemon)
        assert daemon.ended(daemon.submit("true").id).code == 0


def log_of(daemon: Daemon) -> str:
    return (daemon.state / "daemon.log").read_text()


@pytest.mark.parametrize("slot", ["not json", '{"gpus": "all"}'])
def test_a_running_job_that_cannot_be_read_keeps_its_gpus_until_it_ends(slot: str, tmp_path: Path) -> None:
    with running_daemon() as daemon:
        wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 3"
        job = daemon.submit("sh", "-c", wait, retries=1).id
        until(lambda: daemon.job(job).state == "running")
        daemon.kill()
        change_rows(daemon.state, "UPDATE jobs SET request = x'7b', slot = ? WHERE number = ?", slot, int(job[2:]))
        daemon.up()
        assert [gpu.tenants for gpu in daemon.client.get("/v1/gpus", list[GpuView])] == [(job,), (job,)]
        other = daemon.submit("true").id
        assert daemon.job(other).state == "queued"
        (tmp_path / "go").touch()
        assert (daemon.ended(job).code, daemon.ended(other).code) == (3, 0)


def test_the_readable_part_of_a_request_is_used_with_gpus_of_its_own(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        content = {"command": ["true"], "cwd": "/", "memory": "100MiB", "retries": 2, "invented_later": 3}
        record = journal.job(journal.submit(json.dumps(content).encode(), 1.0))
        assert "invented_later" in (unreadable(record) or "")
        assert request_of(record) == JobRequest(command=("true",), cwd="/", memory="100MiB", retries=2, exclusive=True)
        contradicting = record._replace(request=b'{"command":["true"],"cwd":"/","memory":"much"}')
        assert "give a unit" in (unreadable(contradicting) or "")
        assert request_of(contradicting).command == ("unknown",)
        assert journal.damaged() == []
        assert record.state is JobState.QUEUED


@pytest.mark.parametrize("key", ["cordoned", "simulated"])
def test_a_damaged_setting_does_not_stop_the_daemon(key: str) -> None:
    with running_daemon() as daemon:
        daemon.kill()
        change_rows(daemon.state, "INSERT OR REPLACE INTO remembered VALUES (?, ?)", key, "{]")
        daemon.up()
        assert f"the stored setting '{key}' cannot be read and is ignored" in log_of(daemon)
        assert daemon.ended(daemon.submit("true").id).code == 0
