# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of the reference are what the code and the tables behind them say."""

from pathlib import Path

import pytest

from tools.reference.registry import PAGES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_current(page: str) -> None:
    text = (ROOT / page).read_text()
    assert PAGES[page](text) == text, "run `make reference`"
