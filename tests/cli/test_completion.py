# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Completion as a shell asks for it: the script that is printed, in a real bash where there is one."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import environment, run
from tests.local.daemon import Daemon, until

# What bash does on TAB: it fills in the words typed so far, and calls the function that the script registered.
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
function_name=$(complete -p cotenant | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function_name" cotenant
printf '%s\\n' "${COMPREPLY[@]}"
"""
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the printed script, and with the command as it is installed."""
    folder = tmp_path_factory.mktemp("shell")
    (folder / "bash").write_text(run("completion", "bash").stdout)
    command = folder / "cotenant"
    command.write_text(f"#!{sys.executable}\nfrom cotenant.cli.main import main\nmain()\n")
    command.chmod(0o755)
    return folder


def completed(place: Path, *words: str, state: Path | None = None) -> list[str]:
    """What bash offers for the last of these words."""
    env = environment(PATH=f"{place}:{os.environ['PATH']}", COTENANT_STATE=str(state or place / "nowhere"))
    ask = ["bash", "--norc", "-c", ASK, "bash", str(place / "bash"), "cotenant", *words]
    done = subprocess.run(ask, env=env, capture_output=True, text=True, timeout=300, check=True)
    assert [line for line in done.stderr.splitlines() if "compopt" not in line] == []  # it wants a real TAB
    return done.stdout.split()


@needs_bash
def test_bash_completes_commands_options_and_their_values(place: Path) -> None:
    assert completed(place, "c") == ["cancel", "change", "clean", "conformance", "cordon", "completion"]
    assert {"--memory", "--name", "--batch-range"} <= set(completed(place, "submit", "--"))
    assert completed(place, "jobs", "-o", "j") == ["json"]
    assert completed(place, "completion", "") == ["bash", "zsh", "fish"]


@needs_bash
def test_without_a_daemon_no_names_are_offered_and_nothing_is_said(place: Path) -> None:
    assert completed(place, "show", "") == completed(place, "cordon", "") == []


@needs_bash
def test_bash_completes_jobs_and_gpus_from_the_daemon(place: Path, daemon: Daemon) -> None:
    active = daemon.submit("sleep", "600", name="nap-a").id
    ended = daemon.ended(daemon.submit("true", name="nap-b").id).id
    until(lambda: daemon.job(active).state == "running")
    assert completed(place, "show", "", state=daemon.state) == [active, ended, "nap-a", "nap-b"]
    assert completed(place, "show", "nap-b", state=daemon.state) == ["nap-b"]
    assert completed(place, "cancel", "nap", state=daemon.state) == ["nap-a"]
    assert completed(place, "retry", "nap", state=daemon.state) == ["nap-b"]
    assert completed(place, "drain", "", state=daemon.state)[:2] == ["0", "1"]


@pytest.mark.parametrize(
    ("shell", "sign"), [("bash", "complete -o"), ("zsh", "#compdef cotenant"), ("fish", "complete ")]
)
def test_each_shell_gets_a_script_of_its_own(shell: str, sign: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0
    assert sign in done.stdout
    assert "_COTENANT_COMPLETE" in done.stdout


def test_another_shell_is_refused() -> None:
    done = run("completion", "tcsh")
    assert done.returncode == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr


@pytest.mark.slow
@needs_bash
def test_bash_completes_policies_queue_orders_and_states(place: Path) -> None:
    assert completed(place, "up", "--policy", "bin") == ["binpack"]
    assert "cotenant" in completed(place, "demo", "--policy", "")
    assert completed(place, "up", "--queue", "s") == ["sjf", "srpt"]
    assert completed(place, "jobs", "--state", "f") == ["finished", "failed"]
    assert completed(place, "jobs", "--state", "queued,r") == ["queued,running"]
    assert "queued,queued" not in completed(place, "jobs", "--state", "queued,")
    assert completed(place, "simulate", "--policy", "fgd,bin") == ["fgd,binpack"]


@needs_bash
def test_options_of_the_command_of_a_job_are_not_completed_as_ours(place: Path) -> None:
    assert "--memory" in completed(place, "submit", "--me")
    for words in (["submit", "python"], ["profile", "--", "python"], ["run", "--memory", "1GiB", "python"]):
        assert completed(place, *words, "--me") == []


class Terminal:
    """A bash with a terminal, in which keys are pressed."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)
        self._seen = ""

    def press(self, keys: str, expected: str) -> str:
        """Presses keys, and waits until the screen shows what is expected after them; what it shows since then."""
        self._seen = ""
        os.write(self._file, keys.encode())
        deadline = time.monotonic() + 60
        while expected not in self._seen:
            assert time.monotonic() < deadline, self._seen
            if select.select([self._file], [], [], 0.2)[0]:
                self._seen += os.read(self._file, 4096).decode(errors="replace")
        return self._seen

    def close(self) -> None:
        os.close(self._file)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


@pytest.mark.slow
@needs_bash
def test_tab_in_a_real_terminal_completes_files_after_the_dashes_and_values_of_options(
    place: Path, tmp_path: Path
) -> None:
    (tmp_path / "train_model.py").touch()
    env = environment(PATH=f"{place}:{os.environ['PATH']}", PS1="ready> ", TERM="dumb", INPUTRC="/dev/null")
    terminal = Terminal(tmp_path, env | {"COTENANT_STATE": str(tmp_path / "nowhere")})
    try:
        terminal.press("", "ready> ")
        terminal.press(f"source {place}/bash; echo sour''ced\r", "\nsourced")
        for typed, becomes in (
            ("cotenant submit -- python trai", "python train_model.py "),
            ("cotenant submit --memory 1GiB -- ./tr", "-- ./train_model.py "),
            ("cotenant submit python train_model.py --config trai", "--config train_model.py "),
            ("cotenant run --memory 1GiB -- python trai", "python train_model.py "),
            ("cotenant up --policy binp", "--policy binpack "),
            ("cotenant jobs --state queued,runn", "--state queued,running "),
        ):
            assert becomes in terminal.press(f"{typed}\t", becomes)
            terminal.press("\x15echo emp''tied\r", "\nemptied")
    finally:
        terminal.close()
