# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One daemon for all tests of a file: starting one takes longer than most of what is asked of it."""

from collections.abc import Iterator

import pytest

from tests.local.daemon import Daemon, running_daemon


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[Daemon]:
    with running_daemon() as one:
        yield one


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """Each test finds it empty, and may kill it if it starts it again."""
    yield shared_daemon
    shared_daemon.clear()
