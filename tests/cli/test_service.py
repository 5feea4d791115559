# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant service` writes, shows and removes the files of systemd; here without systemd."""

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from cotenant.cli import daemon
from cotenant.cli import service as commands
from cotenant.errors import InputError
from cotenant.local import service
from tests.cli.command import environment, refusal, run

PATHS = {
    "etc/systemd/system/cotenant.service",
    "etc/systemd/system/cotenant.socket",
    "etc/tmpfiles.d/cotenant.conf",
    "etc/sysusers.d/cotenant.conf",
}


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_the_files_are_written_shown_and_removed(tmp_path: Path) -> None:
    done = run("service", "install", "--root", tmp_path)
    assert done.returncode == 0, done.stderr
    assert files_below(tmp_path) == PATHS
    assert "systemctl enable cotenant.socket cotenant.service" in done.stdout
    assert "without systemd: cotenant up --detach --system" in done.stdout
    unit = tmp_path / "etc/systemd/system/cotenant.service"
    assert f"ExecStart={sys.executable} -P -m cotenant up --system" in unit.read_text()
    assert unit.stat().st_mode & 0o777 == 0o644
    assert run("service", "status", "--root", tmp_path).stdout.count(": installed\n") == 4
    unit.write_text("[Service]\n")
    assert f"{unit}: differs from this version" in run("service", "status", "--root", tmp_path).stdout
    assert run("service", "install", "--root", tmp_path).returncode == 0
    assert run("service", "status", "--root", tmp_path).stdout.count(": installed\n") == 4
    assert run("service", "uninstall", "--root", tmp_path).stdout.count("removed ") == 4
    assert files_below(tmp_path) == set()
    assert run("service", "uninstall", "--root", tmp_path).stdout == "nothing is installed\n"


def test_printing_changes_nothing_and_shows_every_file(tmp_path: Path) -> None:
    printed = run("service", "install", "--print", "--root", tmp_path).stdout
    assert [path for path in PATHS if f"# {tmp_path}/{path}\n" not in printed] == []
    assert files_below(tmp_path) == set()


def test_the_unit_of_a_user_is_in_the_users_configuration(tmp_path: Path) -> None:
    env = environment(XDG_CONFIG_HOME=str(tmp_path), COTENANT_STATE=str(tmp_path / "state"))
    if service.RUNS.is_dir():
        pytest.skip("needs a machine without systemd: it would start the unit")
    assert "without systemd: cotenant up --detach\n" in run("service", "install", "--user", env=env).stdout
    assert files_below(tmp_path) == {"systemd/user/cotenant.service"}
    status = run("service", "status", "--user", env=env)
    assert "no daemon is running; `cotenant up --detach` starts it" in status.stdout
    assert status.returncode == 3
    found = json.loads(run("service", "status", "--user", "-o", "json", env=env).stdout)
    assert found["files"] == {str(tmp_path / "systemd/user/cotenant.service"): "installed"}
    assert (found["address"], found["pid"]) == (str(tmp_path / "state" / "cotenant.sock"), None)
    assert run("service", "uninstall", "--user", env=env).returncode == 0
    assert files_below(tmp_path) == set()


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    assert "--root: only for the daemon for all users" in refusal("service", "install", "--user", "--root", tmp_path)
    (tmp_path / "etc").write_text("a file")
    assert "cannot be written: Not a directory" in refusal("service", "install", "--root", tmp_path)


def test_a_program_that_others_can_change_is_not_started_at_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin").chmod(0o777)
    (tmp_path / "bin" / "python").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(InputError, match=r"can be written to by other users.*root would run it at every boot"):
        service.check_program()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_program_in_a_folder_of_another_user_is_not_started_at_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner can rename the virtual environment of root, and make another one."""
    home = tmp_path / "home"
    (home / "venv" / "bin").mkdir(parents=True)
    (home / "venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    os.chown(home, 4_000_001, -1)
    monkeypatch.setattr(sys, "executable", str(home / "venv" / "bin" / "python"))
    with pytest.raises(InputError, match=f"is in {home}, whose owner can replace it; root would run it"):
        service.check_program()


def test_a_program_that_only_root_can_read_is_not_installed_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an interpreter in the home folder of root: no user could run a command, and no job would start."""
    with tempfile.TemporaryDirectory() as named:  # not tmp_path, which is closed to other users
        folder = Path(named)
        (folder / "bin").mkdir()
        (folder / "bin" / "python").touch(0o755)
        monkeypatch.setattr(sys, "executable", str(folder / "bin" / "python"))
        monkeypatch.setattr(service, "__file__", "/bin/sh")
        with pytest.raises(InputError, match=f"only root can use it, because {folder} is closed to other users"):
            service.check_readable()
        folder.chmod(0o755)
        service.check_readable()
        (folder / "bin" / "python").chmod(0o700)
        with pytest.raises(InputError, match=f"because {folder}/bin/python is closed to other users"):
            service.check_readable()


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/opt/cotenant/bin/python", "/opt/cotenant/bin/python"),
        ("/opt/my tools/python", '"/opt/my tools/python"'),
        ("/opt/100%/python", '"/opt/100%%/python"'),
        ('/opt/$x"y\\z/python', '"/opt/$$x\\"y\\\\z/python"'),
    ],
)
def test_the_path_of_the_program_is_one_word_for_systemd(
    path: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", path)
    (unit,) = service.user_service(tmp_path).contents.values()
    assert f"\nExecStart={word} -P -m cotenant up $COTENANT_UP_OPTIONS\n" in unit


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that notes its words and answers from files; the folder of both."""
    program = tmp_path / "systemctl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n[ "$2" != show ] || cat {tmp_path}/"$4" 2>/dev/null || :\n'
    )
    program.chmod(0o755)
    (tmp_path / "LoadState").write_text("loaded\n")
    monkeypatch.setattr(service, "RUNS", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for variable in ("XDG_CONFIG_HOME", "COTENANT_STATE", "COTENANT_RUNTIME"):
        monkeypatch.setenv(variable, str(tmp_path / "own"))
    return tmp_path


def test_a_service_whose_daemon_does_not_answer_is_an_error_that_names_the_log(systemd: Path) -> None:
    (systemd / "SubState").write_text("auto-restart\n")
    done = CliRunner().invoke(commands.service, ["install", "--user"])
    assert "`journalctl --user -u cotenant -n 20` says why" in str(done.exception)
    said = (systemd / "said").read_text()
    order = [said.index(f"--user {word}") for word in ("daemon-reload", "enable cotenant", "restart cotenant")]
    assert order == sorted(order)


def test_a_user_whose_systemd_does_not_answer_is_told_the_way_out(systemd: Path) -> None:
    (systemd / "LoadState").unlink()
    done = CliRunner().invoke(commands.service, ["install", "--user"])
    assert "the systemd of this user does not answer: log in as the user" in str(done.exception)
    assert not (systemd / "own" / "systemd").exists()


def test_the_status_does_not_start_a_daemon_that_systemd_has_stopped(systemd: Path) -> None:
    (systemd / "UnitFileState").write_text("enabled\n")
    (systemd / "ActiveState").write_text("inactive\n")
    done = CliRunner().invoke(commands.service, ["status", "--user"])
    assert done.exit_code == 3
    assert "systemd: enabled, inactive\n" in done.output
    assert "no daemon is running; `cotenant service install --user` starts it" in done.output


def test_a_daemon_that_systemd_did_not_start_keeps_the_service_from_being_installed(
    systemd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (systemd / "own").mkdir()
    (systemd / "own" / "cotenant.sock").touch()
    (systemd / "MainPID").write_text("0\n")
    monkeypatch.setattr(daemon, "refuse_second_daemon", lambda: None)
    monkeypatch.setattr(daemon, "status_of_daemon", lambda address: {"pid": 77})
    done = CliRunner().invoke(commands.service, ["install", "--user"])
    assert "a daemon runs already that systemd did not start (pid 77): stop it with `cotenant down" in str(
        done.exception
    )
    (systemd / "MainPID").write_text("77\n")
    (systemd / "SubState").write_text("running\n")
    monkeypatch.setattr(daemon, "status_of_daemon", lambda address, timeout_s=1.0: {"pid": 77})
    assert "the daemon runs" in CliRunner().invoke(commands.service, ["install", "--user"]).output
