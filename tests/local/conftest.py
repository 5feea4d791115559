# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What tests share: one daemon for all tests of a file, since starting one takes longer than most of what is asked of
it, and an engine in this process."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.local.engine import Engine
from tests.local.daemon import Daemon, running_daemon
from tests.local.engines import engine_on


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[Daemon]:
    with running_daemon() as one:
        yield one


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """Each test finds it empty, and may kill it if it starts it again."""
    yield shared_daemon
    shared_daemon.clear()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


@pytest.fixture
def engine(runner: asyncio.Runner, tmp_path: Path) -> Iterator[Engine]:
    runner.get_loop()
    with engine_on(tmp_path) as (one, _):
        yield one
