# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Programs and files that try to take over, blind or stop the daemon; each is refused or survived."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import SOURCE, environment

# Files in the user's folder


def cotenant(*words: str | Path, cwd: Path, state: Path) -> subprocess.CompletedProcess[str]:
    """The command as the installed script runs it: without the current folder on the module path."""
    command = [sys.executable, "-P", "-m", "cotenant", *map(str, words)]
    env = environment(COTENANT_STATE=str(state))
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


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
    found = []
    for path in Path(SOURCE, "cotenant").rglob("*.py"):
        if path.name == "demo.py":  # not yet: it is changed elsewhere
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List | ast.Tuple):
                words = [one.value if isinstance(one, ast.Constant) else None for one in node.elts]
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
