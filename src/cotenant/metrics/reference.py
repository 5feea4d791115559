# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of the reference page, made from the table of metrics.

`python -m cotenant.metrics.reference docs/reference/metrics.md` renews them.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from cotenant.metrics.hami import HAMI_GPU, HAMI_POD
from cotenant.metrics.table import COUNTED, GPU, NODE, OMITTED, TENANT, TENANT_GPU, Counted, Metric

BEGIN, END = "<!-- generated from the table of metrics -->", "<!-- end of what is generated -->"


def tables() -> str:
    """All metrics, as sections of the page."""
    parts: tuple[tuple[str, str, Sequence[Metric]], ...] = (
        ("GPUs", "On the pages of agents and of the daemon.", GPU),
        ("Tenants on one GPU", "On the same pages; one series for each tenant and GPU.", TENANT_GPU),
        ("Tenants", "On the same pages; one series for each tenant.", TENANT),
        ("Nodes", "On the same pages.", (*NODE, OMITTED)),
        ("Decisions and requests", "On the pages of the programs that are named.", COUNTED),
        ("Names of HAMi", "On the pages of agents, with `metrics.hami: true`.", (*HAMI_GPU, *HAMI_POD)),
    )
    return "\n".join(f"## {title}\n\n{where}\n\n{_table(rows)}" for title, where, rows in parts)


def page(text: str) -> str:
    """The page with its tables renewed."""
    before, _, rest = text.partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def _table(rows: Iterable[Metric]) -> str:
    lines = ["| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
    for row in rows:
        labels = ", ".join(f"`{label}`" for label in row.labels) or "none"
        where = f" Of: {', '.join(row.parts)}." if isinstance(row, Counted) else ""
        lines.append(f"| `{row.name}` | {row.type} | {labels} | {row.help}{where} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
