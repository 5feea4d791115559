# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Each promise on the page of the isolation ladder names a test that exists, or says that it is none."""

import re
from pathlib import Path

from cotenant.core.isolation import Rung
from tests.docs.test_parity import names_in

PAGE = Path(__file__).parents[2] / "docs/explanation/isolation.md"
TEST = re.compile(r"\[test\]\(([^)#]+)#([^)]+)\)")


def test_each_test_on_the_page_exists() -> None:
    found = TEST.findall(PAGE.read_text())
    assert len(found) >= 9
    assert [name for path, name in found if name not in names_in((PAGE.parent / path).resolve())] == []


def test_each_cell_has_a_test_or_promises_nothing() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(("| memory held", "| compute held"))]
    rows += [line for line in PAGE.read_text().splitlines() if line.startswith(("| fault isolation", "| live resize"))]
    cells = [cell for row in rows for cell in row.strip("|").split("|")[1:]]
    assert len(cells) == 12
    assert [cell for cell in cells if "[test]" not in cell and "not promised" not in cell and "as `" not in cell] == []


def test_every_rung_is_on_the_page() -> None:
    assert [rung for rung in Rung if f"| `{rung}` |" not in PAGE.read_text()] == []
