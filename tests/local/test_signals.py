# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The map of the local engine names every signal, and each has a subscriber."""

import re
from pathlib import Path

import cotenant.local

PACKAGE = Path(cotenant.local.__file__).parent


def test_the_map_lists_every_signal_of_the_engine_and_no_other() -> None:
    listed = set(re.findall(r"^\| `\w+\.(\w+)` \|", (PACKAGE / "README.md").read_text(), re.MULTILINE))
    sources = (path.read_text() for path in PACKAGE.glob("*.py"))
    sent = {name for source in sources for name in re.findall(r"self\.(\w+): Signal\[", source)}
    assert listed == sent


def test_every_signal_of_the_engine_has_a_listener() -> None:
    sources = {path.name: path.read_text() for path in PACKAGE.glob("*.py")}
    sent = {name for source in sources.values() for name in re.findall(r"self\.(\w+): Signal\[", source)}
    heard = {name for source in sources.values() for name in re.findall(r"\.(\w+)\.subscribe\(", source)}
    assert sent == heard - {"events"}
