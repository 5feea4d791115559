# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""All checks, and their rows on all rungs."""

from collections.abc import Iterator, Sequence

from cotenant.conformance.checks import CHECKS, FULL, QUICK, Bench, Check, Effort
from cotenant.conformance.frameworks import FRAMEWORKS
from cotenant.conformance.report import Row, Rung

ALL = (*CHECKS, *FRAMEWORKS)
_SHARES = {f"compute-{percent}": percent for percent in FULL.shares}


def checks_for(effort: Effort, names: Sequence[str] = ()) -> list[Check]:
    """The checks of these names, or all that the effort allows."""
    if names:
        return [one for one in ALL if one.name in names]
    return [
        one
        for one in ALL
        if _SHARES.get(one.name, effort.shares[0]) in effort.shares and not (one.slow and effort is QUICK)
    ]


def rows(bench: Bench, rungs: Sequence[Rung], checks: Sequence[Check]) -> Iterator[Row]:
    """Carries out all checks on all rungs, one after the other."""
    for check in checks:
        for rung in rungs:
            yield check.row(bench, rung)
