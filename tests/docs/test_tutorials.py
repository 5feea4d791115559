# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tutorials of one machine, and what README.md shows, do what they say: a script follows them word for word."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.tutorials import BLOCK, OUTPUT, SCRIPT, first_missing, follow, home, steps

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs/tutorial").glob("*.md"))
NEEDS_A_CLUSTER = ("cluster.md",)
"""tutorials that tests/cluster/test_tutorial.py follows"""
NEEDS_ROOT = ("lab-server",)
ALONE = ("unshare", "--net", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "sh", "-c")
"""a network of its own, in which ports that a page names are free"""
OWN_NETWORK = (*ALONE, 'ip link set lo up && exec "$@"', "sh")


@pytest.fixture(scope="module")
def _installed() -> None:
    """`make install` of a tutorial changes nothing while tests run."""
    done = subprocess.run(["make", "--question", "install"], cwd=ROOT)
    assert done.returncode == 0, "run `make install` first"


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    "page", [page for page in TUTORIALS if page.name not in NEEDS_A_CLUSTER], ids=lambda page: page.stem
)
def test_a_tutorial_does_what_it_says(page: Path) -> None:
    if page.stem in NEEDS_ROOT and os.geteuid() != 0:
        pytest.skip("needs root")
    with home() as env:
        follow(page, env, prefix=OWN_NETWORK)


@pytest.mark.usefixtures("_installed")
def test_the_commands_of_the_first_page_run() -> None:
    with home() as env:
        follow(ROOT / "README.md", env, prefix=OWN_NETWORK)


def test_the_commands_of_the_first_page_for_a_cluster_are_those_of_its_tutorial() -> None:
    (shown,) = [block for _, block in BLOCK.findall((ROOT / "README.md").read_text()) if "helm" in block]
    commands = "".join(step.commands for step in steps(ROOT / "docs/tutorial/cluster.md")).splitlines()
    assert set(shown.splitlines()) <= set(commands)


def test_the_commands_of_the_first_page_for_a_lab_server_are_those_of_its_pages() -> None:
    (shown,) = [block for _, block in BLOCK.findall((ROOT / "README.md").read_text()) if "service install" in block]
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("howto/install.md", "tutorial/lab-server.md"))
    assert [line for line in shown.splitlines() if line not in pages] == []


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_block_of_a_tutorial_is_run_or_compared(page: Path) -> None:
    assert steps(page)
    assert {language for language, _ in BLOCK.findall(page.read_text())} <= {SCRIPT, OUTPUT}
    assert len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) == 2 * len(BLOCK.findall(page.read_text()))


def test_a_line_that_is_not_printed_is_noticed() -> None:
    output = "one  1\ntwo 2\nthree 3\n"
    assert first_missing(("one 1", "three …"), output) is None
    assert first_missing(("three 3", "one 1"), output) == "one 1"
    assert first_missing(("one",), output) == "one"
    assert first_missing(("… 4",), output) == "… 4"


def test_a_page_whose_command_fails_or_prints_something_else_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    env = {"PATH": os.environ["PATH"]}
    page.write_text("```sh\nX=1\n```\n\n```sh\necho $X\n```\n\n```text\n1\n```\n")
    follow(page, env)
    page.write_text("```sh\necho 1\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match="shows '2'"):
        follow(page, env)
    page.write_text("```sh\nfalse\necho 1\n```\n")
    with pytest.raises(AssertionError, match="exit code 1"):
        follow(page, env)
