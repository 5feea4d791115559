# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of pairs that are not Gavel's: simulated worlds of 60 job types, and an A100 that is divided by MIG.

A simulated job type has a program, a batch size, a step time and a profile: its use of three resources, with an error.
What pairs do to each other depends on the kind of world, and in every kind on the two programs, on the very pair and on
chance. About 1,450 pairs fit together, and a fifth of all speeds is above 1, as in tables of newer GPUs.
"""

import csv
from pathlib import Path

import numpy as np

from cotenant.core.interference import Profile, Signature
from cotenant.core.interference.evaluation import Pair
from cotenant.core.interference.kernel import Floats, Indices
from cotenant.core.sharing.speeds import TenantSet, tenant_set_of
from cotenant.sim.colocation import Colocation

TYPES, PROGRAMS, RESOURCES = 60, 14, 3
KINDS = ("contention", "factors", "thresholds", "product", "programs", "strangers")
"""resources that are used up; a few hidden factors; steps; sensitivity times aggressiveness; each two programs
differently; the first one again, with programs that are all different"""
FASTEST, SLOWEST = 1.19, 0.12
APART = 0.2
"""share of the pairs that do not fit into memory together"""
MIG_FILE = "miso/a100_mig_iter_time.csv"
WHOLE = "7g.40gb"
SPLITS = (("4g.20gb", "3g.20gb"), ("4g.20gb", "2g.10gb"), ("4g.20gb", "1g.5gb"))


def simulated_world(kind: str, seed: int) -> Colocation:
    """Draws a world of this kind, as a world in which jobs run; its GPU type has the name of the kind."""
    pairs = simulated_pairs(kind, seed)
    jobs = list(dict.fromkeys(job for pair in pairs for job in pair.jobs))
    names = {job: f"{job.family} (batch size {job.batch}), type {number}" for number, job in enumerate(jobs)}
    speeds: dict[TenantSet, tuple[float, float]] = {}
    for pair in pairs:
        one, other = (names[job] for job in pair.jobs)
        company = tenant_set_of(kind, (one, other))
        speeds[company] = pair.speeds if company.workloads == (one, other) else pair.speeds[::-1]
    every = (tenant_set_of(kind, (one, other)) for one in names.values() for other in names.values())
    return Colocation(
        {(kind, name): 1 / (job.step_seconds or 1.0) for job, name in names.items()},
        speeds,
        frozenset(company for company in every if company not in speeds),
        described={name: job for job, name in names.items()},
    )


def simulated_pairs(kind: str, seed: int) -> list[Pair]:
    """Draws a world of this kind, and all its pairs that fit together."""
    chance = np.random.default_rng([seed, KINDS.index(kind)])
    programs = np.arange(TYPES) if kind == "strangers" else np.sort(chance.integers(0, PROGRAMS, TYPES))
    count = int(programs.max()) + 1
    octaves = np.zeros(TYPES)
    for program in range(count):
        own = np.flatnonzero(programs == program)
        octaves[own] = chance.permutation(8)[np.arange(len(own)) % 8]
    seconds = 2.0 ** (chance.normal(-3, 1.5, count)[programs] + 0.7 * octaves + chance.normal(0, 0.3, TYPES))
    use = chance.uniform(0.1, 1, (count, RESOURCES))[programs]
    use += chance.normal(0.12, 0.08, (count, RESOURCES))[programs] * (octaves[:, None] - 4)
    use = np.clip(use + chance.normal(0, 0.05, use.shape), 0.03, 1.0)
    speeds = _speeds(_effects(kind, chance, programs, octaves - 4, use), programs, chance)
    profiles = np.clip(use + chance.normal(0, 0.03, use.shape), 0, 1)
    memory = 24_000 * np.clip(0.4 * use[:, 0] + 0.025 * octaves + chance.uniform(0, 0.3, TYPES), 0.05, 1)
    types = [
        Signature(
            f"program-{programs[i]}",
            1 << int(octaves[i]),
            float(seconds[i]),
            Profile(
                utilisation=float(profiles[i, 0]),
                bandwidth=float(profiles[i, 1]),
                memory_mib=float(memory[i]),
                pcie_mib_s=float(50 + 2000 * profiles[i, 2]),
            ),
        )
        for i in range(TYPES)
    ]
    together = chance.random((TYPES, TYPES)) >= APART
    return [
        Pair((types[i], types[j]), (float(speeds[i, j]), float(speeds[j, i])))
        for i in range(TYPES)
        for j in range(i + 1)
        if i == j or together[i, j]
    ]


def _effects(kind: str, chance: np.random.Generator, programs: Indices, octaves: Floats, use: Floats) -> Floats:
    """What the systematic part of a world does to each victim beside each partner, in any unit."""
    count, types = int(programs.max()) + 1, len(programs)

    def by_program(*shape: int) -> Floats:
        drawn: Floats = chance.normal(0, 1, (count, *shape))[programs]
        return drawn

    if kind == "factors":
        victims = by_program(3) + chance.normal(0, 0.35, (types, 3))
        partners = by_program(3) + chance.normal(0, 0.35, (types, 3))
        return 0.8 * victims[:, :1] + 0.8 * partners[:, 0] + 0.6 * victims @ partners.T
    if kind == "thresholds":
        total = np.zeros((types, types))
        for _ in range(10):
            (one, other), (first, second) = chance.integers(0, RESOURCES, 2), chance.uniform(0.2, 0.8, 2)
            total -= np.outer(use[:, one] > first, use[:, other] > second) * chance.uniform(0.3, 1)
        return total
    if kind == "product":
        sensitive, aggressive = (np.exp(0.5 * by_program() + chance.normal(0, 0.25, types)) for _ in range(2))
        return -np.outer(sensitive, aggressive)
    if kind == "programs":
        special: Floats = chance.normal(0, 1, (count, count))[np.ix_(programs, programs)]
        fading = np.exp(-0.02 * (octaves[:, None] - octaves) ** 2)
        special *= fading
        special += 0.5 * (by_program()[:, None] + by_program()) + 0.15 * np.outer(octaves, by_program())
        return special
    weights = chance.uniform(0.3, 1, RESOURCES)
    excess = np.maximum(0, use[:, None] + use - 1)
    contention: Floats = -(excess * (use * weights)[:, None]).sum(axis=2)
    return contention


def _speeds(effects: Floats, programs: Indices, chance: np.random.Generator) -> Floats:
    """Adds what is special about two programs, a pair and a victim, and errors of measurement."""
    count, types = int(programs.max()) + 1, len(programs)
    total = (effects - effects.mean()) / effects.std()
    total = total + 0.25 * chance.normal(0, 1, (count, count))[np.ix_(programs, programs)]
    total = total + 0.2 * chance.normal(0, 1, (types, types)) + 0.2 * chance.normal(0, 1, (types, 1))
    total /= total.std()
    speeds = 0.105 * total - 0.015 * np.minimum(0, total) ** 2
    speeds = (1 + speeds - np.quantile(speeds, 0.8)) * np.exp(chance.normal(0, 0.012, (types, types)))
    bounded: Floats = np.clip(np.where(speeds > 1, 1 + (speeds - 1) / 2, speeds), SLOWEST, FASTEST)
    return bounded


def mig_pairs(data: Path) -> list[Pair]:
    """All pairs of jobs on an A100 that is divided by MIG so that their speeds add up to most.

    MISO (SoCC 2022) measured 8 models with 4 batch sizes on each size of slice.
    """
    seconds: dict[tuple[str, int], dict[str, float]] = {}
    with (data / MIG_FILE).open(newline="") as file:
        for row in csv.DictReader(file):
            job = row["model"], int(row["batch_size"])
            seconds.setdefault(job, {})[row["slice"]] = float(row["median_iter_s"])
    speeds = {
        Signature(model, batch, on[WHOLE]): {size: on[WHOLE] / value for size, value in on.items()}
        for (model, batch), on in sorted(seconds.items())
    }
    jobs = list(speeds)
    pairs = []
    for i, one in enumerate(jobs):
        for other in jobs[: i + 1]:
            splits = [*SPLITS, *(split[::-1] for split in SPLITS)]
            both = [
                (speeds[one][ours], speeds[other][theirs])
                for ours, theirs in splits
                if ours in speeds[one] and theirs in speeds[other]
            ]
            best = max(both, key=sum)
            pairs.append(Pair((one, other), best if one != other else (sum(best) / 2, sum(best) / 2)))
    return pairs
