# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Real users of this machine, made and removed by the tests, and a daemon that serves all of them."""

import os
import pickle
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cotenant.client.http import exchange
from cotenant.wire.job_views import JobView
from tests.local.daemon import PATIENCE_S, SOURCE, until

T = TypeVar("T")
_numbers = count()


@contextmanager
def a_user(name: str, *groups: str) -> Iterator[str]:
    """A user with a home folder and a group of its own; removed afterwards, with its processes."""
    _change_users("useradd", "--create-home", "--user-group", "--shell", "/bin/sh", "--groups", ",".join(groups), name)
    try:
        yield name
    finally:
        remove_user(name)


def remove_user(name: str) -> None:
    with suppress(KeyError):
        uid = pwd.getpwnam(name).pw_uid
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and entry.stat().st_uid == uid:
                    os.kill(int(entry.name), signal.SIGKILL)
        _change_users("userdel", "--force", "--remove", name)


@contextmanager
def a_group(name: str) -> Iterator[str]:
    _change_users("groupadd", name)
    try:
        yield name
    finally:
        _change_users("groupdel", name)


def _change_users(*command: str) -> None:
    """Another test process may hold the lock of the user database."""

    def changed() -> bool:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1, 10, 12), (command, done.stderr)
        return done.returncode in (0, 12) or "mail spool" in done.stderr

    until(changed)


def become(name: str) -> None:
    """This process has the rights of this user only from now on."""
    entry = pwd.getpwnam(name)
    os.initgroups(name, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    os.umask(0o022)


def as_user(name: str, act: Callable[[], T]) -> T:
    """What `act` returns in a process with the rights of this user only."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            become(name)
            answer: tuple[bool, object] = (True, act())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the parent
            answer = (False, error)
        with os.fdopen(writer, "wb") as file:
            pickle.dump(answer, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    worked, found = pickle.loads(content)
    if not worked:
        raise found
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Answered:
    """The answer to a request."""

    status: int
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Asker:
    """A process with the rights of a user, which sends one request after the other: to fork a test process takes longer
    than most requests."""

    def __init__(self, user: str) -> None:
        self.is_free = threading.Lock()
        self._door, theirs = socket.socketpair()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.dup2(theirs.fileno(), 3)
                os.closerange(4, os.sysconf("SC_OPEN_MAX"))  # such as the sockets of other askers, which see their end
                become(user)
                _serve(socket.socket(fileno=3))
            finally:
                os._exit(0)
        theirs.close()
        self._file = self._door.makefile("rb")

    def ask(self, *request: object) -> Answered:
        """The caller holds the lock `is_free`."""
        self._door.sendall(pickle.dumps(request))
        worked, found = pickle.load(self._file)
        if not worked:
            raise found
        return found  # type: ignore[no-any-return]

    def end(self) -> None:
        self._file.close()
        self._door.close()
        os.waitpid(self._child, 0)


def _serve(door: socket.socket) -> None:
    requests = door.makefile("rb")
    with suppress(EOFError):
        while True:
            request = pickle.load(requests)
            try:
                answer: tuple[bool, object] = (True, _sent(*request))
            except Exception as error:  # noqa: BLE001 - it is raised again by who asked
                answer = (False, error)
            door.sendall(pickle.dumps(answer))


def _sent(path: str, method: str, where: str, content: bytes) -> Answered:
    with exchange(path, method, where, content, {}, 30.0) as answer:
        return Answered(answer.status, b"".join(answer.chunks()))


@dataclass(frozen=True)
class SystemDaemon:
    """A daemon for all users, and the users: two, and an administrator."""

    folder: Path
    process: subprocess.Popen[bytes]
    ada: str
    bob: str
    admin: str
    askers: dict[str, Asker] = field(default_factory=dict)

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "cotenant.sock"

    @property
    def port(self) -> int:
        return int((self.folder / "log").read_text().partition("http://127.0.0.1:")[2].split()[0])

    def ask(self, user: str, method: str, path: str, body: object = None) -> Answered:
        """Over the unix socket, as a user."""
        request = (str(self.socket), method, path, b"" if body is None else msgspec.json.encode(body))
        if user not in self.askers and user in (self.ada, self.bob, self.admin):
            self.askers[user] = Asker(user)
        if (asker := self.askers.get(user)) is not None and asker.is_free.acquire(blocking=False):
            try:
                return asker.ask(*request)
            finally:
                asker.is_free.release()
        return as_user(user, lambda: _sent(*request))

    def ask_over_tcp(self, token: str, method: str, path: str, body: object = None) -> Answered:
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {"Authorization": f"Bearer {token}"}
        with exchange(("127.0.0.1", self.port), method, path, content, headers, 30.0) as answer:
            return Answered(answer.status, b"".join(answer.chunks()))

    def submit(self, user: str, *command: str, **fields: object) -> JobView:
        wanted = {"command": command, "cwd": "/", "memory": "100MiB", **fields}
        answer = self.ask(user, "POST", "/v1/jobs", wanted)
        assert answer.status == 201, answer.body
        return msgspec.json.decode(answer.body, type=JobView)

    def job(self, job: str) -> JobView:
        return msgspec.json.decode(self.ask(self.admin, "GET", f"/v1/jobs/{job}").body, type=JobView)

    def ended(self, job: str) -> JobView:
        return until(lambda: view if (view := self.job(job)).ended is not None else None)

    def running(self, job: str) -> JobView:
        return until(lambda: view if (view := self.job(job)).state == "running" else None)

    def log(self, user: str, job: str) -> str:
        return self.ask(user, "GET", f"/v1/jobs/{job}/log").body.decode()

    def output(self, user: str, *command: str, **fields: object) -> str:
        """What a job wrote, when it has ended."""
        job = self.submit(user, *command, **fields).id
        self.ended(job)
        return self.log(user, job)

    def clear(self) -> None:
        """No job waits or runs."""
        active = self.ask(self.admin, "GET", "/v1/jobs?state=queued,starting,running").json()
        for job in active:
            self.ask(self.admin, "POST", f"/v1/jobs/{job['id']}/cancel")
        for job in active:
            self.ended(job["id"])


@contextmanager
def system_daemon(*options: str, prefix: tuple[str, ...] = ()) -> Iterator[SystemDaemon]:
    """Started by a command, if `prefix` names one; nothing of it is left afterwards."""
    folder, tag = Path(tempfile.mkdtemp(prefix="cts")), f"{os.getpid():x}{next(_numbers)}"
    folder.chmod(0o755)
    with (
        a_group(f"cta{tag}") as group,
        a_user(f"ada{tag}") as ada,
        a_user(f"bob{tag}") as bob,
        a_user(f"adm{tag}", group) as admin,
    ):
        env = {**os.environ, "PYTHONPATH": SOURCE, "COTENANT_STATE": f"{folder}/state"}
        command = [*prefix, sys.executable, "-m", "cotenant", "up", "--system", "--admin-group", group]
        command += ["--simulate", "2", "--gpu-memory", "1GiB", *options]
        with (folder / "log").open("wb") as log:
            started = {**env, "COTENANT_RUNTIME": f"{folder}/run"}
            process = subprocess.Popen(command, env=started, stdout=log, stderr=log)
        daemon = SystemDaemon(folder, process, ada, bob, admin)
        try:
            until(lambda: _answers(daemon))
            yield daemon
            daemon.clear()
        finally:
            for asker in daemon.askers.values():
                asker.end()
            process.terminate()
            process.wait(PATIENCE_S)
            shutil.rmtree(folder, ignore_errors=True)


def _answers(daemon: SystemDaemon) -> bool:
    assert daemon.process.poll() is None, (daemon.folder / "log").read_text()
    with suppress(OSError):
        return daemon.ask(daemon.admin, "GET", "/v1/status").status == 200
    return False
