# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A scratch copy of the repository: tests change files in it, see which ones, and run the changed code."""

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "tools", "docs", "deploy", "native", "CONTRIBUTING.md", "README.md", "pyproject.toml")
LEFT_OUT = shutil.ignore_patterns("cluster", "fuzz", "images", "*.html.gz")
"""what no recipe touches and no probe imports"""


class Scratch:
    """The copy. Paths are relative to the repository's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in COPIED:
            there = ROOT / name
            # Times of modification are kept, so that Python finds the compiled files in __pycache__ still valid.
            if there.is_dir():
                shutil.copytree(there, root / name, ignore=LEFT_OUT)
            else:
                shutil.copy2(there, root / name)

    def write(self, path: str, text: str) -> None:
        """A new file with the two licence lines."""
        file = self.root / path
        assert not file.exists(), f"{path} exists: a recipe must not overwrite it"
        sign = {".py": "#", ".yaml": "#", ".c": "//"}.get(file.suffix)
        licence = ("SPDX-FileCopyrightText: 2026 The cotenant authors", "SPDX-License-Identifier: Apache-2.0")
        file.write_text("".join(f"{sign} {line}\n" for line in licence) * (sign is not None) + text)

    def append(self, path: str, text: str) -> None:
        """At the end of a file."""
        file = self.root / path
        file.write_text(file.read_text() + text)

    def insert(self, path: str, after: str, text: str) -> None:
        """Right behind the first match of a regular expression."""
        self._replace(path, after, lambda found: found[0] + text)

    def replace(self, path: str, pattern: str, text: str) -> None:
        """In place of the first match of a regular expression."""
        self._replace(path, pattern, lambda found: found.expand(text))

    def replace_all(self, path: str, pattern: str, text: str) -> None:
        """In place of every match of a regular expression."""
        self._replace(path, pattern, lambda found: found.expand(text), count=0)

    def _replace(self, path: str, pattern: str, change: Callable[[re.Match[str]], str], count: int = 1) -> None:
        file = self.root / path
        text, changes = re.subn(pattern, change, file.read_text(), count=count, flags=re.MULTILINE)
        assert changes, f"{path}: nothing matches {pattern!r}; adapt this test to the file's new shape"
        file.write_text(text)

    def find(self, folder: str, text: str) -> str:
        """The one Python file of a folder that contains a text."""
        (found,) = (file for file in sorted((self.root / folder).glob("*.py")) if text in file.read_text())
        return found.relative_to(self.root).as_posix()

    def touched(self) -> set[str]:
        """The files that differ from the repository's."""
        return set(self._differing(filecmp.dircmp(ROOT, self.root), ""))

    def _differing(self, both: "filecmp.dircmp[str]", where: str) -> Iterator[str]:
        yield from (where + name for name in both.diff_files)
        yield from (where + name for name in both.right_only if name not in ("state", "run"))
        for name, below in both.subdirs.items():
            if name != "__pycache__":
                yield from self._differing(below, f"{where}{name}/")

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
        python = {"PYTHONPATH": f"{self.root / 'src'}:{self.root}", "PYTHONDONTWRITEBYTECODE": "1"}
        plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take seconds to import
        return {**kept, **python, **plugins, **changes}

    def run(self, *words: str | Path, **changes: str) -> "subprocess.CompletedProcess[str]":
        """The scratch copy's `cotenant` command."""
        done = subprocess.run(
            [sys.executable, "-m", "cotenant", *map(str, words)],
            cwd=self.root.parent,
            env=self.environment(**changes),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def ask(self, code: str) -> Any:
        """What a Python program prints as JSON; it imports the scratch copy's packages, `cotenant` and `tests`."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.root.parent,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def reference(self) -> None:
        """What `make reference` does, in the copy."""
        command = [sys.executable, "-m", "tools.reference"]
        done = subprocess.run(
            command, cwd=self.root, env=self.environment(), capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr

    def test(self, *arguments: str) -> None:
        """Tests of the copy that must pass once the change is made."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            command, cwd=self.root, env=self.environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def simulated(self, jobs: str, *, nodes: str, policy: str = "binpack", job: str, **options: str) -> "Simulated":
        """What becomes of a job of a trace, as `cotenant simulate --record` writes it."""
        folder = Path(tempfile.mkdtemp(dir=self.root.parent))
        (folder / "jobs.csv").write_text(jobs)
        extra = [word for name, value in options.items() for word in (f"--{name}", value)]
        words = ("simulate", "--trace", folder / "jobs.csv", "--nodes", nodes, "--mode", "timed", "--policy", policy)
        done = self.run(*words, "--record", job, "--out", folder / "report", *extra)
        assert done.returncode == 0, done.stderr
        report = json.loads((folder / "report" / "results.json").read_text())
        decisions = sorted((folder / "report").glob("decision-*.json"), key=lambda file: len(file.name))
        slots = [json.loads(file.read_text())["slots"] for file in decisions]
        return Simulated([[slot["gpus"] for slot in one] for one in slots], report["runs"][0]["summary"]["mean_wait"])

    @contextmanager
    def daemon(self, *options: str, **variables: str) -> Iterator["Daemon"]:
        """The scratch copy's daemon."""
        state = Path(tempfile.mkdtemp(prefix="ct"))  # a socket's path must be short
        daemon = Daemon(self, {"COTENANT_STATE": str(state), "COTENANT_RUNTIME": str(state / "run"), **variables})
        try:
            daemon.run("up", "--detach", *options)
            yield daemon
        finally:
            for job in daemon.jobs():
                if job["ended"] is None:
                    self.run("cancel", job["id"], **daemon.where)
            self.run("down", "--wait", **daemon.where)
            shutil.rmtree(state, ignore_errors=True)


class Simulated(NamedTuple):
    """The outcome of a simulation."""

    decisions: list[list[list[int]]]
    """about one job, first to last: the GPUs of each replica; empty: it was refused"""
    mean_wait_s: float


class Daemon:
    """A daemon of the scratch copy, and its commands."""

    def __init__(self, scratch: Scratch, where: dict[str, str]) -> None:
        self.scratch = scratch
        self.where = where

    def run(self, *words: str) -> str:
        done = self.scratch.run(*words, **self.where)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, name: str, *options: str, seconds: float = 60) -> None:
        self.run("submit", "--name", name, *options, "--", "sleep", str(seconds))

    def jobs(self) -> list[Any]:
        listed: list[Any] = json.loads(self.run("jobs", "-o", "json"))
        return listed

    def job(self, name: str) -> Any:
        return next(job for job in self.jobs() if job["name"] == name)
