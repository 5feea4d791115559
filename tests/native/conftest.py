# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests over the stand-in driver."""

from pathlib import Path

import pytest

from tests.native import kit


@pytest.fixture
def place(tmp_path: Path) -> kit.Slice:
    """A slice of the stand-in's first GPU; a test writes its limits."""
    return kit.Slice(tmp_path)
