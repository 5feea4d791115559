# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of packages share: packages built as a release builds them, and environments with only these in them."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.native import kit

ROOT = kit.ROOT
EPOCH = "1767225600"
"""the time of all files in a package: 1 January 2026"""
UV = Path(sys.executable).with_name("uv")
SOURCES = ("src", "native", "release", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "hatch_build.py")
"""what a wheel is built from"""


def run(
    command: Sequence[str | Path], *, cwd: Path | None = None, env: dict[str, str] | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """A finished command that ended with this exit code."""
    done = subprocess.run(
        command, cwd=cwd, env=plain() if env is None else env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def plain(**changes: str) -> dict[str, str]:
    """The variables of this process without those that lead Python to other packages, and these changes."""
    misleading = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CC", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if name not in misleading}
    trust = {"UV_SYSTEM_CERTS": "1"} if Path("/etc/ssl/certs/ca-certificates.crt").exists() else {}
    return {**kept, **trust, **changes}


def build(kind: str, out: Path, *, root: Path = ROOT, machine: str | None = None, **env: str) -> Path:
    """A wheel or sdist, built in this folder; a wheel of a release, if it is for a machine."""
    python = kit.environment("release") / "bin" / "python"
    release = {} if machine is None else {"COTENANT_RELEASE_FOR": machine, "SOURCE_DATE_EPOCH": EPOCH}
    command: list[str | Path] = [python, "-m", "hatchling", "build", "-t", kind, "-d", out]
    run(command, cwd=root, env=plain(**release, **env))
    (built,) = out.glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[kind])
    return built


def copy_sources(to: Path) -> Path:
    """A copy of what a wheel is built from, with other times of modification."""
    left_out = shutil.ignore_patterns("__pycache__", "_native", "_uplot", "_version.py")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=left_out, copy_function=shutil.copyfile)
        else:
            to.mkdir(exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
    return to


@dataclass(frozen=True)
class Installed:
    """A virtual environment with cotenant in it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def cotenant(
        self, *words: str | Path, env: Mapping[str, str] | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """The command of this environment, run in an empty folder."""
        with tempfile.TemporaryDirectory() as empty:
            done = run([self.folder / "bin" / "cotenant", *words], cwd=Path(empty), env=plain(**(env or {})), code=code)
        assert "Traceback" not in done.stderr, done.stderr
        return done


def install(what: str | Path, folder: Path, *options: str, python: str = sys.executable, **env: str) -> Installed:
    """A new environment with one package and what it depends on, in the versions that all tests run with."""
    run([UV, "--quiet", "venv", "--python", python, folder])
    lock: list[str | Path] = ["--constraints", ROOT / "requirements" / "dev.txt"]
    command: list[str | Path] = [UV, "--quiet", "pip", "install", "--python", folder / "bin" / "python"]
    run([*command, *lock, *options, str(what)], env=plain(**env))
    return Installed(folder)
