# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the fast tests of the core, and the package as users install it, with every Python version of this machine.

Each version gets an environment of its own in build/pythons, with the locked versions of all packages. A version that
is not installed is listed as such. A fault of one version does not stop the others.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from release.version import ROOT

NEWEST = 14
VERSIONS = tuple(f"3.{minor}" for minor in range(11, NEWEST + 1))
TESTS = (
    "tests/core",
    "tests/wire",
    "tests/properties",
    "tests/job",
    "tests/sim/test_clusters.py",
    "tests/metrics/test_table.py",
)
"""tests of code that Python itself runs: no cluster, no compiler, no browser"""
UV = Path(sys.executable).with_name("uv")


def candidates(version: str) -> Iterator[Path]:
    """Interpreters that may have this version: on the search path, then those of pyenv and of uv."""
    for folder in os.get_exec_path():
        yield Path(folder, f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    own = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    yield from sorted(own.glob(f"cpython-{version}.*/bin/python{version}"), reverse=True)


def find_python(version: str) -> Path | None:
    """An interpreter of this version that works: a shim of pyenv does not, if pyenv has not chosen the version."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in candidates(version):
        if os.access(path, os.X_OK):
            done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return path
    return None


def claimed() -> set[str]:
    """The versions that the classifiers of the package list."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {found[1] for line in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", line))}


def try_python(version: str, python: Path, log: Path) -> bool:
    """Whether the tests and an installed package work with this interpreter; what was said is in the log."""
    folder = log.with_suffix("")
    env = folder / "bin" / "python"
    lock = ROOT / "requirements" / "dev.txt"
    with open(log, "w") as out, tempfile.TemporaryDirectory(prefix="ct") as state:
        steps: list[list[str | Path]] = [
            [UV, "venv", "--quiet", "--clear", "--python", python, folder],
            [UV, "pip", "sync", "--quiet", "--python", env, "--require-hashes", lock],
            [UV, "pip", "install", "--quiet", "--python", env, "--no-deps", "--no-build-isolation", ROOT],
            [folder / "bin" / "cotenant", "--version"],
            [folder / "bin" / "cotenant", "simulate", "--seeds", "42"],
            [folder / "bin" / "cotenant", "up", "--detach", "--simulate", "1", "--gpu-memory", "1GiB"],
            [folder / "bin" / "cotenant", "submit", "--memory", "64MiB", "--wait", "--", "true"],
            [folder / "bin" / "cotenant", "down", "--wait"],
            [env, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *TESTS],
        ]
        settings = {**os.environ, "COTENANT_STATE": state, "COTENANT_RUNTIME": f"{state}/run"}
        for step in steps:
            print("+", *step, file=out, flush=True)
            if subprocess.run(step, cwd=ROOT, env=settings, stdout=out, stderr=out, check=False).returncode:
                return False
    shutil.rmtree(folder)
    return True


def main() -> None:
    """Tries every Python version, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m release.pythons", description=main.__doc__)
    parser.add_argument("version", nargs="*", help=f"for example 3.12; default: {', '.join(VERSIONS)}")
    options = parser.parse_args()
    logs = ROOT / "build" / "pythons"
    logs.mkdir(parents=True, exist_ok=True)
    works = dict[str, bool | None]()
    for version in options.version or VERSIONS:
        python = find_python(version)
        print(f"Python {version}: {python or 'not installed'}", flush=True)
        works[version] = None if python is None else try_python(version, python, logs / f"{version}.log")
        if python is not None:
            end = "works" if works[version] else f"FAILED, see {os.path.relpath(logs / f'{version}.log')}"
            print(f"Python {version}: {end}", flush=True)
    if untried := sorted(claimed() & {version for version, end in works.items() if end is None}):
        print(f"The classifiers of pyproject.toml list {', '.join(untried)}, which was not tried here")
    sys.exit(False in works.values())


if __name__ == "__main__":
    main()
