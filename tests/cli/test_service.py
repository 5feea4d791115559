# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant service` writes, shows and removes the files of systemd; here without systemd."""

import os
import sys
from pathlib import Path

import pytest

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
    assert "systemctl enable --now cotenant.socket cotenant.service" in done.stdout
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
    assert run("service", "uninstall", "--root", tmp_path).stdout == ""


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
    assert "no daemon is running" in run("service", "status", "--user", env=env).stdout
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
