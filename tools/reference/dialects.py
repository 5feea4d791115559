# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The list of all names of dialects in docs/reference/dialects.md, made from the dialects."""

from collections.abc import Iterator

from cotenant.kube.codec.annotations import variable_names
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.settings import DIALECTS
from tools.reference.marked import replaced, table

RESOURCES = {
    "count": "resource: number of GPUs",
    "memory": "resource: memory on each GPU",
    "memory_percent": "resource: percent of a GPU's memory",
    "compute": "resource: percent of a GPU's compute",
    "priority": "resource: priority, 0 is high",
    "memory_mib": "resource of ours: memory in MiB",
    "slots": "resource of ours: share slots, which the webhook adds",
}
ANNOTATIONS = {
    "use_types": "annotation: GPU types to use",
    "avoid_types": "annotation: GPU types to avoid",
    "use_uuids": "annotation: GPUs to use",
    "avoid_uuids": "annotation: GPUs to avoid",
    "one_numa": "annotation: all GPUs on one NUMA node",
    "mode": "annotation: how a GPU is divided",
    "divided_by": "label: GPUs among which amounts are divided",
}


def page(text: str) -> str:
    """The page with its list renewed."""
    rows = [row for dialect in DIALECTS for row in _rows(dialect)]
    return replaced(text, "the dialects", table(("Dialect", "Vendor", "Name", "Meaning"), rows))


def _rows(dialect: Dialect) -> Iterator[tuple[str, ...]]:
    others = dict(dialect.other_names)
    for field, meaning in (RESOURCES | ANNOTATIONS).items():
        if (name := getattr(dialect, field)) is None:
            continue
        unit = f", in units of {dialect.memory_unit} MiB" if field == "memory" else ""
        names = f"`{name}`" + (f" or `{others[field]}`" if field in others else "")
        yield f"`{dialect.name}`", dialect.vendor.value, names, meaning + unit
    variables = ", ".join(f"`{name}`" for name in variable_names(dialect, 1))
    yield f"`{dialect.name}`", dialect.vendor.value, variables, "variables of a container with one GPU"
