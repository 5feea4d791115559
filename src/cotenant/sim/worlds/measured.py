# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A table of measured pairs as the predictor takes it: from Gavel, or your own with the same columns."""

from pathlib import Path

from cotenant.core.interference.evaluation import Pair
from cotenant.core.interference.predictor import ABSURD
from cotenant.errors import InputError
from cotenant.sim.traces.rows import header
from cotenant.sim.worlds.colocation import Colocation, read_colocation

COLUMNS = ("gpu", "job1", "job2", "solo1_steps_s", "solo2_steps_s", "norm1", "norm2", "oom")


def read_pairs(path: Path) -> dict[str, list[Pair]]:
    """All pairs that fitted together, by type of card."""
    if missing := [column for column in COLUMNS if column not in header(path)]:
        raise InputError(f"{path}: no column {', '.join(missing)}; expected measured pairs with {','.join(COLUMNS)}")
    world = read_colocation(path)
    for company, speeds in world.pairs.items():
        if max(speeds) > ABSURD:
            raise InputError(
                f"{path}: {' beside '.join(map(str, company.workloads))} on {company.card}: "
                f"{max(speeds):g} of the speed alone; expected at most {ABSURD:g}"
            )
    return {card: pairs_on(world, card) for card in sorted({company.card for company in world.pairs})}


def pairs_on(world: Colocation, card: str) -> list[Pair]:
    """The pairs of one type of card."""
    jobs = world.signatures(card)
    return [
        Pair((jobs[str(company.workloads[0])], jobs[str(company.workloads[1])]), speeds)
        for company, speeds in world.pairs.items()
        if company.card == card
    ]
