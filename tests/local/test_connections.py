# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that open many connections, or read nothing: no job is lost, and log and memory stay small."""

import asyncio
import errno
import json
import os
import resource
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cotenant.local import attempts
from cotenant.local.runs import Runs
from tests.local.daemon import Daemon, running_daemon, until
from tests.local.test_runs import DONE, soon, started

FILES = 256
"""the daemon's limit of open files"""


LIMITED = ("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "limited")


def test_idle_connections_without_end_lose_no_job_and_do_not_fill_the_log(tmp_path: Path) -> None:
    with running_daemon(prefix=LIMITED) as daemon, ExitStack() as stack:
        jobs = [daemon.submit("sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done").id for _ in range(3)]
        until(lambda: all(daemon.job(job).state == "running" for job in jobs))
        for _ in range(FILES + 60):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(daemon.state / "cotenant.sock"))
        (tmp_path / "go").touch()
        assert [daemon.ended(job).code for job in jobs] == [0, 0, 0]
        assert daemon.ended(daemon.submit("true").id).code == 0
        assert (daemon.state / "daemon.log").stat().st_size < 20_000


IMPATIENT = """
import sys
import cotenant.local.daemon
from cotenant.cli.main import main
cotenant.local.daemon.HEAD_S = 0.2
del sys.argv[1 : sys.argv.index("up")]
main()
"""
"""a daemon that gives a request less time to arrive"""


@pytest.mark.slow
def test_a_request_that_never_ends_is_hung_up_on_and_others_are_served() -> None:
    with (
        running_daemon(prefix=(sys.executable, "-c", IMPATIENT)) as daemon,
        socket.socket(socket.AF_UNIX) as slow,
    ):
        slow.settimeout(60)
        slow.connect(str(daemon.state / "cotenant.sock"))
        slow.send(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n")
        assert slow.recv(1) == b"", "the daemon closes the connection"
        assert daemon.ended(daemon.submit("true").id).code == 0


def test_a_run_that_cannot_be_looked_at_now_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "j-000001" / "1"
    started(folder)
    (folder / "exit").write_text(json.dumps(DONE._asdict()))
    status, looks = attempts.status, []

    def out_of_files(folder: Path) -> attempts.Status:
        looks.append(folder)
        if len(looks) < 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return status(folder)

    monkeypatch.setattr(attempts, "status", out_of_files)

    async def watch() -> None:
        ended = asyncio.Event()
        runs = Runs(tmp_path)
        runs.changed.subscribe(lambda job, attempt, status: ended.set())
        runs.look("j-000001", 1)
        await soon(ended)

    asyncio.run(watch())
    assert len(looks) == 2


def test_the_daemon_raises_its_limit_of_open_files_but_not_that_of_its_jobs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        with running_daemon() as daemon:
            job = daemon.submit("sh", "-c", "ulimit -n").id
            assert daemon.ended(job).code == 0
            assert b"".join(daemon.client.lines(f"/v1/jobs/{job}/log")) == f"{min(soft, 512)}\n".encode()
            assert resource.prlimit(pid_of(daemon), resource.RLIMIT_NOFILE)[0] == min(hard, 65_536) > 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def pid_of(daemon: Daemon) -> int:
    return int(daemon.client.get("/v1/status", dict[str, Any])["pid"])


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_port_that_other_machines_can_reach_is_warned_of(tmp_path: Path, host: str, warned: bool) -> None:
    token = tmp_path / "token"
    token.write_text("x" * 20)
    token.chmod(0o600)
    with running_daemon("--listen", f"{host}:0", "--token-file", str(token)) as daemon:
        log = (daemon.state / "daemon.log").read_text()
        assert f"at http://{host}:{daemon.port}\n" in log
        assert ("is not encrypted" in log) is warned
