# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One server of pages: its source, its access, its live boards, its files, and how it renders a page."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from cotenant import __version__
from cotenant.web.access import Access, Problem, Viewer
from cotenant.web.live import Board, Hub, Piece
from cotenant.web.rendering import environment
from cotenant.web.source import Source

TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
FOLDERS = ("static", "_uplot")
"""of files for browsers; the second one is made by the build (`hatch_build.py`)"""
KEPT_S = 3600


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the navigation."""

    path: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What one server of pages is made of."""

    source: Source
    access: Access
    base: str = ""
    """path under which the pages are served, without a slash at its end"""
    reports: Path | None = None
    """folder of reports of the simulator"""
    navigation: Sequence[Entry] = field(init=False)
    hub: Hub = field(init=False)
    _templates: Environment = field(init=False)
    _files: dict[str, bytes] = field(init=False)
    _asset: str = field(init=False)

    def __post_init__(self) -> None:
        templates, content = environment(self.base), static_files()
        digest = hashlib.sha256(b"".join(content[name] for name in sorted(content))).hexdigest()[:12]
        pieces = templates.get_template("pieces.html").module

        def render(piece: Piece) -> Markup:
            macro = getattr(pieces, piece.macro)
            return Markup(str(macro(*piece.arguments)).strip())

        for name, value in {
            "navigation": tuple(Entry(path, title) for path, title in NAVIGATION),
            "hub": Hub(self.source, render),
            "_templates": templates,
            "_files": content,
            "_asset": digest,
        }.items():
            object.__setattr__(self, name, value)

    def page(self, template: str, viewer: Viewer, here: str, **values: Any) -> Response:
        """A whole page. A page with a board is live."""
        board, live = values.get("board"), values.pop("live", None)
        assert board is None or isinstance(board, Board)
        html = self._templates.get_template(template).render(
            viewer=viewer,
            here=here,
            navigation=self.navigation,
            live=live,
            seen=board.id if board is not None else None,
            now=round(time.time(), 3),
            version=__version__,
            asset=self._asset,
            **values,
        )
        return HTMLResponse(html)

    def problem(self, about: Problem) -> Response:
        """A page that says what is wrong."""
        template = self._templates.get_template("problem.html")
        html = template.render(
            title=about.title or about.status.phrase, text=about.text, script=about.script, command=about.command
        )
        return HTMLResponse(html, status_code=about.status)

    def static(self, name: str) -> Response:
        content = self._files.get(name)
        if content is None:
            return self.problem(Problem(HTTPStatus.NOT_FOUND, f"no file {name[:60]!r}"))
        headers = {"cache-control": f"max-age={KEPT_S}"}
        return Response(content, media_type=TYPES[Path(name).suffix], headers=headers)


NAVIGATION = (
    ("/", "Overview"),
    ("/queue", "Queue"),
    ("/history", "History"),
    ("/whatif", "What-if"),
    ("/reports", "Reports"),
)


def static_files() -> dict[str, bytes]:
    """The files for browsers by name. They are read once, so that no request names a path."""
    found: dict[str, bytes] = {}
    for folder in FOLDERS:
        root = files("cotenant.web") / folder
        if root.is_dir():
            found |= {one.name: one.read_bytes() for one in root.iterdir() if Path(one.name).suffix in TYPES}
    return found
