# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The navigation of the site, made from the tables of docs/README.md."""

import re
from collections.abc import Callable
from typing import Any

ENTRY = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")
Nav = list[dict[str, Any]]


def navigation(text: str, uri_of: Callable[[str], str]) -> Nav:
    """One section for each heading, one entry for each link in the first column of its tables.

    `uri_of` turns a link of the page into the page's address on the site. The title of a numbered page is its own.
    """
    nav: Nav = [{"Home": "README.md"}]
    section: list[Any] = []
    entries = section
    for line in text.splitlines():
        if heading := re.match(r"(##|###) (.*)", line):
            entries = []
            if heading[1] == "##":
                section = entries
                nav.append({heading[2]: section})
            else:
                section.append({heading[2]: entries})
        elif line.startswith("| "):
            for title, target in ENTRY.findall(line.split("|")[1]):
                entries.append(uri_of(target) if title.isdigit() else {title: uri_of(target)})
    return [one for one in nav if all(one.values())]
