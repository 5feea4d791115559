# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation: whole, searchable, with diagrams, and without any other host."""

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import markdown
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cli.command import environment
from tests.web.browser import CHROMIUM, DARK, DESKTOP, MISSING, PHONE, SCREENSHOTS, chromium

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOOKS = {"desktop": DESKTOP, "dark": DARK, "phone": PHONE}
WITH_A_DIAGRAM = "explanation/architecture/"
WITH_LINKS_TO_SOURCES = "explanation/isolation/index.html"
SCREEN_PX = 1250
GITHUB = """body {width: 830px; margin: 0; font: 16px/1.5 "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif}
p, table, pre {margin: 0 0 16px}
h1, h2 {margin: 24px 0 16px; padding-bottom: .3em; border-bottom: 1px solid; line-height: 1.25}
pre {padding: 16px; font: 13.6px/1.45 monospace}
table {border-collapse: collapse}
td, th {padding: 6px 13px; border: 1px solid}
img {max-width: 100%}"""


def build(repository: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    env = environment(NO_MKDOCS_2_WARNING="1", PYTHONPATH=str(repository))
    return subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serving(site) as one:
        yield one


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a web server that serves the folder."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and writes no log."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(MISSING)
    with chromium() as one:
        yield one


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with our configuration and two pages, one of which links to a source and to a folder."""
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in {
        "docs/README.md": "# Home\n\n## Guides\n\n| Page |\n|---|\n| [One](one.md) |\n",
        "docs/one.md": "# One\n\n[a function](../src/a.py#work), [sources](../src), [home](README.md#guides)\n\n"
        "| A |\n|---|\n| `a\\|b` |\n",
        "docs/images/favicon.svg": "<svg/>",
        "docs/stylesheets/site.css": "",
        "src/a.py": "import os\n\n\ndef work() -> None: ...\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_links_to_sources_lead_to_the_line_of_the_definition(small: Path) -> None:
    done = build(small, small / "out")
    assert done.returncode == 0, done.stderr
    links = re.findall(r'href="([^"]+)">(?:a function|sources)<', (small / "out/one/index.html").read_text())
    assert links == ["../repository/src/a.py.html#line-4", "../repository/src/"]
    assert '<span id="line-4">def work() -&gt; None: ...</span>' in (small / "out/repository/src/a.py.html").read_text()
    assert "<code>a|b</code>" in (small / "out/one/index.html").read_text()
    assert 'href="a.py.html"' in (small / "out/repository/src/index.html").read_text()


def test_every_kind_of_broken_link_and_a_page_without_an_entry_are_errors(small: Path) -> None:
    links = "[a](../src/a.py#rest) [b](../src/b.py) [c](#nothing) [d](README.md#nothing) [e](two.md) ![f](f.png)"
    (small / "docs/one.md").write_text(f"# One\n\n{links}\n")
    (small / "docs/lost.md").write_text("# Lost\n")
    done = build(small, small / "out")
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert done.returncode != 0
    complaints = ("src/a.py#rest", "src/b.py", "'#nothing'", "README.md#nothing", "two.md", "f.png")
    assert [name for name in complaints if not any(name in line for line in warnings)] == []
    assert "lost.md" in done.stderr
    assert len(warnings) == len(complaints) + 1


def test_the_site_has_the_pages_and_the_sources_that_they_link_to(site: Path) -> None:
    assert "How-to guides" in (site / "index.html").read_text()
    links = re.findall(r'href="([^"#]+\.html)#line-\d+"', (site / WITH_LINKS_TO_SOURCES).read_text())
    assert links
    assert [link for link in links if not ((site / WITH_LINKS_TO_SOURCES).parent / link).resolve().is_file()] == []


def test_search_has_the_text_of_every_page(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert "explanation/fragmentation/" in index
    assert "repository/CONTRIBUTING/" in index


@contextmanager
def opened(browser: Browser, address: str, look: str) -> Iterator[tuple[Page, list[str]]]:
    """A page of the site's start, and its requests to other hosts and errors, which there must not be."""
    context = browser.new_context(**LOOKS[look])
    page, complaints = context.new_page(), list[str]()
    page.on("request", lambda request: complaints.append(request.url) if not _is_own(request.url, address) else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        page.goto(address)
        yield page, complaints
    finally:
        context.close()


def _is_own(url: str, address: str) -> bool:
    return url.startswith((address, "data:", "blob:"))


@pytest.mark.parametrize("look", LOOKS)
def test_pages_and_diagrams_are_shown_without_another_host(browser: Browser, address: str, look: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with opened(browser, address, look) as (page, complaints):
        page.screenshot(path=SCREENSHOTS / f"site-home-{look}.png")
        page.goto(address + WITH_A_DIAGRAM)
        page.wait_for_function("document.querySelectorAll('div.mermaid').length > 4")
        page.screenshot(path=SCREENSHOTS / f"site-diagram-{look}.png")
        assert page.locator("pre.mermaid").count() == 0
        size = page.viewport_size
        assert size is not None
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert complaints == []


def test_search_finds_a_word(browser: Browser, address: str) -> None:
    with opened(browser, address, "desktop") as (page, complaints):
        page.locator("input.md-search__input").fill("fragmentation")
        expect(page.locator(".md-search-result__link").first).to_be_visible(timeout=30_000)  # the index is made first
        assert complaints == []


def test_the_first_page_fits_on_two_screens(browser: Browser, tmp_path: Path) -> None:
    """Measured with the sizes of the style sheet with which GitHub shows a README.md, in a column 830 px wide."""
    body = markdown.markdown((ROOT / "README.md").read_text(), extensions=["tables", "fenced_code"])
    file = tmp_path / "page.html"
    file.write_text(f'<!doctype html><base href="{ROOT.as_uri()}/"><style>{GITHUB}</style><body>{body}</body>')
    with opened(browser, file.as_uri(), "desktop") as (page, _):
        page.wait_for_function("document.images[0].complete")
        assert page.evaluate("document.images[0].naturalWidth") > 0
        assert page.evaluate("document.body.offsetHeight") <= 2 * SCREEN_PX
