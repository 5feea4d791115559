# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The studies of `cotenant experiment`, with the seeds of the published results.

The data is read from $COTENANT_DATA (default: ../shared/data).
"""

import os
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Figure, benchmark, in_fresh_process
from cotenant.sim.studies.registry import STUDIES
from cotenant.sim.studies.study import Finding, run_study

DATA = Path(os.environ.get("COTENANT_DATA") or Path(__file__).parents[2] / "shared" / "data")


def figures_of(name: str) -> Iterator[Figure]:
    """One figure for each row of a study's tables."""
    for finding in in_fresh_process(findings_of, name).result:
        yield Figure(
            name=f"{finding.part}: {finding.name}",
            figure=finding.value,
            unit=finding.unit,
            baseline=finding.beside or None,
            target=finding.target,
            met=finding.met,
            note="; ".join(filter(None, (_spread(finding), finding.note))),
        )


def findings_of(name: str) -> list[Finding]:
    study = STUDIES[name]
    return run_study(name, study, study.seeds, DATA, os.cpu_count() or 1).findings


def _spread(finding: Finding) -> str:
    return "" if finding.half is None else f"± {finding.half:.2g} {finding.unit} (95 %)"


@benchmark("place")
def place() -> Iterator[Figure]:
    """Mean completion time of our policy and others, paired over seeds."""
    return figures_of("place")


@benchmark("place-worlds")
def place_worlds() -> Iterator[Figure]:
    """Compares mean completion times with those of other policies in simulated worlds of 60 job types."""
    return figures_of("place-worlds")


@benchmark("place-mild")
def place_mild() -> Iterator[Figure]:
    """The same if sharing gains little: loads up to 1, K80 GPUs, noisy measurements."""
    return figures_of("place-mild")


@benchmark("waits")
def waits() -> Iterator[Figure]:
    """Mean waits in replays in which jobs end, under policies against fragmentation, paired over seeds."""
    return figures_of("waits")


@benchmark("tune-grid")
def tune_grid() -> Iterator[Figure]:
    """Regret of the joint batch tuner on measured grids, from any initial sizes and with noise."""
    return figures_of("tune-grid")


@benchmark("gavel-fifo")
def gavel_fifo() -> Iterator[Figure]:
    """Completion times of Gavel's published FIFO runs."""
    return figures_of("gavel-fifo")
