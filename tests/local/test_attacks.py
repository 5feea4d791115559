# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Programs and files that try to take over, blind or stop the daemon; each is refused or survived."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.client.http import exchange
from cotenant.errors import CotenantError
from cotenant.local import attempts
from cotenant.local.journal import Journal
from cotenant.local.journal_schema import JournalError
from cotenant.local.run_files import Spec
from cotenant.node.preload import stage, staged_library
from tests.cli.command import SOURCE, environment

# Files in the user's folder


def cotenant(*words: str | Path, cwd: Path, state: Path) -> subprocess.CompletedProcess[str]:
    """The command as the installed script runs it: without the current folder on the module path."""
    command = [sys.executable, "-P", "-m", "cotenant", *map(str, words)]
    env = environment(COTENANT_STATE=str(state))
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_modules_in_the_users_folder_are_not_imported_by_the_daemon(tmp_path: Path) -> None:
    folder, state = tmp_path / "project", tmp_path / "state"
    folder.mkdir()
    (folder / "uvicorn.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    (folder / "random.py").write_text("raise SystemExit('a module of the user')")
    done = cotenant("up", "--detach", "--simulate", "1", "--gpu-memory", "1GiB", cwd=folder, state=state)
    assert (done.returncode, done.stderr) == (0, "")
    try:
        assert not (tmp_path / "executed").exists()
    finally:
        assert cotenant("down", "--wait", cwd=folder, state=state).returncode == 0


def own_commands() -> list[tuple[str, int, list[object]]]:
    """File, line and constant words of every list or tuple in our sources that runs one of our modules by `-m`."""
    found: list[tuple[str, int, list[object]]] = []
    for path in Path(SOURCE, "cotenant").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if '"-m"' in text else ():
            if isinstance(node, ast.List | ast.Tuple):
                words: list[object] = [one.value if isinstance(one, ast.Constant) else None for one in node.elts]
                after = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "-m"]
                if any(str(word).startswith("cotenant") for word in after):
                    found.append((path.name, node.lineno, words))
    return found


@pytest.mark.parametrize("command", [pytest.param(one, id=f"{one[0]}:{one[1]}") for one in own_commands()])
def test_we_start_ourselves_without_the_current_folder_on_the_module_path(
    command: tuple[str, int, list[object]],
) -> None:
    words = command[2]
    assert words[words.index("-m") - 1] == "-P"


# Files of other users

SOMEBODY = 4321
"""a user ID that is not ours"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


def refused_state(state: Path) -> str:
    """The one line with which a daemon refuses a state folder, attached and detached."""
    first, second = (
        cotenant("up", "--simulate", "1", *detach, cwd=Path("/"), state=state) for detach in ((), ("--detach",))
    )
    assert (first.returncode, second.returncode) == (2, 2), first.stderr + second.stderr
    (line,) = first.stderr.splitlines()
    assert second.stderr.splitlines() == [line]
    return line


@needs_root
def test_a_state_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, SOMEBODY, -1)
    assert f"{state}: the state folder belongs to another user (ID {SOMEBODY})" in refused_state(state)
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(own)
    os.chown(link, SOMEBODY, -1, follow_symlinks=False)
    assert "belongs to another user" in refused_state(link)


def test_a_state_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o770)
    assert "can be written to by other users; run `chmod go-w`" in refused_state(state)
    state.chmod(0o700)
    tmp_path.chmod(0o777)
    assert f"is in {tmp_path}, in which every user can rename it" in refused_state(state)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["journal.db.lock", "journal.db", "daemon.log"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_the_state_folder_overwrites_no_other_file(
    tmp_path: Path, name: str, link: Callable[[Path, Path], None]
) -> None:
    precious, state = tmp_path / "precious", tmp_path / "state"
    precious.write_text("precious")
    state.mkdir(mode=0o700)
    link(precious, state / name)
    assert str(state / name) in refused_state(state)
    assert precious.read_text() == "precious"


def test_the_lock_of_a_journal_is_no_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "journal.db.lock").symlink_to(precious)
    with pytest.raises(JournalError, match="cannot open the journal"):
        Journal.open(tmp_path / "journal.db")
    (tmp_path / "journal.db.lock").unlink()
    (tmp_path / "journal.db.lock").hardlink_to(precious)
    with pytest.raises(JournalError, match="has a second name"):
        Journal.open(tmp_path / "journal.db")
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("attack", ["link", pytest.param("owner", marks=needs_root), "mode"])
def test_a_specification_that_another_user_could_have_written_is_not_run(tmp_path: Path, attack: str) -> None:
    folder = tmp_path / "run"
    attempts.prepare(folder, Spec(argv=["touch", str(tmp_path / "ran")], cwd="/", env={"PATH": os.environ["PATH"]}))
    spec = folder / "spec.json"
    if attack == "link":
        spec.symlink_to(spec.rename(tmp_path / "elsewhere.json"))
    elif attack == "owner":
        os.chown(spec, SOMEBODY, -1)
    else:
        spec.chmod(0o666)
    with pytest.raises(CotenantError, match=r"specification of a job|can be changed by another user"):
        attempts.launch(folder)
    assert not attempts.was_started(folder)
    assert not (tmp_path / "ran").exists()


@needs_root
def test_a_run_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "j-000001" / "1"
    folder.mkdir(parents=True)
    os.chown(folder, SOMEBODY, -1)
    with pytest.raises(CotenantError, match="belongs to another user"):
        attempts.prepare(folder, Spec(argv=["true"], cwd="/", env={}))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "built.so"
    path.write_bytes(b"\x7fELF, in place of a library")
    return path


@pytest.mark.parametrize("attack", ["content", "mode", pytest.param("owner", marks=needs_root), "link"])
def test_a_staged_library_that_another_user_could_have_made_is_not_preloaded(
    library: Path, tmp_path: Path, attack: str
) -> None:
    folder = stage(library, tmp_path / "cache")
    staged = staged_library(folder)
    if attack == "content":
        staged.write_bytes(b"\x7fELF, another one")
    elif attack == "mode":
        folder.chmod(0o777)
    elif attack == "owner":
        os.chown(staged, SOMEBODY, -1)
    else:
        inner = next(path for path in folder.rglob(staged.name) if path.is_symlink())
        inner.unlink()
        inner.symlink_to(library)
    with pytest.raises(CotenantError, match="it is not loaded into programs: remove it"):
        stage(library, tmp_path / "cache")


@needs_root
def test_a_library_cache_of_another_user_is_passed_over(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runtime" / "lib").mkdir(parents=True)
    os.chown(tmp_path / "runtime" / "lib", SOMEBODY, -1)
    monkeypatch.setenv("COTENANT_RUNTIME", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert stage(library).is_relative_to(tmp_path / "cache")


LISTEN = """
import os, socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.setuid(int(sys.argv[2]))
listener.listen()
print("listens", flush=True)
time.sleep(60)
"""


@needs_root
def test_a_command_sends_nothing_to_the_socket_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cotenant.sock"
    command = [sys.executable, "-c", LISTEN, str(path), str(SOMEBODY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"listens\n"
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY + 1)
        with (
            pytest.raises(ConnectionError, match=rf"belongs to another user \(ID {SOMEBODY}\)"),
            exchange(str(path), "GET", "/v1/status", b"", {}, 5),
        ):
            pass
        listener.kill()
