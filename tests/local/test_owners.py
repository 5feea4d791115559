# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every job has an owner: the user who submitted it, by the kernel's word and in the journal."""

import asyncio
import os
import pwd
import resource
import socket
import sqlite3
import subprocess
from pathlib import Path

import msgspec
import pytest

from cotenant.errors import InputError
from cotenant.history.decisions import DecisionRecorder, begin_line
from cotenant.history.segments import FolderSegments
from cotenant.local import api
from cotenant.local.identity import PEER, Caller, Callers
from cotenant.local.journal import Journal
from cotenant.local.journal_schema import MIGRATIONS
from cotenant.local.logins import origin_of
from cotenant.local.owners import Owner, account_named, account_of, own_account
from cotenant.local.tokens import MOST_PER_USER, TokenAccess, Tokens
from cotenant.node.sockets import Credentials, credentials_of
from cotenant.wire.job_requests import JobRequest
from tests.local.asgi_client import request
from tests.local.daemon import Daemon
from tests.local.engines import engine_on

REQUEST = JobRequest(command=("train",), cwd="/")
ADA = Owner(4_000_001, 4_000_002, "ada", "staff")


def test_the_journal_keeps_the_owner_also_of_a_user_who_is_gone(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        journal.submit_many([(b"{}", 1.0), (b"{}", 2.0)], ADA)
        journal.submit(b"{}", 3.0)
    with Journal.open(tmp_path / "journal.db") as journal:
        assert [job.owner for job in journal.jobs()] == [ADA, ADA, own_account().owner]


def test_jobs_of_an_earlier_version_belong_to_the_user_of_the_daemon(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "journal.db")
    database.executescript(f"{MIGRATIONS[0]}; {MIGRATIONS[1]}; PRAGMA user_version = 2;")
    database.execute("INSERT INTO jobs (state, submitted, request) VALUES ('queued', 1.0, ?)", (b"{}",))
    database.commit()
    database.close()
    with Journal.open(tmp_path / "journal.db") as journal:
        assert [job.owner for job in journal.jobs()] == [own_account().owner]


def test_a_user_is_found_by_number_and_by_name() -> None:
    entry = pwd.getpwuid(os.getuid())
    assert account_of(entry.pw_uid).owner.user == entry.pw_name
    assert account_named(entry.pw_name) == account_of(entry.pw_uid)
    assert account_of(4_000_001, 4_000_002).owner == Owner(4_000_001, 4_000_002, "4000001", "4000002")
    with pytest.raises(InputError, match="no user 'nobody-has-this-name' on this machine"):
        account_named("nobody-has-this-name")


def test_the_caller_is_the_peer_of_the_connection() -> None:
    callers = Callers()
    stranger = callers.of_connection({"state": {PEER: Credentials(1, 4_000_001, 4_000_002)}})
    assert (stranger.owner.uid, stranger.owner.gid, stranger.administrator) == (4_000_001, 4_000_002, False)
    own = callers.of_connection({"state": {PEER: Credentials(1, os.geteuid(), os.getegid())}})
    assert (own.administrator, own.owner) == (True, own_account().owner)
    assert (own.owns(ADA), stranger.owns(own.owner), stranger.owns(stranger.owner)) == (True, False, True)


def test_the_limits_of_a_process_that_has_ended_are_not_those_of_the_daemon() -> None:
    own = Credentials(os.getpid(), os.geteuid(), os.getegid())
    found = origin_of(own)
    assert found is not None
    assert found.limits["NOFILE"] == resource.getrlimit(resource.RLIMIT_NOFILE)
    for peer in (own._replace(pid=2**22 + 1), own._replace(uid=4_000_001)):  # its ID may be another's by now
        with pytest.raises(InputError, match="has ended, so its limits are not known"):
            origin_of(peer)
    assert origin_of(None) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_user_with_a_large_number_is_known_by_it() -> None:
    """The kernel's numbers of users have no sign."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0cotenant-test-{os.getpid()}")
        listener.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0cotenant-test-{os.getpid()}')"
        subprocess.run(["python3", "-I", "-S", "-c", code], user=3_000_000_001, check=True)
        with listener.accept()[0] as connection:
            assert credentials_of(connection).uid == 3_000_000_001


def test_a_token_has_the_rights_of_its_user_until_the_user_is_gone(tmp_path: Path) -> None:
    own = own_account().owner
    with Journal.open(tmp_path / "journal.db") as journal:
        tokens = Tokens(journal)
        made, gone = tokens.create(own, "laptop"), tokens.create(own._replace(user="ada"), "")
        assert made.token.encode() not in (tmp_path / "journal.db-wal").read_bytes()
        access = TokenAccess(Tokens(journal), Callers(), None)  # as after a restart

        def caller(token: str) -> Caller | None:
            return access.identify({"headers": [(b"authorization", f"Bearer {token}".encode())]})

        found = caller(made.token)
        assert found is not None
        assert found.owner == own
        assert caller(gone.token) is None  # the ID belongs to another user now
        assert caller(made.token + "x") is None
        assert [one.label for one in tokens.views(found)] == ["laptop", ""]


def test_a_user_has_a_bounded_number_of_tokens(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        tokens = Tokens(journal)
        for _ in range(MOST_PER_USER):
            tokens.create(ADA, "")
        with pytest.raises(InputError, match="ada has 50 tokens; revoke one"):
            tokens.create(ADA, "")


def test_a_job_and_its_record_show_the_user(tmp_path: Path) -> None:
    async def run() -> None:
        recorder = DecisionRecorder(
            FolderSegments(tmp_path / "decisions"), lambda: begin_line(0.0, "local", "binpack", "fifo", True), print
        )
        with engine_on(tmp_path, decisions=recorder) as (engine, _):
            engine.recover()
            engine.submit(REQUEST, ADA)
            answer = await request(api.application(engine), "POST", "/v1/jobs", msgspec.json.encode(REQUEST))
            assert [job.user for job in engine.queries.jobs((), 9, None)] == ["ada", own_account().owner.user]
            assert answer.json()["user"] == own_account().owner.user
            engine.submit(REQUEST, ADA)
            # What `cancel --all` selects: jobs of others do not count against the limit.
            mine = await request(api.application(engine), "GET", "/v1/jobs?mine=1&limit=1")
            assert [job["id"] for job in mine.json()] == ["j-000002"]
        lines = [msgspec.json.decode(line) for line in recorder.lines(0)]
        recorder.close()
        assert [line["user"] for line in lines if "user" in line] == ["ada", own_account().owner.user, "ada"]

    asyncio.run(run())


@pytest.mark.slow
def test_the_real_daemon_reads_the_credentials_of_its_socket(daemon: Daemon) -> None:
    assert daemon.submit("true").user == own_account().owner.user
