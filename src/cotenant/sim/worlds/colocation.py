# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Gavel's measured co-location as a world: 26 job types, alone and in pairs, on V100, P100 and K80 cards (MIT licence).

Of three and more on one card nothing was measured: each tenant is slowed by each neighbour as in a pair.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from cotenant.core.interference import Signature, Speed
from cotenant.core.sharing.speeds import Company, any_apart, company_of, mean_speed
from cotenant.errors import InputError
from cotenant.sim.traces import fields
from cotenant.sim.traces.rows import Row, parsed

FILE = "gavel/colocation_pairs.csv"
REFERENCE = "v100"
"""the card on which Gavel's own durations were taken"""
_BATCH = re.compile(r"(.*) \(batch size (\d+)\)")


@dataclass(frozen=True)
class Colocation:
    """What was measured, by type of card."""

    rates: Mapping[tuple[str, str], float]
    """steps per second alone, by card and workload"""
    pairs: Mapping[Company, tuple[float, float]]
    """of each one's rate alone"""
    apart: frozenset[Company]
    """pairs that ran out of memory"""
    reference: str = REFERENCE
    """the card on which the trace's durations were taken"""

    @property
    def cards(self) -> list[str]:
        return sorted({card for card, _ in self.rates})

    def workloads(self, card: str) -> list[str]:
        return sorted(workload for on, workload in self.rates if on == card)

    def on(self, card: str) -> "Colocation":
        """The same world, for durations taken on another card."""
        return replace(self, reference=card)

    def alone(self, card: str, workload: str | None) -> float:
        if workload is None or (card, workload) not in self.rates:
            return 1.0
        return self.rates[card, workload] / self.rates.get((self.reference, workload), self.rates[card, workload])

    def speeds(self, company: Company) -> tuple[float, ...]:
        if len(company.workloads) == 2 and company in self.pairs:
            return self.pairs[company]
        everyone = list(company.workloads)
        return tuple(
            math.prod(self._beside(company.card, one, other) for other in everyone[:i] + everyone[i + 1 :])
            for i, one in enumerate(everyone)
        )

    def signatures(self, card: str) -> dict[str, Signature]:
        """What a user would have said of each workload: the program and its batch size, and what a solo run shows."""
        return {workload: signature(workload, self.rates[card, workload]) for workload in self.workloads(card)}

    def signatures_of_all(self) -> dict[str, Signature]:
        """The same for all cards, with the step times of the reference card."""
        return {
            workload: one for card in (*self.cards, self.reference) for workload, one in self.signatures(card).items()
        }

    def _beside(self, card: str, one: str | None, other: str | None) -> float:
        pair = company_of(card, (one, other))
        return self.pairs[pair][pair.workloads.index(one)] if pair in self.pairs else 1.0


def signature(workload: str, rate: float) -> Signature:
    """From a name such as `ResNet-50 (batch size 64)` and its steps per second alone."""
    named = _BATCH.fullmatch(workload)
    family, batch = (named[1], int(named[2])) if named else (workload, None)
    return Signature(family, batch, 1 / rate)


class Oracle:
    """A belief that is the truth, to see what knowing everything would be worth; never to compare policies by."""

    version = 0

    def __init__(self, world: Colocation) -> None:
        self.knows_memory = bool(world.apart)
        self._world = world
        self._mildness: dict[tuple[str, str | None], float] = {}

    def speeds(self, company: Company) -> tuple[Speed, ...]:
        return tuple(Speed(speed, speed, speed) for speed in self._world.speeds(company))

    def mildness(self, card: str, workload: str | None) -> float:
        known = self._mildness.get((card, workload))
        if known is None:
            known = mean_speed(self, card, workload, self._world.workloads(card))
            self._mildness[card, workload] = known
        return known

    def apart(self, company: Company) -> bool:
        return any_apart(self._world.apart, company)

    def observe(self, company: Company, speeds: object) -> bool:
        return False


@lru_cache(maxsize=2)
def read_colocation(path: Path) -> Colocation:
    """The measured pairs of all cards."""
    rates: dict[tuple[str, str], float] = {}
    pairs: dict[Company, tuple[float, float]] = {}
    apart: set[Company] = set()

    def one(_line: int, row: Row) -> None:
        card, names = row["gpu"], (row["job1"], row["job2"])
        for name, column in zip(names, ("solo1_steps_s", "solo2_steps_s"), strict=True):
            rates[card, name] = fields.number(row[column], column, 1e-9, 1e9)
        speeds = [fields.number(row[column] or "0", column, 0, 10) for column in ("norm1", "norm2")]
        pair = company_of(card, names)
        if row["oom"] == "1" or min(speeds) <= 0:
            apart.add(pair)
        elif pair.workloads == names:
            pairs[pair] = speeds[0], speeds[1]
        else:
            pairs[pair] = speeds[1], speeds[0]

    for _ in parsed(path, one):
        pass
    if not pairs:
        raise InputError(f"{path}: no measured pairs; expected Gavel's co-location table as CSV")
    return Colocation(rates, pairs, frozenset(apart))
