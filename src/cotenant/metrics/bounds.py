# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Bounds of a page: names come from users, and each new one is a series that Prometheus stores for weeks."""

from collections.abc import Iterable, Mapping

from cotenant.metrics.figures import TenantFigures

LONGEST_LABEL = 128
"""Characters of a label value; names of pods have up to 253."""
MOST_TENANTS = 512
"""Pairs of a tenant and a GPU on one page. A pair has about 30 series."""
MOST_KINDS = 100
OTHERS = "other errors"


def label(text: str) -> str:
    """A label value of bounded length, which can be encoded."""
    return text[:LONGEST_LABEL].encode(errors="replace").decode()


def shown(tenants: Iterable[TenantFigures]) -> tuple[list[TenantFigures], int]:
    """The tenants that are on the page, ordered by name, and the number of those that are not."""
    ordered = sorted(tenants, key=lambda one: (one.namespace, one.name))
    kept: list[TenantFigures] = []
    pairs = 0
    for one in ordered:
        pairs += max(1, len(one.gpus))
        if pairs > MOST_TENANTS:
            break
        kept.append(one)
    return kept, len(ordered) - len(kept)


def kinds(counts: Mapping[str, int]) -> dict[str, int]:
    """Errors by kind. Kinds can contain names that users chose, so all but the first are counted together."""
    found: dict[str, int] = {}
    for kind, count in counts.items():
        kind = label(kind)
        kind = kind if kind in found or len(found) < MOST_KINDS else OTHERS
        found[kind] = found.get(kind, 0) + count
    return found
