# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/reference/metrics.md, made from the table of metrics."""

from collections.abc import Iterable, Sequence

from cotenant.metrics.hami import HAMI_GPU, HAMI_POD
from cotenant.metrics.table import COUNTED, GPU, NODE, OMITTED, TENANT, TENANT_GPU, Counted, Metric
from tools.reference.marked import replaced, table


def page(text: str) -> str:
    """The page with its tables renewed."""
    return replaced(text, "the table of metrics", _tables())


def _tables() -> str:
    parts: tuple[tuple[str, str, Sequence[Metric]], ...] = (
        ("GPUs", "On the pages of agents and of the daemon.", GPU),
        ("Tenants on one GPU", "On the same pages; one series for each tenant and GPU.", TENANT_GPU),
        ("Tenants", "On the same pages; one series for each tenant.", TENANT),
        ("Nodes", "On the same pages.", (*NODE, OMITTED)),
        ("Decisions and requests", "On the pages of the programs that are named.", COUNTED),
        ("Names of HAMi", "On the pages of agents, with `metrics.hami: true`.", (*HAMI_GPU, *HAMI_POD)),
    )
    return "\n".join(f"## {title}\n\n{where}\n\n{_table(rows)}" for title, where, rows in parts)


def _table(metrics: Iterable[Metric]) -> str:
    return table(("Metric", "Type", "Labels", "Meaning"), [_row(one) for one in metrics])


def _row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    where = f" Of: {', '.join(metric.parts)}." if isinstance(metric, Counted) else ""
    return f"`{metric.name}`", metric.type, labels, f"{metric.help}{where}"
