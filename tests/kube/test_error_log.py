# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Lines about placed pods are written together, and none is lost when the scheduler stops."""

import asyncio

import pytest

from cotenant.kube.api.error_log import JoinedLines, to_stderr


def test_lines_of_one_moment_are_written_together_and_later_ones_apart() -> None:
    written: list[tuple[str, ...]] = []

    async def story() -> None:
        lines = JoinedLines(lambda *some: written.append(some), joined_s=0.01)
        lines.add("one")
        lines.add("two")
        assert written == []
        while not written:
            await asyncio.sleep(0.001)
        lines.add("three")
        lines.flush()
        lines.flush()
        await asyncio.sleep(0.02)

    asyncio.run(story())
    assert written == [("one", "two"), ("three",)]


def test_each_line_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    to_stderr("one", "two")
    assert capsys.readouterr().err == "cotenant: one\ncotenant: two\n"
