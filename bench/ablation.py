# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What each term of the policy `fragmentation` contributes: the gain over FGD with the term, and without it.

`make bench ONLY=ablation` measures all variants; then `python -m bench.ablation` rewrites the table of
docs/explanation/fragmentation.md from the recorded rows. The seeds are those of the published arrival orders on which
no constant was tuned.
"""

import gzip
import json
import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path

from bench.harness import Figure, benchmark
from bench.replay import DATA, LISTS
from bench.rows import Row, read
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.fragmentation.ours import Terms, order_of
from cotenant.core.model import Job, Machine
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Policy
from cotenant.sim import fill
from cotenant.sim.clusters import open_cluster
from cotenant.sim.traces.registry import open_trace

TRACES = ("default", "gpuspec25", "gpushare60", "multigpu30")
SEEDS = (45, 46, 47)
"""published seeds that were not used to choose the constants; those were 42 to 44"""
FGD = "fgd"
VARIANTS: Mapping[str, Terms] = {
    "as it is": Terms(),
    "no strands: room without CPU keeps its worth": Terms(strands=False),
    "no scarcity: places weighted by popularity only": Terms(scarcity=False),
    "places counted as FGD only (no copies)": Terms(copies=0.0),
    "steps of a twentieth instead of a tenth of a GPU": Terms(quantum=50),
    "packing weighted 10 instead of 30": Terms(packing=10),
}
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "fragmentation.md"
BEGIN, END = "<!-- ablation: written by `python -m bench.ablation` -->", "<!-- end of ablation -->"


def allocated(trace: str, variant: str, seed: int, jobs: int | None = None) -> float:
    """Percent of GPUs allocated at 100 % arrived load, by FGD or by a variant; `jobs` ends the replay earlier."""
    arriving, machines, orders = _replayed(trace)
    order = fill.Order(orders[str(seed)]["order"][:jobs], orders[str(seed)]["node_rank"])
    gpus = sum(len(machine.gpus) for machine in machines)

    def build(name: str, known: Knowledge) -> Policy:
        policy = build_policy(name, known)
        if variant == FGD:
            return policy
        own = (order_of(known, VARIANTS[variant]),)
        return replace(policy, nodes=own, gpus=own)

    name = FGD if variant == FGD else "fragmentation"
    series = fill.discretise(fill.replay(arriving, machines, order, name, seed, build=build), gpus)
    return series["allocated"][series["arrived"].index(100.0)]


@lru_cache(maxsize=1)
def _replayed(trace: str) -> tuple[list[Job], tuple[Machine, ...], Mapping[str, Mapping[str, list[int]]]]:
    jobs = [arrival.job for arrival in open_trace(f"openb:{trace}", data=DATA).read()]
    orders = json.loads(gzip.decompress((DATA / "fgd_replay" / f"{trace}.json.gz").read_bytes()))["seeds"]
    return jobs, open_cluster("openb", data=DATA), orders


@benchmark("ablation")
def ablation() -> Iterator[Figure]:
    """The gain over FGD with every term, and without each."""
    traces = [trace for trace in TRACES if not LISTS or trace in LISTS]
    tasks = list(product(traces, (FGD, *VARIANTS), SEEDS))
    with ProcessPoolExecutor() as pool:
        found = dict(zip(tasks, pool.map(allocated, *zip(*tasks, strict=True)), strict=True))
    note = f"mean over seeds {SEEDS[0]} to {SEEDS[-1]}, at 100 % arrived load"
    for trace, variant in product(traces, VARIANTS):
        gain = statistics.mean(found[trace, variant, seed] - found[trace, FGD, seed] for seed in SEEDS)
        yield Figure(name=f"{trace}: {variant}", figure=gain, unit="points", note=note)


def table(rows: list[Row]) -> str:
    """The table of the page, from the rows of the benchmark."""
    gains = {row["name"]: row["figure"] for row in rows if row["bench"] == "ablation"}
    traces = [trace for trace in TRACES if any(str(name).startswith(f"{trace}: ") for name in gains)]
    lines = [f"| Variant | {' | '.join(traces)} |", f"|---{'|---' * len(traces)}|"]
    for variant in VARIANTS:
        cells = [f"{gains[f'{trace}: {variant}']:.2f}" for trace in traces]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rewrite(page: str, rows: list[Row]) -> str:
    """The page with the table of these rows."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")
