# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every setting and annotation is documented, and every documented one exists."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from cotenant.kube.codec.keys import PREFIX
from cotenant.kube.settings import KubeSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "kube-settings.md").read_text()
DOCS = "\n".join(page.read_text() for page in sorted((ROOT / "docs").rglob("*.md")))
SOURCES = "\n".join(module.read_text() for module in sorted((ROOT / "src").rglob("*.py")))
OWN_KEY = re.compile(rf'\bown_key\("([a-z-]+)"\)|"{re.escape(PREFIX)}/([a-z-]+)"')


def settings(section: type[msgspec.Struct] = KubeSettings, where: str = "") -> Iterator[tuple[str, str]]:
    """Every setting: the section it is in, and its name."""
    for field in msgspec.structs.fields(section):
        below = list(_sections(field.type))
        name = field.encode_name
        for one in below:
            yield from settings(one, f"{where}.{name}".lstrip("."))
        if not below:
            yield where, name


def _sections(of: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        yield of
    for part in get_args(of):
        yield from _sections(part)


def documented() -> set[tuple[str, str]]:
    """The same, as the table of the page has them."""
    found, where = set[tuple[str, str]](), ""
    for section, names in re.findall(r"^\| (`[^|]*?)?\| (`[^|]*)\|", PAGE, re.MULTILINE):
        if section.strip():
            where = re.findall(r"`([\w.-]+)`", section)[0]
        found |= {(where, name) for name in re.findall(r"`([\w-]+)`", names)}
    return found


EVERY = sorted({(where, name) for where, name in settings() if name != "version"})


def test_there_are_settings() -> None:
    assert len(EVERY) > 20


@pytest.mark.parametrize(("where", "name"), EVERY)
def test_every_setting_is_documented(where: str, name: str) -> None:
    section = where.removesuffix(".cards").removesuffix(".gpus") if where.startswith("nodes") else where
    assert (section, name) in documented()


def test_every_documented_setting_exists() -> None:
    sections = {(where.rpartition(".")[0], where.rpartition(".")[2]) for where, _ in settings()}
    assert sorted(documented() - set(EVERY) - sections) == []


def annotations() -> set[str]:
    """Names of annotations, labels and scheduling gates of ours that the code reads or writes."""
    return {first or second for first, second in OWN_KEY.findall(SOURCES)}


@pytest.mark.parametrize("name", sorted(annotations()))
def test_every_annotation_is_documented(name: str) -> None:
    assert f"{PREFIX}/{name}" in DOCS


def test_every_documented_annotation_exists() -> None:
    named = set(re.findall(rf"`{re.escape(PREFIX)}/([a-z-]+)", DOCS))
    absent = [name for name in sorted(named) if not re.search(rf'"(?:{re.escape(PREFIX)}/)?{name}[="]', SOURCES)]
    assert absent == []
