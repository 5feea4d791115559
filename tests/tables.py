# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of test cases: YAML files with one case per document."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

Table = dict[str, Any]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""several times faster if PyYAML has the C library; every test process loads all tables"""


@cache
def tables_of(file: Path) -> tuple[Table, ...]:
    """The cases of a file, read once: nobody changes them."""
    return tuple(yaml.load_all(file.read_text(encoding="utf-8"), LOADER))


def tables_in(folder: Path) -> list[tuple[str, Table]]:
    """The cases of all files of a folder, each with the name of its file."""
    return [(file.stem, table) for file in sorted(folder.glob("*.yaml")) for table in tables_of(file)]
