# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One browser for all tests of a file."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.web.browser import CHROMIUM, MISSING, chromium
from tests.web.fake import Served, served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(MISSING)
    with chromium() as one:
        yield one


@pytest.fixture
def site() -> Iterator[Served]:
    with served() as one:
        yield one
