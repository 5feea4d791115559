# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the version of this source tree: that of its tag, or the next one with `.devN`, N commits after the last tag.

An archive that `git archive` made contains what git said about the tag. A clone or copy without tags knows the last
release from the changelog. A source distribution contains its version already, so the build does not ask here. Where
neither git nor tags are, as in the build of an image, $COTENANT_VERSION is the version.
"""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCHIVED = ".git_archival.txt"
"""a file in which `git archive` replaces a placeholder by the description of the commit"""
RELEASE = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
DESCRIBED = re.compile(rf"v({RELEASE})(?:-(\d+)-g[0-9a-f]+)?(-dirty)?")
SECTION = re.compile(rf"^## \[?({RELEASE})\b", re.MULTILINE)
NONE_YET = "0.0.0"


def find(root: Path = ROOT) -> str:
    """The version of the tree in this folder."""
    if given := os.environ.get("COTENANT_VERSION"):
        return given
    for said in (_archived(root), _described(root)):
        if found := DESCRIBED.fullmatch(said):
            commits = int(found[2] or 0)
            return found[1] if not commits and not found[3] else f"{_next(found[1])}.dev{commits}"
    return f"{_next(_newest_section(root))}.dev0"


def _next(release: str) -> str:
    """The release with its last number raised by one: that of the patch, or of the release candidate."""
    return re.sub(r"\d+$", lambda number: str(int(number[0]) + 1), release)


def _archived(root: Path) -> str:
    file = root / ARCHIVED
    return file.read_text().strip() if file.is_file() else ""


def _described(root: Path) -> str:
    if not (root / ".git").exists():  # else git would describe a repository that contains this folder
        return ""
    command = ["git", "describe", "--tags", "--dirty", "--match", "v[0-9]*"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _newest_section(root: Path) -> str:
    found = SECTION.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    return found[1] if found else NONE_YET


if __name__ == "__main__":
    print(find())
