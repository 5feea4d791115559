# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Notices about jobs: commands, mail and web hooks, with real processes and a real daemon that is killed."""

import asyncio
import json
import os
import pwd
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from cotenant.client.problems import RefusedByDaemonError
from cotenant.errors import CotenantError, InputError
from cotenant.local.config import Resources
from cotenant.local.events import Events
from cotenant.local.journal import Journal
from cotenant.local.lifecycle import JobState
from cotenant.local.notifications import Notifications, message_of
from cotenant.local.owners import Owner
from cotenant.local.tls import find_certificate
from cotenant.node.launch import Paths
from cotenant.node.shares import Means, Shares
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.notices import Notice, Way, When, parse_notice
from cotenant.wire.pruning import Pruned
from tests.local.daemon import PATIENCE_S, Daemon, running_daemon, until
from tests.local.engines import TWO_CARDS, Cards, engine_on, finish, in_loop
from tests.local.users import SystemDaemon, a_user, system_daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon() as one:
        yield one


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def events(daemon: Daemon, job: str) -> list[str]:
    """What the daemon says about the notices of a job."""
    return events_in(daemon.state, job)


def events_in(state: Path, job: str) -> list[str]:
    with closing(sqlite3.connect(f"file:{state}/journal.db?mode=ro", uri=True)) as journal:
        query = "SELECT text FROM events WHERE kind = 'notified' AND job = ? ORDER BY id"
        return [text for (text,) in journal.execute(query, (int(job[2:]),))]


def tell(path: Path, then: str = "") -> str:
    code = f'echo "$COTENANT_JOB_EVENT $COTENANT_JOB_STATE $COTENANT_JOB_CODE" >> {path}; {then}'
    return f"sh -c '{code}'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mail", Notice(frozenset((When.END,)), Way.MAIL, ("",))),
        ("failed:mail:ada@example.org", Notice(frozenset((When.FAILED,)), Way.MAIL, ("ada@example.org",))),
        ("https://example.org/x?a=b:c", Notice(frozenset((When.END,)), Way.WEB, ("https://example.org/x?a=b:c",))),
        ("start,ok:http://h:1/", Notice(frozenset((When.START, When.OK)), Way.WEB, ("http://h:1/",))),
        ("end:./tell.sh 'two words'", Notice(frozenset((When.END,)), Way.COMMAND, ("./tell.sh", "two words"))),
        ("tell a:b", Notice(frozenset((When.END,)), Way.COMMAND, ("tell", "a:b"))),
    ],
)
def test_what_users_write(text: str, expected: Notice) -> None:
    assert parse_notice(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "end:",
        "mail:-f x",
        "mail:a\nb",
        "https://",
        "http://h:x/",
        "http://a b/",
        "http://u:p@h/",
        "end:sh -c 'x",
        "fialed:mail",
        "finished:https://h/",
    ],
)
def test_what_is_no_notice_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--notify"):
        parse_notice(text)


def test_a_web_hook_is_named_without_its_secret_path() -> None:
    assert parse_notice("https://example.org/secret?token=x").text == "web hook at example.org"


@pytest.mark.slow
def test_commands_are_run_at_their_moments(daemon: Daemon, tmp_path: Path) -> None:
    paths = {when: tmp_path / when for when in ("start", "ok", "failed", "end")}
    notify = [f"{when}:{tell(path)}" for when, path in paths.items()]
    daemon.ended(daemon.submit("true", notify=notify).id)
    until(lambda: len(lines(paths["end"])) == 1 and len(lines(paths["ok"])) == 1 and lines(paths["start"]))
    failed = daemon.submit("sh", "-c", "exit 3", notify=notify).id
    daemon.ended(failed)
    until(lambda: len(events(daemon, failed)) == 3)
    assert {when: lines(path) for when, path in paths.items()} == {
        "start": ["start running "] * 2,
        "ok": ["end finished 0"],
        "failed": ["end finished 3"],
        "end": ["end finished 0", "end finished 3"],
    }


@in_loop
async def test_a_run_that_ends_before_it_is_seen_to_run_has_started(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, journal):
        wanted = JobRequest(command=("true",), cwd="/", memory="100MiB", notify=("start:true", "end:true"))
        first, second = (engine.submit(wanted).id for _ in range(2))
        engine.schedule()
        finish(engine, first)
        finish(engine, second, 127, "exec-failed")
        moments = [json.loads(one.content)["when"] for one in journal.oldest_notices(10)]
    assert moments == ["start", "end", "end"]


def test_a_cancelled_job_has_ended_and_not_failed(daemon: Daemon, tmp_path: Path) -> None:
    notify = [f"end:{tell(tmp_path / 'end')}", f"failed:{tell(tmp_path / 'failed')}"]
    job = daemon.submit("sleep", "100", notify=notify).id
    daemon.client.act(job, "cancel")
    until(lambda: lines(tmp_path / "end"))
    until(lambda: events(daemon, job))
    assert lines(tmp_path / "failed") == []


def test_an_array_is_told_once_at_its_end(daemon: Daemon, tmp_path: Path) -> None:
    view = daemon.submit(
        "sh", "-c", "exit {}", array={"indexes": "0-2"}, notify=[f"failed:{tell(tmp_path / 'failed')}"]
    )
    daemon.client.wait_for(view.id)
    until(lambda: lines(tmp_path / "failed"))
    assert lines(tmp_path / "failed") == ["end finished 1"]
    with pytest.raises(RefusedByDaemonError, match="at its end"):
        daemon.submit("true", array={"indexes": "0-2"}, notify=["start:mail"])
    with pytest.raises(RefusedByDaemonError, match="is not a mail address"):
        daemon.submit("true", notify=["mail:a b"])


class Hook(BaseHTTPRequestHandler):
    """Refuses the first request, and stores the others."""

    received: list[tuple[str, dict[str, object]]]
    refuse: int
    redirect = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.redirect:
            self.send_response(302)
            self.send_header("Location", self.redirect)
            self.end_headers()
            return
        if type(self).refuse:
            type(self).refuse -= 1
            self.send_error(503)
            return
        self.received.append((self.headers["Idempotency-Key"], json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web_hook(refuse: int = 0, redirect: str = "") -> Iterator[tuple[str, list[tuple[str, dict[str, object]]]]]:
    received: list[tuple[str, dict[str, object]]] = []
    kind = type("OneHook", (Hook,), {"received": received, "refuse": refuse, "redirect": redirect})
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/secret-path", received
        finally:
            server.shutdown()
            thread.join()


def test_a_web_hook_gets_json_and_is_asked_again_if_it_fails(daemon: Daemon) -> None:
    with web_hook(refuse=1) as (url, received):
        job = daemon.submit("sh", "-c", "exit 3", name="train", notify=[f"failed:{url}"]).id
        until(lambda: events(daemon, job))
    assert len(received) == 1
    key, facts = received[0]
    assert key.startswith(job)
    assert (facts["id"], facts["code"], facts["outcome"], facts["name"]) == (job, 3, "exited", "train")
    assert "failed with exit code 3" in str(facts["text"])
    assert events(daemon, job) == ["web hook at 127.0.0.1: sent (failed)"]


def test_a_redirect_is_not_followed(daemon: Daemon) -> None:
    with web_hook() as (target, received), web_hook(redirect=target) as (url, _):
        job = daemon.submit("true", notify=[url]).id
        until(lambda: events(daemon, job))
    assert received == []
    assert events(daemon, job) == ["web hook at 127.0.0.1 failed (end): answered with HTTP status 302:"]


def test_a_mail_goes_through_sendmail(daemon: Daemon, tmp_path: Path) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words; cat > {tmp_path}/mail\n')
    program.chmod(0o755)
    job = daemon.submit("true", notify=["mail:ada@example.org"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}).id
    until(lambda: events(daemon, job))
    assert (tmp_path / "words").read_text() == "-i -- ada@example.org\n"
    mail = (tmp_path / "mail").read_text()
    assert "To: ada@example.org\n" in mail
    assert f"Subject: cotenant: {job} is done" in mail


@pytest.mark.parametrize("name", ["=?ascii?b?/w==?=é", "=?utf-8?q?=FF?=é", "=?utf-8?q?=0ABcc:_eve?=", "two\nlines"])
def test_no_name_of_a_job_prevents_its_mail_or_adds_headers(name: str) -> None:
    """Names may contain what the headers of a mail use for other characters. A notice that could never be sent would
    take one of the places of its user for ever."""
    mail = message_of("ada", {"text": f"j-000001 is done ({name})"})
    head = mail.encode().decode().partition("\n\n")[0]
    names = [line.partition(":")[0] for line in head.splitlines() if not line.startswith(" ")]
    assert names == ["To", "Subject", "Content-Type", "Content-Transfer-Encoding", "MIME-Version"]


def test_a_machine_without_sendmail_says_so(daemon: Daemon, tmp_path: Path) -> None:
    if shutil.which("sendmail", path="/usr/sbin:/usr/lib:/usr/bin"):
        pytest.skip("this machine has a sendmail")
    job = daemon.submit("true", notify=["mail"], env={"PATH": str(tmp_path)}).id
    daemon.ended(job)
    until(lambda: events(daemon, job))
    assert "has no sendmail" in events(daemon, job)[0]


def test_why_names_the_notices_that_were_not_sent(daemon: Daemon) -> None:
    job = daemon.submit("true", notify=["end:true", "end:false"]).id
    daemon.ended(job)
    until(lambda: len(events(daemon, job)) == 2)
    notes = daemon.client.get(f"/v1/jobs/{job}/why", dict[str, object])["notes"]
    assert notes == ["notice: command false failed (end): exit code 1"]


def test_a_command_that_cannot_run_or_fails_is_reported(daemon: Daemon) -> None:
    job = daemon.submit("true", notify=["/nowhere/at-all", "sh -c 'echo broken; exit 2'"]).id
    until(lambda: len(events(daemon, job)) == 2)
    found = sorted(events(daemon, job))
    assert "No such file" in found[0]
    assert found[1] == "command sh failed (end): broken"


def test_a_command_that_hangs_is_ended_with_all_of_its_processes_and_reported(tmp_path: Path) -> None:
    """With a second instead of a minute."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    hang = f"sh -c 'echo $$ >> {tmp_path}/pids; setsid sleep 1000 & echo $! >> {tmp_path}/pids; sleep 1000'"
    request = JobRequest(command=("true",), cwd="/", notify=(hang, f"sh -c 'echo done > {tmp_path}/other'"))

    async def send(journal: Journal) -> None:
        resources = Resources(
            state=state,
            journal=journal,
            backend=Cards(TWO_CARDS),
            paths=Paths(agent=state / "agent.sock"),
            shares=Shares(Means.SLOTS, None, "test"),
        )
        notifications = Notifications(journal, resources, Events(journal), time_s=1.0)
        job = journal.submit(msgspec.json.encode(request), 1.0)
        notifications.note(journal.transition(job, ("queued",), JobState.CANCELLED, outcome="cancelled", ended=2.0))
        async with asyncio.timeout(PATIENCE_S):
            while journal.has_notices(job):
                await asyncio.sleep(0.05)
        notifications.close()

    with Journal.open(state / "journal.db") as journal:
        asyncio.run(send(journal))
    found = sorted(events_in(state, "j-000001"))
    assert found == [
        "command sh failed (end): ran for its time limit of 1 s",
        "command sh: sent (end)",
    ]
    assert not any(Path(f"/proc/{pid}").exists() for pid in lines(tmp_path / "pids"))
    assert len(lines(tmp_path / "pids")) == 2


@in_loop
async def test_a_daemon_starts_even_if_notices_cannot_be_read(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, journal):
        job = engine.submit(JobRequest(command=("true",), cwd="/")).id
        with closing(sqlite3.connect(tmp_path / "journal.db")) as damaged:
            damaged.execute("DROP TABLE notices")
        with pytest.raises(CotenantError):
            journal.oldest_notices(1)
        engine.recover()
        assert engine.queries.job(job).state == "queued"


def test_notices_of_one_user_do_not_delay_those_of_another(tmp_path: Path) -> None:
    """Of each user, the oldest are read: however many there are of the first one."""
    with Journal.open(tmp_path / "journal.db") as journal:
        request = msgspec.json.encode(JobRequest(command=("true",), cwd="/"))
        first = journal.job(journal.submit(request, 1.0, Owner(1001, 1001, "ada", "ada")))
        second = journal.job(journal.submit(request, 1.0, Owner(1002, 1002, "bob", "bob")))
        for record in [first] * 100 + [second] * 3:
            journal.add_notice(record, b"")
        assert [one.job for one in journal.oldest_notices(2)] == [first.id, first.id, second.id, second.id]


def test_the_files_of_a_job_are_kept_until_its_notices_are_sent(daemon: Daemon, tmp_path: Path) -> None:
    wait = f"sh -c 'while ! test -e {tmp_path}/go; do sleep 0.1; done'"
    job = daemon.submit("true", notify=[wait]).id
    daemon.ended(job)
    prune = partial(daemon.client.post, "/v1/prune", Pruned, b'{"older_than_s":0}')
    assert job not in [one.id for one in prune().jobs]
    (tmp_path / "go").touch()
    until(lambda: events(daemon, job))
    assert job in [one.id for one in prune().jobs]


@pytest.mark.slow
def test_each_notice_is_sent_once_however_the_daemon_is_killed(tmp_path: Path) -> None:
    with running_daemon() as daemon:
        paths = [tmp_path / str(number) for number in range(6)]
        jobs = [daemon.submit("sleep", "0.2", notify=[f"end:{tell(path, 'sleep 0.3')}"]).id for path in paths]
        for pause in (0.3, 0.2, 0.5, 0.1, 0.4):
            threading.Event().wait(pause)
            daemon.kill()
            daemon.up()
        for job in jobs:
            daemon.ended(job)
        until(lambda: all(map(lines, paths)))
        until(lambda: all(events(daemon, job) for job in jobs))
        assert [len(lines(path)) for path in paths] == [1] * 6


@pytest.fixture(scope="module")
def shared() -> Iterator[SystemDaemon]:
    """Its search path has a sendmail that says what rights it has."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        program = Path(folder) / "sendmail"
        program.write_text("#!/bin/sh\n(id -u; grep NoNewPrivs /proc/self/status; cat) > $HOME/mail\n")
        for path in (Path(folder), program):
            path.chmod(0o755)
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        with system_daemon() as one:
            yield one


root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make users")


@root
def test_a_command_runs_as_the_owner_of_the_job(shared: SystemDaemon) -> None:
    home = Path(pwd.getpwnam(shared.ada).pw_dir)
    code = "id -u; id -G; grep NoNewPrivs /proc/self/status; cat"
    program = f"sh -c '({code} {shared.folder}/state/journal.db) > {home}/told 2>/dev/null'"
    job = shared.submit(shared.ada, "true", notify=[program], cwd=str(home)).id
    shared.ended(job)
    until(lambda: "NoNewPrivs" in "".join(lines(home / "told")))
    entry = pwd.getpwnam(shared.ada)
    assert lines(home / "told") == [str(entry.pw_uid), str(entry.pw_gid), "NoNewPrivs:\t1"]


@root
def test_a_web_hook_is_called_as_the_owner_of_the_job(shared: SystemDaemon) -> None:
    """The kernel knows the user of each connection."""
    users: list[int] = []

    class Watched(Hook):
        received: list[tuple[str, dict[str, object]]] = []  # noqa: RUF012
        refuse = 0

        def do_POST(self) -> None:
            ends = [f"0100007F:{port:04X}" for port in (self.client_address[1], server.server_port)]
            rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()]
            users.extend(int(row[7]) for row in rows if row[1:3] == ends)
            super().do_POST()

    with HTTPServer(("127.0.0.1", 0), Watched) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        shared.submit(shared.ada, "true", notify=[f"http://127.0.0.1:{server.server_port}/"])
        until(lambda: users)
        server.shutdown()
        thread.join()
    assert users == [pwd.getpwnam(shared.ada).pw_uid]


@root
def test_the_certificate_of_a_web_hook_is_checked(shared: SystemDaemon, tmp_path: Path) -> None:
    """One that nobody knows is refused at once."""
    certificate = find_certificate(tmp_path, True, None, None)
    assert certificate is not None
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        server.socket = certificate.context().wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        job = shared.submit(shared.ada, "true", notify=[f"https://127.0.0.1:{server.server_port}/"]).id
        found = until(lambda: events_in(shared.folder / "state", job))
        server.shutdown()
        thread.join()
    assert "certificate verify failed" in found[0]


@root
def test_another_user_sees_neither_the_notice_nor_its_target(shared: SystemDaemon) -> None:
    job = shared.submit(shared.ada, "sleep", "100", notify=["end:https://example.org/hunter2"]).id
    for path in (f"/v1/jobs/{job}", "/v1/jobs?requests=1", f"/v1/jobs/{job}/why"):
        assert b"hunter2" not in shared.ask(shared.bob, "GET", path).body
    home = Path(pwd.getpwnam(shared.ada).pw_dir)
    shared.ask(shared.ada, "POST", f"/v1/jobs/{job}/cancel")
    steals = shared.submit(shared.bob, "true", notify=[f"sh -c 'echo stolen > {home}/stolen'"], cwd="/").id
    shared.ended(steals)
    until(lambda: events_in(shared.folder / "state", steals))
    assert not (home / "stolen").exists()


@root
def test_mail_is_sent_by_the_program_of_the_machine_which_may_have_rights_of_its_own(shared: SystemDaemon) -> None:
    """Postfix, Exim and others have a set-user-ID or set-group-ID program; one in the folder of a user is not used."""
    entry = pwd.getpwnam(shared.ada)
    home = Path(entry.pw_dir)
    (home / "sendmail").write_text("#!/bin/sh\ntouch $HOME/own\n")
    (home / "sendmail").chmod(0o755)
    job = shared.submit(shared.ada, "true", notify=["mail"], env={"PATH": f"{home}:/usr/bin:/bin"}).id
    assert until(lambda: events_in(shared.folder / "state", job)) == ["mail to its owner: sent (end)"]
    assert lines(home / "mail")[:2] == [str(entry.pw_uid), "NoNewPrivs:\t0"]
    assert f"To: {shared.ada}" in lines(home / "mail")
    assert not (home / "own").exists()


@root
def test_a_user_who_is_removed_while_jobs_run_and_wait_disturbs_nobody(shared: SystemDaemon) -> None:
    """The running job ends, the waiting one cannot start, and notices say why they were not sent."""
    state = shared.folder / "state"
    with a_user(f"{shared.ada}x") as name:
        uid = pwd.getpwnam(name).pw_uid
        code = "echo began; while test -e /proc/$PPID; do sleep 0.1; done"
        running = shared.submit(name, "sh", "-c", code, notify=["true"]).id
        until(lambda: "began" in shared.log(name, running))  # before, it is not yet its user
        waiting = shared.submit(name, "true", after=[f"{running}:any"], notify=["true"]).id
        subprocess.run(["userdel", "--force", "--remove", name], check=False, capture_output=True)
        assert shared.job(running).state == "running"
        assert shared.ended(shared.submit(shared.bob, "true").id).code == 0
        shared.ask(shared.admin, "POST", f"/v1/jobs/{running}/cancel")
        assert shared.ended(running).outcome == "cancelled"
        error = f"cannot run as {name} (user ID {uid}): this machine has no such user any more"
        assert shared.ended(waiting).error == error
        for job in (running, waiting):
            found = until(lambda job=job: events_in(state, job))  # type: ignore[misc]
            assert found == [f"command true failed (end): {error}"]
        assert {job["user"] for job in shared.ask(shared.bob, "GET", "/v1/jobs").json()} >= {name}
