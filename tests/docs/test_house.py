# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The house keeps its own rules: what the documents name exists, and no file tells whose machine it came from."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = {".git", ".venv", "build", "dist", "__pycache__"}

SPDX = (
    "# SPDX-FileCopyrightText: 2026 The cotenant authors\n",
    "# SPDX-License-Identifier: Apache-2.0\n",
)

# Written in pieces, so that this file does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.}/])/(?:" + "|".join(["work", "root", "tmp", "home", "Users"]) + r")/\w")
PACKAGE_INDEX = re.compile("|".join(["pypi" + r"\.", "python" + "hosted", "npm" + r"js\.", "--find" + "-links"]))


def repository_files() -> list[Path]:
    """All files that are or would be committed; without git, all that neither make nor a tool has made."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found = ROOT.rglob("*")
        return [path for path in found if path.is_file() and not _is_made(path.relative_to(ROOT))]
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


def _is_made(path: Path) -> bool:
    return bool(MADE & set(path.parts)) or any(part.startswith(".") and "cache" in part for part in path.parts)


def text_of(path: Path) -> str:
    """Its text, or nothing where it is not text."""
    content = path.read_bytes()
    return "" if b"\0" in content else content.decode(errors="replace")


FILES = sorted(repository_files())
PAGES = [path for path in FILES if path.suffix == ".md"]
SOURCES = [path for path in FILES if path.suffix == ".py"]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_make_target_named_in_a_page_exists(page: Path) -> None:
    mentioned = set(re.findall(r"(?:`|^|\$ )make ([a-z][\w-]*)", page.read_text(), re.MULTILINE))
    assert mentioned <= make_targets()


def test_every_make_target_is_explained_to_contributors() -> None:
    explained = set(re.findall(r"`make ([a-z][\w-]*)", (ROOT / "CONTRIBUTING.md").read_text()))
    assert make_targets() - explained == {"help"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(r'(?:src|href)="([^"#]+)', text)
    broken = [target for target in targets if ":" not in target and not (page.parent / target).exists()]
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower().strip() for title in titles)
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_to_a_heading_leads_to_one(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^):#\s]*)#([^)\s]+)\)", text)
    pages = [((page.parent / target) if target else page, anchor) for target, anchor in links]
    assert [anchor for target, anchor in pages if target.suffix == ".md" and anchor not in anchors(target)] == []


NAMED_PAGE = re.compile(r"(?<![\w./-])docs/[\w/-]+\.md(?:#[\w-]+)?")
NAMING = [path for path in FILES if path.suffix != ".md" and path.relative_to(ROOT).parts[0] not in ("tests", "docs")]
"""what is shipped; tests make pages of their own, and tables of the documents name those of other projects"""


@pytest.mark.parametrize("file", [path for path in NAMING if NAMED_PAGE.search(text_of(path))], ids=named)
def test_every_page_that_a_message_or_a_comment_names_exists(file: Path) -> None:
    """Messages of commands, docstrings, manifests and settings name pages by their path in the repository."""
    for name in NAMED_PAGE.findall(text_of(file)):
        path, _, anchor = name.partition("#")
        assert (ROOT / path).exists(), name
        assert not anchor or anchor in anchors(ROOT / path), name


def test_every_page_of_the_docs_is_in_their_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", index.read_text())}
    pages = [page for page in PAGES if page.is_relative_to(index.parent) and page != index]
    assert [named(page) for page in pages if page not in linked] == []


def test_decisions_are_numbered_without_gaps() -> None:
    decisions = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [name[:5] for name in decisions] == [f"{number:04}-" for number in range(1, len(decisions) + 1)]


def test_decisions_have_one_form_of_title() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    titles = {page.name: page.read_text().partition("\n")[0] for page in pages}
    assert [name for name, title in titles.items() if not re.fullmatch(rf"# {name[:4]}\. [A-Z].*", title)] == []
    index = (ROOT / "docs" / "README.md").read_text()
    listed = {name: f"[{title[2:6]}](decisions/{name}) | {title[8:]} |" for name, title in titles.items()}
    assert [name for name, row in listed.items() if row not in index] == []


@pytest.mark.parametrize("pattern", [MACHINE_PATH, PACKAGE_INDEX], ids=["machine path", "package index"])
def test_no_file_tells_where_it_was_made(pattern: re.Pattern[str]) -> None:
    found = [
        f"{named(path)}:{number}: {line.strip()[:120]}"
        for path in FILES
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_every_source_file_starts_with_its_licence() -> None:
    assert [named(path) for path in SOURCES if not path.read_text().startswith("".join(SPDX))] == []


def test_the_licence_is_in_the_house() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
