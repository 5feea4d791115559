# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Sources of the repository as pages that a browser shows, with a number and an anchor at each line."""

import posixpath
import re
from html import escape
from pathlib import Path

from tools.site.links import listed, uri_of

LINE = "line-"
"""anchors of lines are `line-12`"""
STYLES = """
:root { color-scheme: light dark; }
body { margin: 0; font-family: system-ui, sans-serif; }
header { padding: .6rem 1rem; background: #009485; color: #fff; }
pre { margin: 0; padding: 1rem 0; font-size: .8rem; line-height: 1.45; overflow-x: auto; counter-reset: line; }
pre span { display: block; padding-right: 1rem; counter-increment: line; }
pre span::before {
  content: counter(line); display: inline-block; width: 3.5rem; padding-right: 1rem; text-align: right; color: #888;
}
pre span:target { background: light-dark(#fff3b0, #4a431a); }
li { margin: .3rem; }
"""


def page(root: Path, path: str) -> str:
    """The page of a file, or of a folder with its files."""
    body = _files(root, path) if (root / path).is_dir() else _text(root / path)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(path)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLES}</style></head>'
        f"<body><header>{escape(path)}</header>{body}</body></html>\n"
    )


def _text(file: Path) -> str:
    lines = enumerate(file.read_text(errors="replace").splitlines(), start=1)
    spans = [f'<span id="{LINE}{number}">{escape(line)}</span>' for number, line in lines]
    return f"<pre>{''.join(spans)}</pre>"


def _files(root: Path, folder: str) -> str:
    start = posixpath.dirname(uri_of(root, folder))
    links = {posixpath.basename(path): posixpath.relpath(uri_of(root, path), start) for path in listed(root, folder)}
    rows = [f'<li><a href="{escape(link)}">{escape(name)}</a></li>' for name, link in links.items()]
    return f"<ul>{''.join(rows)}</ul>"


def line_of(file: Path, name: str) -> str | None:
    """The anchor of the line that defines a name; None if no line does."""
    definition = re.compile(rf"\s*(?:async def|def|class) {re.escape(name)}\b|{re.escape(name)}\b[^=]*=")
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        if definition.match(line):
            return f"#{LINE}{number}"
    return None
