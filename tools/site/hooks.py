# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What MkDocs calls while it builds the site; mkdocs.yml names this file.

The navigation is that of docs/README.md, files beside `docs` that pages link to are part of the site, and diagrams are
drawn by a script of the site itself.
"""

import posixpath
from importlib import metadata
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from tools.site import contents, links, sources

CONTENTS = "README.md"
MERMAID = "javascripts/mermaid.js"
DIAGRAM = '<pre class="mermaid">'
log = get_plugin_logger("cotenant")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Reads the navigation."""
    root = _root(config)

    def uri_of(link: str) -> str:
        return links.uri_of(root, posixpath.normpath(f"{links.DOCS}/{link}"))

    config.nav = contents.navigation((root / links.DOCS / CONTENTS).read_text(), uri_of)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files beside `docs` that pages link to, and the script that draws diagrams."""
    pages = [links.path_of(file.src_uri) for file in files.documentation_pages()]
    for path in sorted(links.reached(_root(config), pages)):
        files.append(_generated(config, path))
    files.append(File.generated(config, MERMAID, abs_src_path=str(_mermaid())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Lets links to files beside `docs` lead to their pages on the site."""
    root = _root(config)
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]

    def line_of(path: str, anchor: str) -> str:
        found = sources.line_of(root / path, anchor.removeprefix("#"))
        if found is None:
            log.warning(f"{page.file.src_uri} links to {path}{anchor}, but the file does not define that name.")
        return found or anchor

    return links.rewritten(root, page.file.src_uri, markdown, line_of)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Adds the script of diagrams to the pages that have one. The theme would load it from another host."""
    if DIAGRAM not in html:
        return html
    return f'{html}\n<script src="{posixpath.relpath(MERMAID, page.url or ".")}"></script>'


def _root(config: MkDocsConfig) -> Path:
    """The repository."""
    return Path(config.config_file_path).parent


def _generated(config: MkDocsConfig, path: str) -> File:
    uri = links.uri_of(_root(config), path)
    if uri.endswith(".html"):
        return File.generated(config, uri, content=sources.page(_root(config), path))
    return File.generated(config, uri, abs_src_path=str(_root(config) / path), inclusion=InclusionLevel.NOT_IN_NAV)


def _mermaid() -> Path:
    """The script of Mermaid, which the package mmdc contains."""
    (script,) = [one for one in metadata.files("mmdc") or () if one.name == "mermaid.js"]
    return Path(str(script.locate()))
