# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The plugins of kubectl, for tests that look at a cluster as a user does."""

import sys
import tomllib
from pathlib import Path

from tests.cluster.engine import Engine

ROOT = Path(__file__).parents[2]


class Plugins:
    """The plugins as an install puts them on the PATH."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
        for name, (module, _, function) in ((name, entry.partition(":")) for name, entry in scripts.items()):
            (folder / name).write_text(f"#!{sys.executable}\nfrom {module} import {function}\n\n{function}()\n")
            (folder / name).chmod(0o755)

    def kubectl(self, *words: str, user: str = "admin") -> str:
        cluster = self._engine.cluster
        path = f"PATH={self._folder}:{cluster.binaries.path}"
        credentials = f"KUBECONFIG={cluster.credentials / f'{user}.kubeconfig'}"
        return cluster.machines[0].run("env", path, credentials, "kubectl", *words)
