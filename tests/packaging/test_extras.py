# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The base install runs jobs and simulates; each extra adds what its commands need, and a missing one is named."""

import importlib.util
import json
import re
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.extras import EXTRAS, install_command
from tests.native import kit as native
from tests.packaging import kit

pytestmark = pytest.mark.slow

ALL_HELP = """
import click
from cotenant.cli.main import cotenant

def show(command, names):
    command.main([*names, "--help"], prog_name="cotenant", standalone_mode=False) if not names else None
    context = click.Context(command, info_name=" ".join(names))
    assert command.get_help(context)
    count = 1
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            count += show(command.get_command(context, name), [*names, name])
    return count

print("commands", show(cotenant, []))
"""
PROJECT = tomllib.loads((kit.ROOT / "pyproject.toml").read_text())["project"]


@contextmanager
def daemon(installed: kit.Installed) -> Iterator[dict[str, str]]:
    """A daemon of this installation with one simulated GPU; the variables with which commands find it."""
    with tempfile.TemporaryDirectory(prefix="ct") as state:  # a socket's path must be short
        env = {"COTENANT_STATE": state, "COTENANT_RUNTIME": f"{state}/run"}
        installed.cotenant("up", "--detach", "--simulate", "1", "--gpu-memory", "1GiB", "--web", "0", env=env)
        try:
            yield env
        finally:
            installed.cotenant("down", "--wait", env=env)


def test_every_command_has_its_help_without_extras(base: kit.Installed) -> None:
    absent = f"from importlib.util import find_spec\nprint([one for one in {sorted(EXTRAS)} if find_spec(one)])"
    assert kit.run([base.python, "-c", absent]).stdout == "['h11']\n"  # which uvicorn needs
    done = kit.run([base.python, "-c", ALL_HELP])
    assert int(done.stdout.split()[-1]) > 60


def test_the_base_install_runs_a_job_and_serves_the_pages(base: kit.Installed) -> None:
    with daemon(base) as env:
        base.cotenant("submit", "--memory", "64MiB", "--wait", "--", "echo", "hello", env=env)
        (job,) = json.loads(base.cotenant("jobs", "-o", "json", env=env).stdout)
        assert job["state"] == "finished", job
        assert base.cotenant("logs", job["id"], env=env).stdout == "hello\n"
        assert base.cotenant("web", env=env).stdout.startswith("http://127.0.0.1:")


def test_the_base_install_simulates_and_writes_the_report(base: kit.Installed, tmp_path: Path) -> None:
    base.cotenant("simulate", "--seeds", "42", "--out", tmp_path / "report")
    assert {"results.json", "report.html"} <= {file.name for file in (tmp_path / "report").iterdir()}


def test_the_base_install_prints_the_manifests_of_a_cluster(base: kit.Installed) -> None:
    printed = base.cotenant("kube", "install", "--print", "--kube-version", "1.34.0", "--no-helm").stdout
    assert "kind: DaemonSet" in printed


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("kube", "scheduler"), "kube"),
        (("kube", "agent", "--node", "n", "--simulate", "1"), "kube"),
        (("kube", "web", "--listen", "127.0.0.1:0"), "kube"),
        (("generate", "--jobs", "1"), "workloads"),
        (("demo", "--out", "demo"), "workloads"),
        (("mcp",), "mcp"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(base: kit.Installed, words: tuple[str, ...], extra: str) -> None:
    (line,) = base.cotenant(*words, code=1).stderr.splitlines()
    assert f"`pip install 'cotenant[{extra}]'`" in line


def test_a_benchmark_task_names_the_extra_too(base: kit.Installed) -> None:
    (line,) = kit.run([base.python, "-m", "cotenant.workloads", "vgg16"], code=2).stderr.splitlines()
    assert "`pip install 'cotenant[workloads]'`" in line


def test_a_machine_with_a_driver_is_told_of_the_extra_instead_of_getting_simulated_gpus(base: kit.Installed) -> None:
    with tempfile.TemporaryDirectory(prefix="ct") as state:
        env = {"LD_LIBRARY_PATH": str(native.standin()), "STANDIN_STATE": f"{state}/gpus", "COTENANT_STATE": state}
        (line,) = base.cotenant("up", code=1, env=env).stderr.splitlines()
    assert "this machine has an NVIDIA driver" in line
    assert "`pip install 'cotenant[nvidia]'`" in line


@pytest.mark.parametrize("extra", [name for name in PROJECT["optional-dependencies"] if name != "all"])
def test_an_extra_installs_the_modules_that_it_is_named_for(extra: str, wheel: Path, tmp_path: Path) -> None:
    installed = kit.install(f"{wheel}[{extra}]", tmp_path / "env")
    modules = [module for module, its in EXTRAS.items() if its == extra] or ["uvloop", "httptools"]
    kit.run([installed.python, "-c", f"import {', '.join(modules)}"])
    assert installed.cotenant("--version").stdout.startswith("cotenant, version ")


def test_every_optional_package_has_an_extra_that_exists() -> None:
    assert set(EXTRAS.values()) <= set(PROJECT["optional-dependencies"])
    assert [module for module in EXTRAS if importlib.util.find_spec(module) is None] == [], "tests need all of them"


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        ("/u/.local/share/pipx/venvs/cotenant", "pipx install --force 'cotenant[kube]'"),
        ("/u/.local/share/uv/tools/cotenant", "uv tool install 'cotenant[kube]'"),
        ("/u/.cache/uv/archive-v0/x", "uvx --from 'cotenant[kube]' cotenant"),
        ("/u/project/.venv", "pip install 'cotenant[kube]'"),
    ],
)
def test_an_extra_is_installed_by_the_program_that_installed_cotenant(prefix: str, command: str) -> None:
    assert install_command("kube", prefix) == command


def test_the_documents_name_only_extras_that_exist() -> None:
    pages = [*kit.ROOT.glob("*.md"), *(kit.ROOT / "docs").rglob("*.md"), *(kit.ROOT / "examples").rglob("*.md")]
    groups = {group for page in pages for group in re.findall(r"cotenant\[([\w,]+)\]", page.read_text())}
    assert {name for group in groups for name in group.split(",")} <= set(PROJECT["optional-dependencies"])
