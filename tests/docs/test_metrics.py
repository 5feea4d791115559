# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page of metrics is what the table of metrics says."""

from pathlib import Path

from cotenant.metrics.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_page_has_every_metric_and_no_other() -> None:
    text = PAGE.read_text()
    assert page(text) == text, f"run `python -m cotenant.metrics.reference {PAGE.name}` in its folder"
