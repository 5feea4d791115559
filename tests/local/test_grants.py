# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose limits are above their requests, with a real daemon over the stand-in driver: a GPU of 4 GiB."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.cli.jobs import describe
from cotenant.client.problems import RefusedByDaemonError
from cotenant.wire.job_views import JobView
from tests.local.daemon import Daemon, until
from tests.local.standin_machine import environment, standin_machine
from tests.native import kit

CARD_MIB = 4096


@pytest.fixture(scope="module")
def running() -> Iterator[Daemon]:
    with standin_machine({"STANDIN_MEMORY_MIB": str(CARD_MIB)}, "--policy", "binpack") as one:
        yield one


@pytest.fixture
def daemon(running: Daemon) -> Iterator[Daemon]:
    yield running
    running.clear()


def submit(daemon: Daemon, mib: int, memory: str, *, gate: Path | None = None, **request: object) -> JobView:
    """A job that allocates once, in each run as soon as the file `gate` exists, and computes until it is cancelled."""
    env = {**environment(daemon), "STANDIN_MEMORY_MIB": str(CARD_MIB), "STANDIN_BACKING": "none"}
    wait = () if gate is None else ("sh", "-c", 'until [ -e "$0" ]; do sleep 0.02; done; exec "$@"', str(gate))
    command = (*wait, str(kit.program("run_probe")), str(mib), "600000")
    return daemon.submit(*command, env=env, memory=memory, **request)


def allocated(daemon: Daemon, job: JobView) -> int:
    """The driver's answer to the allocation of a job, as soon as it has one."""

    def said() -> tuple[int] | None:
        text = b"".join(daemon.client.lines(f"/v1/jobs/{job.id}/log?follow=0")).decode()
        answer = kit.values(text).get("allocated") if text.endswith("\n") else None
        return None if answer is None else (answer,)

    return until(said)[0]


def why(daemon: Daemon, job: JobView) -> dict[str, Any]:
    return daemon.client.get(f"/v1/jobs/{job.id}/why", dict[str, Any])


def test_a_job_uses_more_than_it_requests_while_that_is_free(daemon: Daemon) -> None:
    job = submit(daemon, 3000, "1GiB:3500MiB", compute="20%:60%")
    assert allocated(daemon, job) == 0
    until(lambda: daemon.job(job.id).grants[0].memory_used_mib == 3000)
    (listed,) = daemon.client.get("/v1/jobs?state=running", list[JobView])
    (grant,) = listed.grants
    assert (grant.gpu, grant.memory_request_mib, grant.memory_limit_mib) == (0, 1024, 3500)
    assert 3000 <= grant.memory_granted_mib <= 3500
    assert (grant.compute_request_percent, grant.compute_limit_percent, grant.compute_granted_percent) == (20, 60, 60)
    assert "memory on GPU 0: 1 GiB requested, at most 3500 MiB" in why(daemon, job)["notes"][0]
    told = describe(listed, wide=False)
    assert "MEMORY REQUEST MIB  MEMORY LIMIT MIB  MEMORY GRANTED MIB" in told
    assert any("above the request: up to 3500 MiB" in line for line in daemon.job(job.id).enforcement)


def test_a_job_that_needs_its_request_gets_it_and_the_other_one_is_queued_again(daemon: Daemon) -> None:
    borrower = submit(daemon, 3000, "1GiB:3500MiB")
    assert allocated(daemon, borrower) == 0
    owner = submit(daemon, 1500, "2GiB:3GiB")
    assert allocated(daemon, owner) == 0
    again = until(lambda: view if (view := daemon.job(borrower.id)).attempts == 2 else None)
    assert again.ended is None  # it was queued again, and runs within its request
    assert daemon.job(owner.id).attempts == 1
    told = events_until(daemon, borrower, "evicted")
    assert f"its memory may not grow on GPU 0: {owner.id} needs" in told["reclaiming"]
    assert f"above its request on GPU 0, and {owner.id} needs" in told["evicting"]
    assert f"and {owner.id} needs" in told["evicted"]


def events_until(daemon: Daemon, job: JobView, kind: str) -> dict[str, str]:
    """What happened to a job up to an event of a kind: texts by kind."""
    told: dict[str, str] = {}
    rest = b""
    for chunk in daemon.client.lines("/v1/events?after=0"):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                event = msgspec.json.decode(line.removeprefix(b"data: "), type=dict[str, Any])
                if event["job"] == job.id:
                    told[event["kind"]] = event["text"]
        if kind in told:
            break
    return told


@pytest.mark.slow
def test_a_job_that_is_stopped_again_waits_outside_the_queue(daemon: Daemon, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    borrower = submit(daemon, 3000, "1GiB:3500MiB", gate=gate)
    gate.touch()
    until(lambda: [one for one in daemon.job(borrower.id).grants if one.memory_used_mib == 3000])
    gate.unlink()
    owner = submit(daemon, 1500, "2GiB:3GiB")
    assert allocated(daemon, owner) == 0
    daemon.client.post(f"/v1/jobs/{owner.id}/cancel", JobView)
    daemon.ended(owner.id)
    gate.touch()  # before, the second run would have been refused what the first one got
    until(lambda: [one for one in daemon.job(borrower.id).grants if one.memory_used_mib == 3000])
    assert daemon.job(borrower.id).attempts == 2
    owner = submit(daemon, 1500, "2GiB:3GiB")
    waiting = until(lambda: view if (view := daemon.job(borrower.id)).state == "queued" else None)
    assert "waits 5 s: it was stopped 2 times" in (waiting.reason or "")
    assert allocated(daemon, owner) == 0
    assert "waits 5 s" in events_until(daemon, borrower, "backing off")["backing off"]
    until(lambda: daemon.job(borrower.id).attempts == 3)


def test_a_job_without_a_surplus_starts_when_its_whole_request_is_free(daemon: Daemon) -> None:
    borrower = submit(daemon, 3000, "1GiB:3500MiB")
    assert allocated(daemon, borrower) == 0
    newcomer = submit(daemon, 2048, "2GiB")
    assert allocated(daemon, newcomer) == 0
    until(lambda: daemon.job(borrower.id).attempts == 2)
    assert daemon.job(newcomer.id).grants == ()


@pytest.mark.slow
def test_grants_survive_a_kill_of_the_daemon(daemon: Daemon) -> None:
    borrower = submit(daemon, 3000, "1GiB:3500MiB")
    assert allocated(daemon, borrower) == 0
    daemon.kill()
    daemon.up("--policy", "binpack")
    until(lambda: daemon.job(borrower.id).grants and daemon.job(borrower.id).grants[0].memory_used_mib == 3000)
    owner = submit(daemon, 2000, "2GiB:3GiB")
    assert allocated(daemon, owner) == 0
    until(lambda: daemon.job(borrower.id).attempts == 2)


@pytest.mark.parametrize(
    ("memory", "compute", "said"),
    [
        ("6GiB:2GiB", None, "the request is above the limit"),
        ("2GiB:900GiB", None, "the limit is above the largest GPU here .4 GiB."),
        ("0GiB:2GiB", None, "less than 1 MiB"),
        ("2GiB:", None, "give a unit"),
        ("1GiB:50%", None, "in one unit"),
        ("1GiB", "60%:20%", "the request is above the limit"),
        ("1GiB", "0%:20%", "a request of 0 guarantees nothing"),
        ("1GiB", "20%:200%", "is not a percentage"),
    ],
)
def test_an_impossible_range_is_refused(daemon: Daemon, memory: str, compute: str | None, said: str) -> None:
    with pytest.raises(RefusedByDaemonError, match=said):
        submit(daemon, 1, memory, compute=compute)
