# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""docs/reference/parity.md, made from parity.yaml."""

from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs/reference/parity.yaml"
VERDICTS = {
    "same": "works unchanged",
    "other name": "exists under another name",
    "better": "works, and does more or fails more clearly",
    "no": "does not exist here",
}
HEAD = """# Parity with other GPU-sharing systems

For operators who consider a [switch](../howto/switch.md): the documented features of HAMi, 4paradigm's vGPU scheduler,
gpushare, arena, the GSoC 2019 topology work, IADeep and Co-scheML, and what becomes of each.
[Dialects](dialects.md) defines the words.

This page is generated from [parity.yaml](parity.yaml) by `make reference`. Each row names its test; those
with the verdict "no" say why.
"""


class Row(NamedTuple):
    """One feature of another system."""

    feature: str
    verdict: str
    note: str
    test: str


def rows() -> dict[str, list[Row]]:
    """The table, by system."""
    return {system: [Row(*row) for row in listed] for system, listed in yaml.safe_load(TABLE.read_text()).items()}


def page(_: str = "") -> str:
    """The text of the page, whatever it was before."""
    table = rows()
    every = [row.verdict for listed in table.values() for row in listed]
    counts = "\n".join(f"| {name} | {meaning} | {every.count(name)} |" for name, meaning in VERDICTS.items())
    parts = [HEAD, f"| Verdict | Meaning | Rows |\n|---|---|---|\n{counts}\n"]
    for system, listed in table.items():
        lines = [f"| {row.feature} | {row.verdict} | {row.note} | {_test(row)} |" for row in listed]
        parts.append(
            "\n".join([f"## {system}\n", "| Feature | Verdict | Here | Test |", "|---|---|---|---|", *lines, ""])
        )
    return "\n".join(parts)


def _test(row: Row) -> str:
    path = row.test.partition("::")[0]
    return f"[{Path(path).name}](../../{path})" if path else ""
