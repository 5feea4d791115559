# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Calls helm with our chart: how its command line is put together, and what it says if it fails."""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cotenant.errors import CotenantError
from cotenant.kube.api.names import NAMESPACE
from cotenant.kube.install.chart import RELEASE, chart_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Helm:
    """A helm program, and the cluster that it is to use."""

    program: str
    release: str = RELEASE
    kubeconfig: Path | None = None
    context: str | None = None

    def install(self, said: Mapping[str, Any], *, wait_s: float | None, dry_run: bool, again: bool = False) -> str:
        """Install the chart, and return what helm says. With `again`, there is a release that failed."""
        words = ["upgrade", "--install", "--reset-values"] if again else ["install"]
        return self._with_values([*words, "--create-namespace"], said, wait_s, dry_run)

    def upgrade(self, said: Mapping[str, Any], *, wait_s: float | None, dry_run: bool, reset: bool) -> str:
        """Upgrade the release, and return what helm says."""
        values = "--reset-values" if reset else "--reset-then-reuse-values"
        return self._with_values(["upgrade", values], said, wait_s, dry_run)

    def uninstall(self, *, has_failed: bool = False) -> str:
        """Remove the release, and return what helm says, with the output of our job. A release that failed has left
        nothing for the job."""
        done = self._run(["uninstall", self.release, "--wait", *(["--no-hooks"] if has_failed else [])])
        return f"{done.stderr}{done.stdout}"

    def _with_values(self, words: Sequence[str], said: Mapping[str, Any], wait_s: float | None, dry_run: bool) -> str:
        waiting = [] if wait_s is None else ["--wait", "--timeout", f"{wait_s:.0f}s"]
        dry = ["--dry-run=server"] if dry_run else []
        with tempfile.TemporaryDirectory(prefix="cotenant-values-") as place:
            file = Path(place) / "values.yaml"
            file.write_text(yaml.safe_dump(dict(said)))
            command = [words[0], self.release, str(chart_folder()), *words[1:], "--values", str(file), *waiting, *dry]
            return self._run(command).stdout

    def _run(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        where = ["--namespace", NAMESPACE]
        where += [] if self.kubeconfig is None else ["--kubeconfig", str(self.kubeconfig)]
        where += [] if self.context is None else ["--kube-context", self.context]
        done = subprocess.run([self.program, *words, *where], capture_output=True, text=True)
        if done.returncode:
            raise CotenantError(f"helm {words[0]}: {_message(done.stderr)}")
        return done


def find_helm() -> str | None:
    """Return the path of helm; None if there is none."""
    return shutil.which("helm")


def _message(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return " ".join(lines).removeprefix("Error: ") or "it failed without a message"
