# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Links of the documents to files of the repository, and where these files are on the site.

Pages of `docs` link to sources, tests and Markdown files beside `docs`. The site has them, too, under `repository/`:
Markdown as pages, everything else as text that can be read in the browser.
"""

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = "docs"
OUTSIDE = "repository"
"""the folder of the site that has the files beside `docs`"""
MARKDOWN = ".md"
PAGES_AND_PICTURES = (MARKDOWN, ".png", ".svg")

CODE = re.compile(r"(?ms)^(?P<fence>```+|~~~+).*?^(?P=fence)[ ]*$|(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)")
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?(?P<after>(?:\s+\"[^\"]*\")?\))")


class Target(NamedTuple):
    """A file or folder of the repository that a page links to."""

    path: str
    """relative to the repository"""
    anchor: str
    """with its `#`, or empty"""


def target_of(root: Path, page: str, link: re.Match[str]) -> Target | None:
    """What a link of a page leads to; None if the link leads to another host or within its page."""
    if not link["target"] or ":" in link["target"]:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link["target"]))
    readme = posixpath.join(path, "README.md")
    return Target(readme if (root / readme).is_file() else path, link["anchor"] or "")


def targets(root: Path, page: str) -> Iterator[str]:
    """The paths of all files and folders that a page links to, with the files of these folders."""
    for link in LINK.finditer(CODE.sub("", (root / page).read_text())):
        if target := target_of(root, page, link):
            yield target.path
            yield from listed(root, target.path)


def listed(root: Path, path: str) -> list[str]:
    """The files of a folder, without those of folders below it."""
    if not (root / path).is_dir():
        return []
    return sorted(posixpath.join(path, one.name) for one in (root / path).iterdir() if one.is_file())


def reached(root: Path, pages: Iterable[str]) -> set[str]:
    """The files beside `docs` that these pages link to, directly or through other Markdown files, and that exist."""
    found: set[str] = set()
    waiting = list(pages)
    while waiting:
        new = {path for path in targets(root, waiting.pop()) if not is_inside_docs(path) and (root / path).exists()}
        waiting += [path for path in new - found if path.endswith(MARKDOWN)]
        found |= new
    return found


def is_inside_docs(path: str) -> bool:
    """Whether MkDocs itself finds the file."""
    return path.startswith(f"{DOCS}/") and path.endswith(PAGES_AND_PICTURES)


def uri_of(root: Path, path: str) -> str:
    """Where a file of the repository is on the site, as MkDocs names its sources."""
    if is_inside_docs(path):
        return path.removeprefix(f"{DOCS}/")
    if (root / path).is_dir():
        return f"{OUTSIDE}/{path}/index.html"
    return f"{OUTSIDE}/{path}" if path.endswith(PAGES_AND_PICTURES) else f"{OUTSIDE}/{path}.html"


def path_of(uri: str) -> str:
    """The file of the repository that a page of the site was made from."""
    return uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else f"{DOCS}/{uri}"


def rewritten(root: Path, uri: str, text: str, line_of: Callable[[str, str], str]) -> str:
    """The text of a page of the site, with links that lead to other places of the site.

    `line_of` turns the anchor of a link to a source, which is the name of a definition, into that of its line.
    """
    page, folder = path_of(uri), posixpath.dirname(uri) or "."

    def replaced(link: re.Match[str]) -> str:
        target = target_of(root, page, link)
        if target is None or (is_inside_docs(page) and is_inside_docs(target.path)):
            return link[0]
        is_source = target.anchor and not target.path.endswith(MARKDOWN)
        anchor = line_of(target.path, target.anchor) if is_source else target.anchor
        return f"{link['before']}{os.path.relpath(uri_of(root, target.path), folder)}{anchor}{link['after']}"

    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(replaced, text[end : code.start()]), _shown(code, text)]
        end = code.end()
    return "".join([*parts, LINK.sub(replaced, text[end:])])


def _shown(code: re.Match[str], text: str) -> str:
    """Code as it is, but for bars in a table: Git servers want them escaped there, and MkDocs would show the escape."""
    is_in_table = code["ticks"] and text.startswith("|", text.rfind("\n", 0, code.start()) + 1)
    return code[0].replace("\\|", "|") if is_in_table else code[0]
