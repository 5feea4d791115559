# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Gavel's measured co-location as a world, and as training data of the predictor (the table has an MIT licence).

Gavel measured 26 job types, alone and in pairs, on V100, P100 and K80 GPUs. Three or more jobs on one GPU were not
measured: each tenant is then slowed by each neighbour as in a pair.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from cotenant.core.interference import Signature, Speed
from cotenant.core.interference.evaluation import Pair
from cotenant.core.interference.observations import FASTEST
from cotenant.core.sharing.speeds import Basis, TenantSet, any_apart, mean_speed, tenant_set_of
from cotenant.errors import InputError
from cotenant.sim.traces import fields
from cotenant.sim.traces.rows import Row, header, parsed

FILE = "gavel/colocation_pairs.csv"
REFERENCE = "v100"
"""the GPU type on which Gavel's own durations were taken"""
PAIR_COLUMNS = ("gpu", "job1", "job2", "solo1_steps_s", "solo2_steps_s", "norm1", "norm2", "oom")
"""of a table of measured pairs: Gavel's, or your own"""
_BATCH = re.compile(r"(.*) \(batch size (\d+)\)")


@dataclass(frozen=True)
class Colocation:
    """The measured speeds, by GPU type."""

    rates: Mapping[tuple[str, str], float]
    """(GPU type, workload) -> steps per second alone"""
    pairs: Mapping[TenantSet, tuple[float, float]]
    """speed of each of the two, relative to its speed alone"""
    apart: frozenset[TenantSet]
    """pairs that ran out of memory"""
    reference: str = REFERENCE
    """the GPU type on which the trace's durations were taken"""
    described: Mapping[str, Signature] = field(default_factory=dict)
    """signatures of workloads whose names do not tell them"""

    @property
    def gpu_types(self) -> list[str]:
        return sorted({gpu_type for gpu_type, _ in self.rates})

    def workloads(self, gpu_type: str) -> list[str]:
        return sorted(workload for on, workload in self.rates if on == gpu_type)

    def on(self, gpu_type: str) -> "Colocation":
        """The same world for durations that were taken on another GPU type."""
        return replace(self, reference=gpu_type)

    def alone(self, gpu_type: str, workload: str | None) -> float:
        if workload is None or (gpu_type, workload) not in self.rates:
            return 1.0
        return self.rates[gpu_type, workload] / self.rates.get(
            (self.reference, workload), self.rates[gpu_type, workload]
        )

    def speeds(self, company: TenantSet) -> tuple[float, ...]:
        if len(company.workloads) == 2 and company in self.pairs:
            return self.pairs[company]
        everyone = list(company.workloads)
        return tuple(
            math.prod(self._beside(company.gpu_type, one, other) for other in everyone[:i] + everyone[i + 1 :])
            for i, one in enumerate(everyone)
        )

    def signatures(self, gpu_type: str) -> dict[str, Signature]:
        """The signature of each workload: its program, its batch size, and its step time alone."""
        return {
            workload: self.described.get(workload) or signature(workload, self.rates[gpu_type, workload])
            for workload in self.workloads(gpu_type)
        }

    def signatures_of_all(self) -> dict[str, Signature]:
        """The signatures of the workloads of all GPU types; step times are those of the reference type if it has
        any."""
        return {
            workload: one
            for gpu_type in (*self.gpu_types, self.reference)
            for workload, one in self.signatures(gpu_type).items()
        }

    def _beside(self, gpu_type: str, one: str | None, other: str | None) -> float:
        pair = tenant_set_of(gpu_type, (one, other))
        return self.pairs[pair][pair.workloads.index(one)] if pair in self.pairs else 1.0


def signature(workload: str, rate: float) -> Signature:
    """Makes a signature from a name such as `ResNet-50 (batch size 64)` and the steps per second alone."""
    named = _BATCH.fullmatch(workload)
    family, batch = (named[1], int(named[2])) if named else (workload, None)
    return Signature(family, batch, 1 / rate)


class Oracle:
    """A belief that knows the true speeds: an upper bound of what prediction can achieve, not a policy to compare
    with."""

    version = 0

    def __init__(self, world: Colocation) -> None:
        self.knows_memory = bool(world.apart)
        self._world = world
        self._mildness: dict[tuple[str, str | None], float] = {}

    def speeds(self, company: TenantSet) -> tuple[Speed, ...]:
        return tuple(Speed(speed, speed, speed) for speed in self._world.speeds(company))

    def mildness(self, card: str, workload: str | None) -> float:
        speed = self._mildness.get((card, workload))
        if speed is None:
            speed = mean_speed(self, card, workload, self._world.workloads(card))
            self._mildness[card, workload] = speed
        return speed

    def basis(self, pair: TenantSet) -> Basis:
        return Basis.MEASURED

    def apart(self, company: TenantSet) -> bool:
        return any_apart(self._world.apart, company)

    def observe(self, company: TenantSet, speeds: object) -> bool:
        return False


@lru_cache(maxsize=2)
def read_colocation(path: Path) -> Colocation:
    """Reads the measured pairs of all GPU types."""
    rates: dict[tuple[str, str], float] = {}
    pairs: dict[TenantSet, tuple[float, float]] = {}
    apart: set[TenantSet] = set()

    def one(_line: int, row: Row) -> None:
        gpu_type, names = row["gpu"], (row["job1"], row["job2"])
        for name, column in zip(names, ("solo1_steps_s", "solo2_steps_s"), strict=True):
            rates[gpu_type, name] = fields.number(row[column], column, 1e-9, 1e9)
        speeds = [fields.number(row[column] or "0", column, 0, 10) for column in ("norm1", "norm2")]
        pair = tenant_set_of(gpu_type, names)
        if row["oom"] == "1" or min(speeds) <= 0:
            apart.add(pair)
        elif pair.workloads == names:
            pairs[pair] = speeds[0], speeds[1]
        else:
            pairs[pair] = speeds[1], speeds[0]

    for _ in parsed(path, one):
        pass
    if not pairs:
        raise InputError(
            f"{path}: no measured pairs; expected a CSV file with the columns of Gavel's co-location table"
        )
    return Colocation(rates, pairs, frozenset(apart))


def read_pairs(path: Path) -> dict[str, list[Pair]]:
    """Reads the pairs that fit into memory together, by GPU type, for the predictor."""
    if missing := [column for column in PAIR_COLUMNS if column not in header(path)]:
        raise InputError(f"{path}: no column {', '.join(missing)}; expected the columns {','.join(PAIR_COLUMNS)}")
    world = read_colocation(path)
    for company, speeds in world.pairs.items():
        if max(speeds) > FASTEST:
            raise InputError(
                f"{path}: {' next to '.join(map(str, company.workloads))} on {company.gpu_type}: "
                f"speed {max(speeds):g} relative to alone; expected at most {FASTEST:g}"
            )
    return {gpu_type: pairs_on(world, gpu_type) for gpu_type in sorted({company.gpu_type for company in world.pairs})}


def pairs_on(world: Colocation, gpu_type: str) -> list[Pair]:
    """The pairs of one GPU type."""
    jobs = world.signatures(gpu_type)
    return [
        Pair((jobs[str(company.workloads[0])], jobs[str(company.workloads[1])]), speeds)
        for company, speeds in world.pairs.items()
        if company.gpu_type == gpu_type
    ]
