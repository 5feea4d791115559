# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The table "Where a change goes" of CONTRIBUTING.md, as data."""

import re

from tests.docs.scratch import ROOT

PAGE = ROOT / "CONTRIBUTING.md"
SECTION = re.compile(r"^## Where a change goes\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| [^|]*\*\*(.+?)\*\*[^|]* \| (.*) \|$", re.MULTILINE)
FILE = re.compile(r"`((?:src|native|tests|docs|deploy)/[\w./-]+\.\w+)`")
PLACEHOLDER = "NAME"
"""stands for a name of your own choice: `src/cotenant/kube/codec/NAME.py`"""


def recipes() -> dict[str, list[str]]:
    """The files that each row names, by the word in bold."""
    found = SECTION.search(PAGE.read_text())
    assert found is not None, "CONTRIBUTING.md has no section 'Where a change goes'"
    return {name: FILE.findall(files) for name, files in ROW.findall(found[1])}


def unmatched(named: list[str], touched: set[str]) -> tuple[list[str], list[str]]:
    """The files that a row names and nobody touched, and those that were touched and are not named."""
    patterns = {name: re.compile(re.escape(name).replace(PLACEHOLDER, r"[\w-]+")) for name in named}
    idle = [name for name, pattern in patterns.items() if not any(map(pattern.fullmatch, touched))]
    extra = [file for file in sorted(touched) if not any(pattern.fullmatch(file) for pattern in patterns.values())]
    return idle, extra
