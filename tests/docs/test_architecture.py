# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The walks through the code name files and definitions that exist, and each has a figure."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
TEXT = " ".join(PAGE.read_text().split())
NAME = r"`([A-Za-z_]\w*)`"
STEP = re.compile(rf"\[`([\w./-]+)`\]\((\.\./[^)]+)\)(: {NAME}(?:, {NAME})*)?")
"""a link whose text is a file in backticks, and behind a colon the names that it defines, if any"""
WALKS, LEAST_STEPS = 7, 5


def steps() -> list[tuple[str, Path, tuple[str, ...]]]:
    """Every file on the page: its short name, where it is, and the definitions that are to be in it."""
    return sorted(
        {
            (match[1], (PAGE.parent / match[2]).resolve(), tuple(re.findall(NAME, match[3] or "")))
            for match in STEP.finditer(TEXT)
        }
    )


STEPS = steps()


def defines(text: str, name: str) -> bool:
    """Whether a Python or C source defines a function, class, method, constant or hook of this name."""
    python = rf"^\s*(?:async def|def|class) {name}\b|^{name}\b[^=\n]*="
    c = rf"^(?!\s)[\w *]*\b{name}\([^;]*$|^HOOK\({name},"
    return re.search(f"{python}|{c}", text, re.MULTILINE) is not None


def test_there_are_seven_walks_with_a_figure_each() -> None:
    sections = re.split(r"^## \d\. ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) == WALKS
    assert [section.count("```mermaid") for section in sections] == [1] * WALKS
    assert all(len(STEP.findall(" ".join(section.split()))) >= LEAST_STEPS for section in sections)


@pytest.mark.parametrize(("shown", "path", "names"), STEPS, ids=[f"{one[0]}: {', '.join(one[2])}" for one in STEPS])
def test_every_file_and_name_of_a_walk_exists(shown: str, path: Path, names: tuple[str, ...]) -> None:
    assert path.exists()
    assert path.as_posix().endswith(shown)
    text = "" if path.is_dir() else path.read_text()
    assert [name for name in names if not defines(text, name)] == []
