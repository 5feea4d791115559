# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""README.md claims no more than tests show: each answer of its comparison names a test, or a source about others."""

import re
from pathlib import Path

import pytest

from tests.docs.test_parity import names_in
from tools.reference.comparison import OURS, Question, questions, systems

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FEATURES = (ROOT / "docs/reference/features.md").read_text()
MOST_LINES = 85


@pytest.mark.parametrize("one", questions(), ids=lambda one: one.question)
def test_each_answer_names_what_shows_it(one: Question) -> None:
    assert list(one.answers) == list(systems())
    for name, answer in one.answers.items():
        path, _, test = answer.shown_by.partition("::")
        if name != OURS:
            assert answer.shown_by
        elif answer.short != "no":
            assert test in names_in(ROOT / path), answer.shown_by


def test_the_first_page_compares_what_the_reference_does() -> None:
    shown = [one for one in questions() if one.short]
    assert len(shown) > 10
    for one in shown:
        assert f"| {one.short} | {' | '.join(one.answers[name].short for name in systems(first_page=True))} |" in README


def test_the_first_page_is_short() -> None:
    assert len(README.splitlines()) <= MOST_LINES


def test_the_first_page_has_one_picture_of_the_product() -> None:
    assert re.findall(r"!\[[^]]+\]\(([^)]+)\)", README) == ["docs/images/overview.png"]


def named_checks() -> list[str]:
    """Files, folders and patterns of tests, and benchmarks, that the page of features names."""
    return re.findall(r"`((?:tests/|make bench ONLY=)[^`]+)`", FEATURES)


@pytest.mark.parametrize("check", sorted(set(named_checks())))
def test_what_a_feature_is_verified_by_exists(check: str) -> None:
    if check.startswith("tests/"):
        names = re.sub(r"\{([^}]+)\}", "{}", check)
        (choices,) = re.findall(r"\{([^}]+)\}", check) or [""]
        assert [one for one in choices.split(",") if not (ROOT / names.format(one)).exists()] == []
        return
    listed = set(
        re.findall(r'@benchmark\("([^"]+)"', "".join(path.read_text() for path in (ROOT / "bench").rglob("*.py")))
    )
    assert set(check.partition("ONLY=")[2].split(",")) <= listed


def test_every_feature_names_a_check() -> None:
    rows = [line.split("|") for line in FEATURES.splitlines() if line.startswith("| ") and "Verified by" not in line]
    assert len(rows) > 20
    assert [row[1].strip()[:60] for row in rows if not re.search(r"`(?:tests/|make bench)", row[-2])] == []
