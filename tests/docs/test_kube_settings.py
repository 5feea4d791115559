# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The reference of the Kubernetes engine names every setting, with its default, and every annotation, label and gate of
ours; and nothing that does not exist."""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec
import pytest
import yaml

from cotenant.core.placement.policies import QUEUES
from cotenant.kube import settings as module
from cotenant.kube.codec.settings import DIALECTS
from cotenant.kube.install.chart import checked_values
from cotenant.kube.settings import KubeSettings, parse_settings

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGE, _, _ = (REFERENCE / "kube-settings.md").read_text().partition("## Every setting with its values")
NAMES_PAGE = (REFERENCE / "admission.md").read_text()
SOURCES = ROOT / "src" / "cotenant"
TEMPLATES = ROOT / "deploy" / "helm" / "cotenant" / "templates"

Setting = tuple[str, str]
"""Section, as the page writes it, and name."""
SECTION_OF_NODES = "nodes"
CDI_KIND = "cotenant.io/gpu"
"""The kind of our CDI devices: neither an annotation nor a label."""
WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")


def fields_of(struct: type[msgspec.Struct], section: str = "") -> Iterator[tuple[Setting, msgspec.structs.FieldInfo]]:
    """Every setting in a section and the sections below it."""
    for field in msgspec.structs.fields(struct):
        below = [kind for kind in _types(field.type) if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
        if not below or section == SECTION_OF_NODES:
            yield (section, field.encode_name), field
        for kind in below if section != SECTION_OF_NODES else ():
            yield from fields_of(kind, ".".join(filter(None, (section, field.encode_name))))


def _types(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is None and not isinstance(kind, UnionType):
        yield kind
    for part in get_args(kind):
        yield from _types(part)


SETTINGS = {setting: field for setting, field in fields_of(KubeSettings) if setting != ("", "version")}


def rows() -> Iterator[tuple[Setting, str]]:
    """Each setting of the table, and the cell with its default."""
    section = ""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 4 or not cells[1].startswith("`"):
            continue
        section = cells[0].split("`")[1] if "`" in cells[0] else section
        for name in re.findall(r"`([^`]+)`", cells[1]):
            yield (section, name), cells[2]


ROWS = dict(rows())


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    assert set(ROWS) == set(SETTINGS)
    assert "version: 1" in PAGE


@pytest.mark.parametrize("setting", sorted(SETTINGS), ids=".".join)
def test_the_documented_default_is_the_default(setting: Setting) -> None:
    default = SETTINGS[setting].default
    if default is msgspec.NODEFAULT or default is None or setting[0] in (SECTION_OF_NODES, "dialects"):
        return  # "none", or in words: as in another section
    assert ROWS[setting].strip("`") == _written(default)


def _written(default: Any) -> str:
    if default in ("", ()):
        return "none"
    if isinstance(default, tuple):
        return f"[{', '.join(default)}]"
    return (
        str(default).lower()
        if isinstance(default, bool)
        else f"{default:g}"
        if isinstance(default, float)
        else str(default)
    )


def test_the_example_is_valid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    parse_settings(example.encode())


SECTIONS = {field.encode_name for field in msgspec.structs.fields(KubeSettings)}
OTHER_YAML = ("howto/monitoring.md", "reference/traces.md")
"""pages with YAML of other programs that has the same words"""
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if not page.as_posix().endswith(OTHER_YAML)]


def settings_on(page: Path) -> Iterator[Any]:
    """Every piece of settings that a page shows: a block of YAML, its key `settings`, or words such as
    `gpus: {split: 10}`. What has an ellipsis is left out."""
    text = page.read_text()
    blocks = [part for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) for part in block.split("\n---\n")]
    words = re.findall(r"`([a-z-]+: \{[^`]+\})`", text)
    for piece in (*blocks, *words):
        if "…" in piece:
            continue
        shown = yaml.safe_load(textwrap.dedent(piece))
        shown = shown.get("settings", shown) if isinstance(shown, dict) else None
        if shown and set(shown) <= SECTIONS and "devices" not in shown:
            yield shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_that_a_page_shows_are_valid(page: Path) -> None:
    for shown in settings_on(page):
        parse_settings(yaml.safe_dump(shown).encode())


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "# values.yaml" in page.read_text()], ids=lambda page: page.stem
)
def test_values_of_the_chart_that_a_page_shows_are_valid(page: Path) -> None:
    for block in re.findall(r"```yaml\n( *# values\.yaml.*?)```", page.read_text(), re.DOTALL):
        checked_values(yaml.safe_load(textwrap.dedent(block)))


def test_settings_are_found_on_pages() -> None:
    assert list(settings_on(ROOT / "docs/howto/beside-nvidia.md"))
    assert {"gpus": {"split": 10, "memory-scaling": 150, "compute-scaling": 120}} in settings_on(
        ROOT / "docs/howto/from-hami.md"
    )


def test_every_queue_order_and_every_dialect_is_documented() -> None:
    assert [name for name in (*QUEUES, *(dialect.name for dialect in DIALECTS)) if f"`{name}`" not in PAGE] == []


def test_every_setting_has_a_docstring() -> None:
    missing = []
    for section in ast.parse(Path(module.__file__).read_text()).body:
        if isinstance(section, ast.ClassDef):
            for field, after in zip(section.body, [*section.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and not isinstance(after, ast.Expr):
                    missing.append(f"{section.name}.{ast.unparse(field.target)}")
    assert missing == []


# Annotations, labels and gates


def strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def own_names() -> Iterator[str]:
    """Every name under cotenant.io/ that the sources or the chart write or read, but those of single containers."""
    for path in TEMPLATES.iterdir():
        yield from re.findall(r"^ *(cotenant\.io/[a-z-]+): ", path.read_text(), re.MULTILINE)
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text()
        if "own_key" not in text and "cotenant.io/" not in text:
            continue
        tree = ast.parse(text)
        for text in strings(tree):
            yield from (match[0] for match in [re.match(r"cotenant\.io/[a-z-]+", text)] if match)
        uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "own_key"]
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "own_key"]
        constant = [str(call.args[0].value) for call in calls if isinstance(call.args[0], ast.Constant)]
        yield from (f"cotenant.io/{name}" for name in constant)
        if len(constant) < len(uses) and path.name != "keys.py":  # the names are in a table of the module
            for statement in tree.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                    yield from (f"cotenant.io/{name}" for name in strings(statement.value) if WORD.fullmatch(name))


def test_every_name_of_ours_is_documented_and_every_documented_one_exists() -> None:
    documented = set(re.findall(r"cotenant\.io/[a-z]+(?:-[a-z]+)*", NAMES_PAGE))
    assert documented == set(own_names()) - {CDI_KIND}
