# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Each promise on the page of the isolation ladder names a test, or says that it is none; `test_evidence.py` checks
that the tests exist."""

import re
from pathlib import Path

from cotenant.core.isolation import Rung

PAGE = Path(__file__).parents[2] / "docs/explanation/isolation.md"

PROMISES = ("memory held", "compute held", "fault isolation", "live resize", "cost per call", "which programs")
SHOWN = re.compile(r"\[test\]|\[list\]|make bench ONLY=|not promised|as `|^ none |^ every program ")
"""a test, a measured figure, or that there is nothing to show"""


def test_each_cell_has_a_test_or_promises_nothing() -> None:
    lines = PAGE.read_text().splitlines()
    (head,) = (line for line in lines if line.startswith("| |"))
    rungs = [cell.strip(" `") for cell in head.strip("|").split("|")[1:]]
    assert rungs == list(Rung)
    for promise in PROMISES:
        (row,) = (line for line in lines if line.startswith(f"| {promise} |"))
        cells = row.strip("|").split("|")[1:]
        assert len(cells) == len(rungs)
        assert [cell for cell in cells if not SHOWN.search(cell)] == [], promise


def test_every_rung_is_on_the_page() -> None:
    assert [rung for rung in Rung if f"| `{rung}` |" not in PAGE.read_text()] == []
