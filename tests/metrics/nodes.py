# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes with any number of tenants, and how a page is read."""

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from cotenant.metrics.figures import GpuFigures, NodeFigures, TenantFigures, TenantGpuFigures

GIB = 1 << 30


def gpu(index: int, **more: object) -> GpuFigures:
    known = {"memory_bytes": 40 * GIB, "allocatable_bytes": 40 * GIB} | more
    return GpuFigures(uuid=f"GPU-{index}", index=index, type="A100", vendor="nvidia", **known)  # type: ignore[arg-type]


def node(tenants: Iterable[TenantFigures] = (), gpus: int = 1, name: str = "n1") -> NodeFigures:
    return NodeFigures(node=name, gpus=tuple(map(gpu, range(gpus))), tenants=tuple(tenants))


def tenant(name: str, *uuids: str, namespace: str = "team") -> TenantFigures:
    uses = tuple(TenantGpuFigures(uuid=uuid) for uuid in uuids or ("GPU-0",))
    return TenantFigures(name=name, namespace=namespace, container="main", gpus=uses)


def series(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All series of a page, by name and sorted labels; fails if the page is not in Prometheus' format."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def values(text: bytes, name: str) -> dict[str, float]:
    """The series of one metric, by their label values in the order of the label names, joined by spaces."""
    return {
        " ".join(value for _, value in labels): value for (one, labels), value in series(text).items() if one == name
    }
