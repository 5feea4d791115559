# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An agent that does what a test says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job.serving import ScriptedAgent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    scripted = ScriptedAgent(tmp_path / "agent")
    yield scripted
    if scripted.listener.fileno() >= 0:
        scripted.die()
