# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon for the tests of one file."""

from collections.abc import Iterator

import pytest

from tests.local.daemon import Daemon, running_daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon() as one:
        yield one


@pytest.fixture(autouse=True)
def use_it(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test uses the daemon of its file, as a program would."""
    monkeypatch.setenv("COTENANT_STATE", str(daemon.state))
    monkeypatch.setenv("XDG_STATE_HOME", str(daemon.state / "own"))
