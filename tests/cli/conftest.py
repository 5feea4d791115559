# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon for the tests of one file, and the environment of commands that talk to it."""

from collections.abc import Iterator

import pytest

from tests.cli.command import environment
from tests.local.daemon import Daemon, running_daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon() as one:
        yield one


@pytest.fixture(scope="module")
def env(daemon: Daemon) -> dict[str, str]:
    return environment(COTENANT_STATE=str(daemon.state))
