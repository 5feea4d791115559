# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One cluster for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.cluster.binaries import Binaries
from tests.cluster.conftest import until_last_use
from tests.cluster.engine import Engine
from tests.cluster.mixed.world import running_both


@pytest.fixture(scope="session")
def both(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A node with NVIDIA GPUs and one with MLUs."""
    with until_last_use("both", running_both(tmp_path_factory.mktemp("mixed"), programs)) as engine:
        yield engine


@pytest.fixture
def mixed(both: Engine) -> Iterator[Engine]:
    """The same for all tests; whatever pods a test leaves are gone before the next."""
    both.wait_for_scheduler()
    yield both
    both.tidy()
