# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Packages and environments that tests of one process share."""

import platform
from pathlib import Path

import pytest

from tests.packaging import kit


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a release for this machine."""
    return kit.build("wheel", tmp_path_factory.mktemp("wheel"), machine=platform.machine())


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.build("sdist", tmp_path_factory.mktemp("sdist"), machine=platform.machine())


@pytest.fixture(scope="session")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> kit.Installed:
    """An installation without any extra."""
    return kit.install(wheel, tmp_path_factory.mktemp("base") / "env")
