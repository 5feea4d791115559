# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The map of the local engine names every signal of it and of the parts of a node, and each has a subscriber."""

import re
from pathlib import Path

import cotenant.local
import cotenant.node

PACKAGE = Path(cotenant.local.__file__).parent
SOURCES = [path.read_text() for one in (PACKAGE, Path(cotenant.node.__file__).parent) for path in one.glob("*.py")]


def test_the_map_lists_every_signal_of_the_engine_and_no_other() -> None:
    listed = set(re.findall(r"^\| `\w+\.(\w+)` \|", (PACKAGE / "README.md").read_text(), re.MULTILINE))
    sent = {name for source in SOURCES for name in re.findall(r"self\.(\w+): Signal\[", source)}
    assert listed == sent


def test_every_signal_of_the_engine_has_a_listener() -> None:
    sent = {name for source in SOURCES for name in re.findall(r"self\.(\w+): Signal\[", source)}
    heard = {name for source in SOURCES for name in re.findall(r"\.(\w+)\.subscribe\(", source)}
    assert sent == heard - {"events"}
