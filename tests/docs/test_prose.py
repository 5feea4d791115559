# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Documents and docstrings avoid the phrases that make a text sound translated; CONTRIBUTING.md says how we write."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PHRASES = {
    r"nobody|somebody|whoever": "name the user, process or pod",
    r"(?:,|\band|\bor|\bbut) where (?:there|it|they|that|nothing|none|one|no|nobody|several)\b": "if …",
    r"^where (?:there|it|they|nothing|none|no)\b": "if …",
    r"where (?:there (?:is|are)|it is not|it has|they are not|none is|nothing is|asked to)\b": "if …",
    r"(?:is|are|was|were|be) told(?! (?:apart|from))\b": "who tells what to whom, as an active sentence",
    r"who asks|who comes|who has|who waits|who leads|who may ask": "the user, pod or job that …",
    r"that there (?:are|is) not": "unknown …",
    r"of which (?:one|each|the|some|eight|it)\b": "two sentences",
    r"\bof (?:him|whom)\b": "the user or pod",
    r"is asked for|are asked for|asked of|what is asked": "request, need",
    r"so that there are as many": "as many … as",
    r"whose turn|its turn|have (?:their|its) turn": "order of the queue, first in the queue",
    r"(?<!model )\bcards?\b": "GPU",
    r"\b1 GPUs\b": "1 GPU",
    r"is no news|lives? from|belongs to nobody|in earnest": "the plain statement",
    r"is being built|begun:": "what there is now",
}
"""regular expressions, and what to write instead"""

ALLOWED = {
    "docs/reference/glossary.md": r'Not "card"',
}
"""what a file may say all the same"""

OTHERS_WORK = (
    "docs/results.md",  # written by `make results`
    "docs/decisions",  # history
)
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs")
DOCSTRINGS = ("src",)
"""folders or modules whose docstrings and comments are checked, too"""

READERS = "users|operators|administrators|contributors|researchers|newcomers|authors|readers|people|everybody"


def files(names: tuple[str, ...], suffix: str) -> list[str]:
    """The files below these names, as paths relative to the repository."""
    found = [
        path for name in names for path in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))
    ]
    paths = sorted(path.relative_to(ROOT).as_posix() for path in found if path.suffix == suffix)
    return [path for path in paths if not path.startswith(OTHERS_WORK)]


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a document with their numbers, without code."""
    plain = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(plain.splitlines(), start=1):
        yield number, re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", line)


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings, attribute docstrings and comments of a module, with the numbers of their lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for offset, line in enumerate(node.value.value.splitlines()):
                yield node.lineno + offset, re.sub(r"`[^`]*`", "", line)
    for number, line in enumerate(text.splitlines(), start=1):
        if (comment := re.search(r"(?:^|\s)# (.*)", line)) and "SPDX" not in line:
            yield number, comment[1]


def lapses(path: str, lines: Iterator[tuple[int, str]]) -> list[str]:
    allowed = re.compile(ALLOWED.get(path, r"(?!)"))
    found = []
    for number, line in lines:
        text = allowed.sub("", line)
        for phrase, better in PHRASES.items():
            if match := re.search(rf"\b(?:{phrase})\b" if phrase[0].isalpha() else phrase, text, re.IGNORECASE):
                found.append(f"{path}:{number}: {match[0].strip()!r} -> {better}: {line.strip()[:100]}")
    return found


@pytest.mark.parametrize("path", files(DOCUMENTS, ".md"))
def test_a_page_reads_like_a_manual(path: str) -> None:
    assert lapses(path, sentences((ROOT / path).read_text())) == []


@pytest.mark.parametrize("path", files(DOCSTRINGS, ".py"))
def test_docstrings_and_comments_read_like_a_manual(path: str) -> None:
    assert lapses(path, docstrings((ROOT / path).read_text())) == []


def test_the_lists_name_what_exists() -> None:
    assert [name for name in (*ALLOWED, *OTHERS_WORK, *DOCSTRINGS) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", [page for page in files(("docs",), ".md") if "/" in page.removeprefix("docs/")])
def test_a_page_says_in_its_first_lines_for_whom_it_is(page: str) -> None:
    first = " ".join((ROOT / page).read_text().split()[:60])
    assert re.search(rf"\b[Ff]or (?:[\w-]+ )*?(?:{READERS})\b", first)
