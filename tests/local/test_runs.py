# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs that are not what they seem at the first look are looked at again, and none is reported as ended that is not."""

import asyncio
import fcntl
import json
import os
from pathlib import Path

from cotenant.errors import CotenantError
from cotenant.local import attempts
from cotenant.local.run_files import VERSION, Exit, Spec, boot_id
from cotenant.local.runs import Runs

NOBODY = (1 << 22) - 1
"""a process id that is (nearly) never given out"""
DONE = Exit("exited", 0, None, None, 1.0, 2.0, 3)


def started(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "intent").write_text(json.dumps({"boot": boot_id(), "pid": NOBODY, "start": 1, "token": "t"}))


async def soon(condition: asyncio.Event) -> None:
    await asyncio.wait_for(condition.wait(), 30)


def test_a_supervisor_that_cannot_be_seen_is_not_taken_for_ended(tmp_path: Path) -> None:
    folder = tmp_path / "j-000001" / "1"
    started(folder)
    states: list[str] = []

    async def watch() -> None:
        ended = asyncio.Event()

        def seen(job: str, attempt: int, status: attempts.Status) -> None:
            states.append(status.state)
            ended.set()

        runs = Runs(tmp_path)
        runs.changed.subscribe(seen)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # it lives, in a place that we cannot look into
            runs.look("j-000001", 1)
            assert states == []
            (folder / "exit").write_text(json.dumps(DONE._asdict()))
        await soon(ended)

    asyncio.run(watch())
    assert states == ["ended"]


def test_an_end_that_could_not_be_written_down_is_reported_again(tmp_path: Path) -> None:
    folder = tmp_path / "j-000001" / "1"
    started(folder)
    (folder / "exit").write_text(json.dumps(DONE._asdict()))
    reports: list[str] = []

    async def watch() -> None:
        written = asyncio.Event()

        def seen(job: str, attempt: int, status: attempts.Status) -> None:
            reports.append(status.state)
            if len(reports) < 2:
                raise CotenantError("no room on the disk")
            written.set()

        runs = Runs(tmp_path)
        runs.changed.subscribe(seen)
        runs.look("j-000001", 1)
        await soon(written)

    asyncio.run(watch())
    assert reports == ["ended", "ended"]


def test_what_a_lost_run_left_behind_is_removed_while_others_are_served(tmp_path: Path) -> None:
    """A container runtime may hang, and with it the command that removes a container."""
    folder, go = tmp_path / "j-000001" / "1", tmp_path / "go"
    started(folder)
    said, removal = tmp_path / "said", f"while ! [ -e {go} ]; do sleep 0.05; done; echo removed > {tmp_path}/said"
    spec = Spec(["x"], "/", {"PATH": os.environ["PATH"]}, after=["sh", "-c", removal])
    (folder / "spec.json").write_text(json.dumps({"version": VERSION, **spec._asdict()}))
    reports: list[tuple[str, bool]] = []

    async def watch() -> None:
        reported = asyncio.Event()

        def seen(job: str, attempt: int, status: attempts.Status) -> None:
            reports.append((status.state, said.exists()))
            reported.set()

        runs = Runs(tmp_path)
        runs.changed.subscribe(seen)
        runs.look("j-000001", 1)
        await asyncio.sleep(0.1)
        assert reports == [], "its slot is not free yet"
        go.touch()
        await soon(reported)

    asyncio.run(watch())
    assert reports == [("lost", True)]


def test_a_lost_run_that_was_not_cleaned_up_before_the_end_is_left_to_the_next_daemon(tmp_path: Path) -> None:
    jobs = [f"j-{number:06d}" for number in range(1, 4)]
    go, begun, said = tmp_path / "go", tmp_path / "begun", tmp_path / "said"
    begun.write_text("")
    removal = f"echo >> {begun}; while ! [ -e {go} ]; do sleep 0.05; done; echo removed >> {said}"
    spec = Spec(["x"], "/", {"PATH": os.environ["PATH"]}, after=["sh", "-c", removal])
    for job in jobs:
        started(tmp_path / job / "1")
        (tmp_path / job / "1" / "spec.json").write_text(json.dumps({"version": VERSION, **spec._asdict()}))
    reports: list[str] = []

    async def end() -> None:
        both = asyncio.Event()

        def seen(job: str, attempt: int, status: attempts.Status) -> None:
            reports.append(job)
            if len(reports) >= 2:
                both.set()

        runs = Runs(tmp_path)
        runs.changed.subscribe(seen)
        for job in jobs:
            runs.look(job, 1)
        async with asyncio.timeout(60):
            while len(begun.read_text()) < 2:
                await asyncio.sleep(0.01)
        runs.close()  # two are under way, and the third one waits for a thread
        await asyncio.sleep(0.1)
        assert reports == []
        go.touch()
        await soon(both)
        await asyncio.sleep(0.1)

    asyncio.run(end())
    assert (sorted(reports), said.read_text()) == (jobs[:2], "removed\nremoved\n")


def test_a_start_that_fails_is_tried_again_and_says_why_meanwhile(tmp_path: Path) -> None:
    tries: list[str | None] = []

    async def begin() -> None:
        seen = asyncio.Event()
        runs = Runs(tmp_path)
        runs.changed.subscribe(lambda job, attempt, status: seen.set())

        def start() -> None:
            tries.append(runs.delayed.get("j-000001"))
            if len(tries) < 2:
                raise OSError(28, "No space left on device")
            started(tmp_path / "j-000001" / "1")
            (tmp_path / "j-000001" / "1" / "exit").write_text(json.dumps(DONE._asdict()))

        runs.begin("j-000001", 1, start)
        await soon(seen)
        assert runs.delayed == {}

    asyncio.run(begin())
    assert tries == [None, "cannot be started yet, trying again: [Errno 28] No space left on device"]
