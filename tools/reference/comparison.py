# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The comparison with other systems: its page, and the table of README.md, made from comparison.yaml."""

from pathlib import Path
from typing import NamedTuple

import yaml

from tools.reference.marked import replaced, table

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs/reference/comparison.yaml"
OURS = "cotenant"
HEAD = """# Compared with other systems

For users who choose between cotenant and another way to share GPUs. This page is generated from
[comparison.yaml](comparison.yaml) by `make reference`. Each answer of ours names the test that shows it; each answer
about another system names the document or source that it is taken from. "no" means that the documents and sources of
the version below have no such feature. None of the other systems was run for this page. [Parity](parity.md) compares
features one by one.
"""


class Answer(NamedTuple):
    """What a system does, and what shows it: a test of ours, or a document of the other system."""

    short: str
    shown_by: str


class Question(NamedTuple):
    """One line of the comparison."""

    question: str
    short: str | None
    """the same in a few words, for README.md; None: it is not there"""
    answers: dict[str, Answer]


def systems(*, first_page: bool = False) -> dict[str, str]:
    """What each name stands for; with `first_page`, of the systems in README.md only."""
    found = yaml.safe_load(TABLE.read_text())["systems"]
    return {name: about["what"] for name, about in found.items() if about.get("short", True) or not first_page}


def questions() -> list[Question]:
    """The lines of the comparison."""
    found = yaml.safe_load(TABLE.read_text())["questions"]
    return [
        Question(one["question"], one.get("short"), {name: Answer(*row) for name, row in one["answers"].items()})
        for one in found
    ]


def summary() -> str:
    """The table of all systems and questions."""
    names = list(systems())
    return table(("", *names), [(one.question, *(one.answers[name].short for name in names)) for one in questions()])


def first_page() -> str:
    """The table of README.md, which fits on a screen: some of the systems and questions."""
    names = list(systems(first_page=True))
    rows = [(one.short, *(one.answers[name].short for name in names)) for one in questions() if one.short]
    return table(("", *names), rows)


def page(_: str) -> str:
    """The page, whatever it was before."""
    versions = table(("Name here", "Version"), [(name, what) for name, what in systems().items() if name != OURS])
    parts = [HEAD, summary(), f"## Versions\n\n{versions}"]
    return "\n".join([*parts, *(_section(one) for one in questions())])


def readme(text: str) -> str:
    """README.md with its table renewed."""
    return replaced(text, "docs/reference/comparison.yaml", first_page())


def _section(one: Question) -> str:
    rows = [(name, answer.short, _shown_by(name, answer)) for name, answer in one.answers.items()]
    return f"## {one.question}\n\n{table(('System', 'Answer', 'Shown by'), rows)}"


def _shown_by(name: str, answer: Answer) -> str:
    path, _, test = answer.shown_by.partition("::")
    return f"[{test}](../../{path}#{test})" if name == OURS and test else answer.shown_by
