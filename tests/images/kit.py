# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Opens the images that the tests built: their settings, their files, and programs that run in them as in a pod."""

import functools
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.binaries import CannotBuildError, fetched_runc
from tests.cluster.images import AGENT, SCHEDULER, WORKLOADS, our_images, read_json, workloads_image
from tests.native.kit import made

ALL = (SCHEDULER, AGENT, WORKLOADS)


@dataclass(frozen=True, slots=True)
class Opened:
    """An image: its configuration and a folder with all its files."""

    name: str
    config: Mapping[str, Any]
    root: Path

    def files(self) -> Iterator[Path]:
        """All regular files."""
        return (path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())

    def run(self, *command: str, user: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs its entry point with these words: read-only, without rights, as its user or another one."""
        return self.run_instead(*self.config["Entrypoint"], *command, user=user)

    def run_instead(self, *command: str, user: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs another program of it in the same way."""
        number, _, group = (user or self.config["User"]).partition(":")
        with tempfile.TemporaryDirectory(prefix="bundle-") as bundle:
            Path(bundle, "config.json").write_text(json.dumps(self._bundle(command, int(number), int(group))))
            words = [str(_runc()), "--root", f"{bundle}/state", "run", "--bundle", bundle, Path(bundle).name]
            return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    def _bundle(self, command: Sequence[str], user: int, group: int) -> dict[str, Any]:
        """The settings of a container as the runtime reads them; the root is read-only and nothing can be written."""
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"}]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": user, "gid": group},
                "args": list(command),
                "env": self.config["Env"],
                "cwd": self.config.get("WorkingDir") or "/",
                "noNewPrivileges": True,
                "capabilities": {},
            },
            "root": {"path": str(self.root), "readonly": True},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]},
        }


@functools.cache
def _runc() -> Path:
    """The program that starts containers, as in the clusters of tests."""
    try:
        return fetched_runc(lambda _: None) / "runc"
    except CannotBuildError as error:
        pytest.skip(f"needs the cluster: {error}")


@functools.cache
def opened(name: str) -> Opened:
    """One of our images, unpacked once."""
    image = workloads_image() if name == WORKLOADS else our_images()

    def unpack(folder: Path) -> None:
        with tarfile.open(image.archive) as archive:
            (entry,) = [one for one in read_json(archive, "manifest.json") if one["RepoTags"] == [name]]
            (folder / "config.json").write_text(json.dumps(read_json(archive, entry["Config"])))
            for layer in entry["Layers"]:
                with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                    assert not [one.name for one in files if Path(one.name).name.startswith(".wh.")]
                    files.extractall(folder / "root", filter="fully_trusted")

    folder = made("image-files", [name, image.archive.parent.name], unpack)
    return Opened(name, json.loads((folder / "config.json").read_text())["config"], folder / "root")
