# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon for all users of a machine: jobs run as their owners, and everybody sees who uses what."""

import os
import pwd
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from cotenant.client.addresses import find_socket, own_socket
from cotenant.client.client import Client
from cotenant.client.problems import NoDaemonError
from cotenant.errors import InputError
from cotenant.local.isolation import BY_DEFAULT
from cotenant.local.system import SystemOptions, check_system, make_runtime_folder, open_system_socket
from tests.local.daemon import until
from tests.local.users import SystemDaemon, a_user, as_user, system_daemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make users")


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("accounts") / "accounts.yaml"
    path.write_text("version: 1\n")
    return path


@pytest.fixture(scope="module")
def shared(accounts: Path) -> Iterator[SystemDaemon]:
    with system_daemon("--accounts", str(accounts)) as daemon:
        yield daemon


def test_the_accounts_are_read_again_if_they_are_valid(shared: SystemDaemon, accounts: Path) -> None:
    """By SIGHUP, and by a command of an administrator."""
    wanted = {"command": ["true"], "cwd": "/", "memory": "50MiB", "priority": 3}
    assert shared.ask(shared.ada, "POST", "/v1/jobs", wanted).status == 400
    accounts.write_text(f"version: 1\nusers: {{{shared.ada}: {{priority: 3}}}}\n")
    shared.process.send_signal(signal.SIGHUP)
    job = until(lambda: shared.ask(shared.ada, "POST", "/v1/jobs", wanted).json().get("id"))
    assert shared.ended(job).code == 0
    assert shared.ask(shared.bob, "POST", "/v1/jobs", wanted).status == 400
    accounts.write_text("version: 1\nusers: {nobody-has-this-name: {}}\n")
    shared.process.send_signal(signal.SIGHUP)
    until(lambda: "the accounts stay as they are" in (shared.folder / "log").read_text())
    refused = shared.ask(shared.admin, "POST", "/v1/accounts/reload")
    assert (refused.status, "nobody-has-this-name" in refused.body.decode()) == (400, True)
    assert shared.ask(shared.ada, "POST", "/v1/jobs", wanted).status == 201
    accounts.write_text("version: 1\n")
    assert shared.ask(shared.admin, "POST", "/v1/accounts/reload").status == 200
    assert shared.ask(shared.ada, "POST", "/v1/jobs", wanted).status == 400


def test_a_job_runs_as_its_owner(shared: SystemDaemon) -> None:
    entry = pwd.getpwnam(shared.ada)
    code = "id -u; id -g; id -Gn; pwd; echo $HOME $USER $LOGNAME $SHELL; echo $PATH; echo again > /dev/stdout"
    lines = shared.output(shared.ada, "sh", "-c", code, cwd=entry.pw_dir).splitlines()
    assert lines[:4] == [str(entry.pw_uid), str(entry.pw_gid), shared.ada, entry.pw_dir]
    assert lines[4] == f"{entry.pw_dir} {shared.ada} {shared.ada} /bin/sh"
    assert "/usr/bin" in lines[5].split(":")
    assert lines[6] == "again"


def test_umask_and_limits_are_those_of_the_process_that_submitted_it(shared: SystemDaemon) -> None:
    def submit() -> str:
        os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (333, 444))
        wanted = {"command": ["sh", "-c", "umask; ulimit -Sn; ulimit -Hn"], "cwd": "/", "memory": "50MiB"}
        client = Client(at=shared.socket)
        return str(client.post("/v1/jobs", dict, msgspec.json.encode(wanted))["id"])

    job = as_user(shared.ada, submit)
    shared.ended(job)
    assert shared.log(shared.ada, job).split() == ["0027", "333", "444"]


def test_the_groups_of_the_user_count(shared: SystemDaemon) -> None:
    group = shared.output(shared.admin, "id", "-Gn").split()
    assert len(group) == 2
    assert shared.output(shared.bob, "id", "-Gn").split() == [shared.bob]


def test_everybody_sees_the_users_and_only_the_owner_the_command(shared: SystemDaemon) -> None:
    secret = shared.submit(shared.ada, "sh", "-c", "echo secret; sleep 60", env={"KEY": "secret"}, cwd="/tmp")
    shared.running(secret.id)
    seen = {job["id"]: job for job in shared.ask(shared.bob, "GET", "/v1/jobs?requests=1").json()}[secret.id]
    assert (seen["user"], seen["state"], seen["name"]) == (shared.ada, "running", secret.id)
    assert (seen["request"]["memory"], seen["gpus"]) == ("100MiB", [0])
    assert b"secret" not in shared.ask(shared.bob, "GET", f"/v1/jobs/{secret.id}").body
    assert shared.ask(shared.ada, "GET", f"/v1/jobs/{secret.id}").json()["request"]["command"][0] == "sh"
    until(lambda: shared.log(shared.admin, secret.id) == "secret\n")
    assert shared.ask(shared.admin, "POST", f"/v1/jobs/{secret.id}/cancel").status == 200
    assert shared.ended(secret.id).state == "cancelled"


def test_a_name_means_the_callers_own_job_first(shared: SystemDaemon) -> None:
    own = shared.submit(shared.ada, "true", name="train")
    other = shared.submit(shared.bob, "true", name="train")
    assert shared.ask(shared.ada, "GET", "/v1/jobs/train").json()["id"] == own.id
    assert shared.ask(shared.bob, "GET", "/v1/jobs/train").json()["id"] == other.id
    shared.ended(own.id)
    shared.ended(other.id)


def test_a_second_daemon_for_the_same_gpus_is_refused(shared: SystemDaemon) -> None:
    env = {**os.environ, "COTENANT_RUNTIME": str(shared.socket.parent), "COTENANT_STATE": str(shared.folder / "own")}
    done = subprocess.run(
        [sys.executable, "-m", "cotenant", "up"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "belong to the daemon for all users" in done.stderr
    assert "`cotenant submit` uses it" in done.stderr
    assert not (shared.folder / "own").exists()


def test_the_client_finds_the_daemon_for_all_users(
    shared: SystemDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COTENANT_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COTENANT_RUNTIME", str(shared.socket.parent))
    assert find_socket() == shared.socket
    assert Client().get("/v1/status", dict[str, object])["pid"] == shared.process.pid
    monkeypatch.setenv("COTENANT_STATE", str(tmp_path / "named"))
    assert find_socket() == tmp_path / "named" / "cotenant.sock"
    with pytest.raises(NoDaemonError, match="no daemon is running; start it with `cotenant up --detach`"):
        Client().get("/v1/status", dict[str, object])


def test_a_daemon_that_does_not_run_and_a_socket_without_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: SystemDaemon
) -> None:
    monkeypatch.delenv("COTENANT_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COTENANT_RUNTIME", str(tmp_path))
    assert find_socket() == own_socket()
    (tmp_path / "cotenant.sock").touch()
    with pytest.raises(NoDaemonError, match=r"the daemon for all users of this machine does not run.*systemctl start"):
        Client().get("/v1/status", dict[str, object])
    shared.socket.chmod(0o600)
    try:
        with pytest.raises(NoDaemonError, match=r"you may not open .*ask an administrator"):
            as_user(shared.ada, lambda: Client(at=shared.socket).get("/v1/status", dict))
    finally:
        shared.socket.chmod(0o666)


def test_a_user_who_was_removed_keeps_the_job_that_runs_and_starts_no_other(shared: SystemDaemon) -> None:
    with a_user(f"eve{os.getpid():x}") as eve:
        uid = pwd.getpwnam(eve).pw_uid
        runs = shared.submit(eve, "sleep", "60")
        waits = shared.submit(eve, "true", gpus=2, memory="100%")
        assert shared.ask(eve, "POST", f"/v1/jobs/{waits.id}/hold").status == 200
        shared.running(runs.id)
        subprocess.run(["userdel", "--force", "--remove", eve], check=False, capture_output=True)
        with pytest.raises(KeyError):
            pwd.getpwnam(eve)
        assert shared.job(runs.id).state == "running"
        assert shared.ask(shared.admin, "POST", f"/v1/jobs/{runs.id}/cancel").status == 200
        assert (shared.ended(runs.id).user, shared.ended(runs.id).state) == (eve, "cancelled")
    assert shared.ask(shared.admin, "POST", f"/v1/jobs/{waits.id}/release").status == 200
    end = shared.ended(waits.id)
    assert end.outcome == "exec-failed"
    assert end.error == f"cannot run as {eve} (user ID {uid}): this machine has no such user any more"
    assert shared.output(shared.bob, "echo", "undisturbed") == "undisturbed\n"


def test_a_full_home_folder_is_the_problem_of_its_owner_only(shared: SystemDaemon) -> None:
    home = Path(pwd.getpwnam(shared.ada).pw_dir)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "tmpfs", home], check=False)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        full = shared.submit(shared.ada, "sh", "-c", "cat /dev/zero > fill; echo after", cwd=str(home))
        end = shared.ended(full.id)
        assert (end.outcome, end.code) == ("exited", 0)
        assert "No space left on device\nafter" in shared.log(shared.ada, full.id)
        assert shared.output(shared.bob, "echo", "undisturbed") == "undisturbed\n"
    finally:
        subprocess.run(["umount", home], check=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--admin-group", "no-such-group"), "--admin-group no-such-group: no such group; create it with `groupadd"),
        (("--isolation", "mps"), "MPS serves one user at a time"),
    ],
)
def test_options_that_no_daemon_for_all_users_has(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    env = {**os.environ, "COTENANT_RUNTIME": str(tmp_path / "run"), "COTENANT_STATE": str(tmp_path / "state")}
    command = [sys.executable, "-m", "cotenant", "up", "--system", *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "run").exists()


def test_only_root_can_serve_all_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="--system: needs root, because jobs run as their owners: use sudo"):
        check_system(SystemOptions(), BY_DEFAULT)


def test_a_runtime_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: SystemDaemon
) -> None:
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", pwd.getpwnam(shared.ada).pw_uid, -1)
    monkeypatch.setenv("COTENANT_RUNTIME", str(tmp_path / "run"))
    with pytest.raises(InputError, match="belongs to another user"):
        make_runtime_folder()


@pytest.mark.slow
def test_the_capabilities_of_the_unit_are_enough() -> None:
    unit = files("cotenant.local").joinpath("systemd", "system", "cotenant.service").read_text()
    names = re.findall(r"CAP_(\w+)", re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)[0])
    only = ",".join(["-all", *(f"+{name.lower()}" for name in names)])
    with system_daemon(prefix=("setpriv", "--bounding-set", only)) as daemon:
        bounded = Path(f"/proc/{daemon.process.pid}/status").read_text()
        assert int(re.findall(r"CapEff:\s+(\w+)", bounded)[0], 16).bit_count() == len(names)
        uid = pwd.getpwnam(daemon.ada).pw_uid
        assert daemon.output(daemon.ada, "sh", "-c", "id -u; echo on > /dev/stdout") == f"{uid}\non\n"
        job = daemon.submit(daemon.ada, "sh", "-c", "trap '' TERM; sleep 60", grace_s=0.2).id
        daemon.running(job)
        assert daemon.ask(daemon.ada, "POST", f"/v1/jobs/{job}/cancel").status == 200
        assert daemon.ended(job).state == "cancelled"
        code = "import mmap, time; m = mmap.mmap(-1, 40 << 24); [m.write(bytes(1 << 24)) for _ in range(40)]"
        hog = daemon.submit(daemon.bob, "/usr/bin/python3", "-S", "-c", f"{code}; time.sleep(60)").id
        assert daemon.ended(hog).outcome == "out-of-memory"


def test_a_socket_of_systemd_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); "
        "os.dup2(s.fileno(), 3); os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); "
        "from cotenant.local.system import socket_of_systemd; f = socket_of_systemd(); "
        "print(f.getsockname(), 'LISTEN_FDS' in os.environ, socket_of_systemd())"
    )
    monkeypatch.setenv("COTENANT_RUNTIME", str(tmp_path))
    for name, said in (("cotenant.sock", f"{tmp_path}/cotenant.sock False None\n"), ("other.sock", "")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True, check=False
        )
        assert done.stdout == said
        assert bool(said) or "systemd passed another socket" in done.stderr


def test_a_daemon_that_stops_removes_its_socket_but_not_that_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTENANT_RUNTIME", str(tmp_path))
    with ExitStack() as first:
        open_system_socket(first)
        with ExitStack() as later:
            open_system_socket(later)
            first.close()
            assert (tmp_path / "cotenant.sock").is_socket()
        assert not (tmp_path / "cotenant.sock").exists()
