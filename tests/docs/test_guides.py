# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Guides that can be followed on a machine without GPUs, followed: their blocks are run as they are written."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import environment

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs/howto"
ACCOUNTS = """\
#!/bin/sh
test "$SLURM_TIME_FORMAT" = %s || exit 1
cat <<'END'
12|1790000600|3600|UNLIMITED|billing=8,cpu=8,gres/gpu=2,mem=64G,node=1
11|1790000000|1800|60|billing=4,cpu=4,gres/gpu:a100=1,gres/gpu=1,mem=32G,node=1
13|1790000700|0|60|
14|1790000800|60|5|billing=1,cpu=1,mem=4G,node=1
END
"""
"""a sacct that has run four jobs; the third one never started"""


def blocks(page: str, kind: str, heading: str | None = None) -> list[str]:
    """The code blocks of one kind of a guide, or of a section of it, without prompts."""
    text = (GUIDES / page).read_text()
    if heading is not None:
        text = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(rf"^ *```{kind}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"^ *(?:\$ )?", "", block, flags=re.MULTILINE) if kind == "console" else block for block in found]


class Shell:
    """A shell in a folder of its own, in which `cotenant` is the command of this repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        self.program("cotenant", f'#!/bin/sh\nexec "{sys.executable}" -m cotenant "$@"\n')
        path = f"{programs}:{os.environ['PATH']}"
        self.env = environment(PATH=path, COTENANT_STATE=str(folder / "s"), COTENANT_RUNTIME=str(folder / "r"))

    def program(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def run(self, script: str, *allowed: int) -> str:
        done = subprocess.run(
            ["bash", "-eu", "-c", script], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode in (0, *allowed), f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def shell() -> Iterator[Shell]:
    folder = Path(tempfile.mkdtemp(prefix="ct"))  # a socket's path must be short
    one = Shell(folder)
    try:
        yield one
    finally:
        one.run("cotenant down --wait || true")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_jobs_of_slurm_are_submitted_as_its_guide_says(shell: Shell) -> None:
    for block in blocks("from-slurm.md", "console"):
        for line in block.splitlines():
            findings = (6, 7) if line == "cotenant doctor" else ()  # the machine may have some
            shell.run(line.replace("up --detach", "up --detach --simulate 2 --gpu-memory 1GiB"), *findings)
    assert "4 done" in shell.run("cotenant jobs --state finished")
    assert shell.run("cotenant logs a-000001_3; cotenant logs second") == "task 3\nsecond\n"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["from-task-spooler.md", "from-pueue.md"])
def test_jobs_of_other_spoolers_are_submitted_as_their_guides_say(shell: Shell, page: str) -> None:
    shell.run("cotenant up --detach --simulate 2 --gpu-memory 1GiB")
    said = shell.run("\n".join(blocks(page, "console", "Check")))
    assert said.splitlines()[-1] in ("first", "second")


JUPYTER = """\
#!/bin/sh
echo "$@" > options
echo "    http://127.0.0.1:4711/lab?token=0123abcd"
sleep 60
"""
"""a Jupyter that says where it listens"""


def test_the_address_of_a_notebook_is_found_as_its_guide_says(shell: Shell) -> None:
    shell.program("jupyter", JUPYTER)
    shell.run("cotenant up --detach --simulate 2 --gpu-memory 1GiB")
    start, show = blocks("jupyter.md", "bash")[:2]
    shell.run(start.replace("8GiB", "300MiB"))
    assert shell.run(show) == "http://127.0.0.1:4711/lab?token=0123abcd\n"
    assert "--port 0" in (shell.folder / "options").read_text()
    shell.run("cotenant cancel notebook")


def test_what_slurm_ran_is_replayed_as_its_guide_says(shell: Shell) -> None:
    shell.program("sacct", ACCOUNTS)
    convert, simulate = blocks("from-slurm.md", "bash", "Replay what Slurm ran")
    shell.run(convert)
    assert (shell.folder / "slurm.csv").read_text().splitlines() == [
        "id,submitted_s,duration_s,estimate_s,gpus",
        "11,1790000000,1800,3600,1",
        "12,1790000600,3600,,2",
        "14,1790000800,60,300,0",
    ]
    assert re.search(r"binpack +3 ", shell.run(simulate))


WAYS_BACK = [page.name for page in sorted(GUIDES.glob("from-*.md"))]
WAYS_BACK += ["beside-nvidia.md", "mig.md", "mlu.md", "mps.md", "switch.md", "virtual-memory.md"]
WITHOUT_DIFFERENCES = ("beside-nvidia.md", "switch.md")
"""these are about two systems, or about all of them"""


@pytest.mark.parametrize("page", WAYS_BACK)
def test_a_guide_that_changes_a_cluster_says_how_to_check_and_to_go_back_and_what_differs(page: str) -> None:
    headings = " / ".join(re.findall(r"^## (.*)$", (GUIDES / page).read_text(), re.MULTILINE)).lower()
    assert "check" in headings
    assert "go back" in headings
    assert page in WITHOUT_DIFFERENCES or "what differs" in headings
