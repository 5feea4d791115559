# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every module is on the map of its package: the README.md there, or nearest above, links to it."""

import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "cotenant"
COLLECTIONS = ("kube/codec", "sim/studies", "sim/traces", "workloads/families")
"""folders of modules of one kind: a map that links to the folder has them all"""


def modules() -> list[Path]:
    """All modules in packages, without those that only mark a folder as a package and generated ones."""
    found = (path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE and path.stem != "__init__")
    return sorted(path for path in found if not path.stem.endswith("_pb2"))


def maps_of(module: Path) -> list[Path]:
    """The READMEs of its folder and of those above."""
    folders = [folder for folder in module.parents if folder.is_relative_to(PACKAGE) and folder != PACKAGE]
    return [readme for folder in folders if (readme := folder / "README.md").exists()]


@cache
def targets_of(readme: Path) -> frozenset[Path]:
    """The files and folders that a map links to."""
    links = re.findall(r"\]\(([^)#\s]+)", readme.read_text())
    return frozenset((readme.parent / link).resolve() for link in links)


def is_on(readme: Path, module: Path) -> bool:
    """Whether a map links to the module, or to the collection that it belongs to."""
    targets = targets_of(readme)
    folder = module.parent
    is_collection = folder.relative_to(PACKAGE).as_posix() in COLLECTIONS
    return module in targets or (is_collection and bool({folder, folder / "__init__.py"} & targets))


def packages() -> list[str]:
    return sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists() and path.name[0] != "_")


@pytest.mark.parametrize("package", packages())
def test_every_module_is_on_a_map(package: str) -> None:
    assert maps_of(PACKAGE / package / "__init__.py"), f"src/cotenant/{package} has no README.md"
    own = [module for module in modules() if module.is_relative_to(PACKAGE / package)]
    lost = [module for module in own if not any(is_on(readme, module) for readme in maps_of(module))]
    assert [module.relative_to(PACKAGE).as_posix() for module in lost] == []
