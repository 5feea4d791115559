# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a page between two marks, which are made from the code. The rest of the page is written by people."""

from collections.abc import Iterable, Sequence

END = "<!-- end of what is generated -->"


def replaced(text: str, source: str, content: str) -> str:
    """The page with the part that is generated from `source` renewed. The page must have it."""
    begin = f"<!-- generated from {source} -->\n"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page has no part between {begin.strip()!r} and {END!r}")
    return f"{before}{begin}\n{content.strip()}\n\n{END}{after}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown. A `|` in a cell is escaped."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in escaped)]
    return "\n".join(lines) + "\n"
