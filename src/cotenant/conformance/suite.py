# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""All checks, and their rows on all ways."""

from collections.abc import Iterator, Sequence

from cotenant.conformance.bench import FULL, QUICK, Bench, Check, Effort
from cotenant.conformance.checks import CHECKS
from cotenant.conformance.frameworks import FRAMEWORKS
from cotenant.conformance.mps import MPS_CHECKS
from cotenant.conformance.report import Row, Way

ALL = (*CHECKS, *MPS_CHECKS, *FRAMEWORKS)
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


def rows(bench: Bench, ways: Sequence[Way], checks: Sequence[Check]) -> Iterator[Row]:
    """Carries out all checks in all ways that they have, one after the other."""
    for check, way in pairs(ways, checks):
        yield check.row(bench, way)


def pairs(ways: Sequence[Way], checks: Sequence[Check]) -> list[tuple[Check, Way]]:
    """What is measured in which way."""
    return [(check, way) for check in checks for way in ways if way in check.ways]
