# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant simulate`: policies on traces, with a table in the terminal and a report in a folder."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cotenant.cli.options import finite, folder_option, output_option, processes_option
from cotenant.cli.progress import progress
from cotenant.cli.report_folder import check_writable, write_report
from cotenant.core.placement.policies import ORDERS, QUEUES
from cotenant.core.units import Seconds
from cotenant.errors import CotenantError, InputError
from cotenant.wire.text import printable

if TYPE_CHECKING:
    from cotenant.sim.experiment import Plan, Run
    from cotenant.sim.results import Results, RunResult

MOST_SEEDS = 10_000
LONGEST_SEED = 18
"""digits; such a number is the same to every reader of JSON"""

POLICY_GRAMMAR = (
    "A/B orders nodes by A and GPUs by B; A+B breaks ties of A by B; A@online learns the mix from the jobs seen."
)

EPILOG = """\b
Examples:
  cotenant simulate --policy bestfit,fgd,fragmentation --out report
  cotenant simulate --trace openb:default --order published --policy fgd --seeds 42-51
  cotenant simulate --trace jobs.csv --nodes 4x8:A100:80GiB --mode timed --queue sjf --estimates oracle
"""


def policies(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    """`A,B` as a tuple without repetitions."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def seeds(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    """`42-51,60` as numbers."""
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or max(len(first), len(last)) > LONGEST_SEED:
            raise InputError(f"--seeds {text[:40]}: expected whole numbers and ranges, for example 42-51 or 1,2,7")
        low, high = int(first), int(last or first)
        if high < low or high - low + len(found) >= MOST_SEEDS:
            raise InputError(f"--seeds {text[:40]}: expected a rising range of at most {MOST_SEEDS} seeds")
        found.update(dict.fromkeys(range(low, high + 1)))
    return tuple(found)


@click.command(epilog=EPILOG)
@click.option(
    "--trace",
    default="demo",
    show_default=True,
    metavar="PATH|NAME",
    help="Jobs: a CSV file, or a name such as demo, openb:default, philly.",
)
@click.option(
    "--nodes",
    metavar="PATH|NAME|SPEC",
    help="Machines: a file, a name (demo, openb), or a spec such as 16x8:V100:32GiB. Default: what suits the trace.",
)
@click.option(
    "--policy",
    "policy_names",
    default="bestfit,fgd,fragmentation",
    show_default=True,
    metavar="A,B,…",
    callback=policies,
    help=f"Policies to compare: {', '.join(ORDERS)}. {POLICY_GRAMMAR}",
)
@click.option(
    "--seeds",
    "seed_numbers",
    default="42",
    show_default=True,
    metavar="42-51",
    callback=seeds,
    help="Seeds of the order of arrivals and of nodes.",
)
@click.option(
    "--mode",
    type=click.Choice(["fill", "timed"]),
    default="fill",
    show_default=True,
    help="fill: jobs arrive until the cluster is full. timed: jobs arrive, wait, run and finish.",
)
@click.option(
    "--queue",
    type=click.Choice(list(QUEUES)),
    default="fifo",
    show_default=True,
    help="timed: whose turn it is. srpt and las set running jobs aside.",
)
@click.option(
    "--order",
    type=click.Choice(["own", "published"]),
    default="own",
    show_default=True,
    help="fill: our own shuffle, or the published orders of FGD's evaluation.",
)
@click.option(
    "--load",
    type=click.FloatRange(0.01, 100),
    callback=finite,
    default=1.3,
    show_default=True,
    help="fill: how much arrives, in multiples of the cluster's GPUs.",
)
@click.option("--limit", type=click.IntRange(1), help="Only the first so many jobs.")
@click.option(
    "--compress",
    type=click.FloatRange(1e-6, 1e9),
    callback=finite,
    default=1.0,
    show_default=True,
    help="timed: arrivals come so many times as fast.",
)
@click.option(
    "--estimates",
    default="none",
    show_default=True,
    metavar="none|oracle|noisy:SIGMA",
    help="timed: what the queue is told of durations.",
)
@click.option(
    "--round",
    "round_seconds",
    type=click.FloatRange(0.001, 1e9),
    callback=finite,
    default=300.0,
    show_default=True,
    help="timed: seconds between rounds in which jobs may be set aside.",
)
@click.option(
    "--restart",
    type=click.FloatRange(0, 1e9),
    callback=finite,
    default=30.0,
    show_default=True,
    help="timed: seconds of work lost when a job is set aside.",
)
@click.option(
    "--world",
    type=click.Choice(["none", "gavel"]),
    default="none",
    show_default=True,
    help="timed: what jobs on one card do to each other. gavel: as measured, on cards named v100, p100 or k80.",
)
@click.option("--oracle", is_flag=True, help="with --world: policies know it, to see what that would be worth.")
@click.option(
    "--tenants",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="with --world: the most jobs on one card.",
)
@click.option(
    "--look",
    type=click.FloatRange(0.001, 1e9),
    callback=finite,
    default=120.0,
    show_default=True,
    help="with --world: seconds until the speeds of new neighbours are known.",
)
@click.option(
    "--noise",
    type=click.FloatRange(0, 1),
    callback=finite,
    default=0.0,
    show_default=True,
    help="with --world: error of measured speeds.",
)
@click.option(
    "--record",
    default="",
    metavar="JOB,…",
    help="Write the decisions about these jobs into the folder, for `cotenant why`.",
)
@folder_option("Folder for results.json, summary.csv, series.csv and report.html.")
@processes_option
@output_option
def simulate(
    trace: str,
    nodes: str | None,
    policy_names: tuple[str, ...],
    seed_numbers: tuple[int, ...],
    mode: str,
    queue: str,
    order: str,
    load: float,
    limit: int | None,
    compress: float,
    estimates: str,
    round_seconds: float,
    restart: float,
    world: str,
    oracle: bool,
    tenants: int,
    look: float,
    noise: float,
    record: str,
    out: Path | None,
    processes: int,
    output: str,
) -> None:
    """Runs scheduling policies on a trace of jobs, in simulated time."""
    from cotenant.sim import experiment
    from cotenant.sim.timed import Timing

    if record and out is None:
        raise InputError("--record needs --out, the folder to write the decisions into")
    if not policy_names:
        raise InputError(f"--policy is empty; there are: {', '.join(sorted(ORDERS))}")
    if out is not None:
        check_writable(out)
    plan = experiment.Plan(
        trace=trace,
        nodes=nodes or default_nodes(trace),
        policies=policy_names,
        seeds=seed_numbers,
        mode=mode,
        load=load,
        published_order=order == "published",
        limit=limit,
        compress=compress,
        estimates=estimates,
        timing=Timing(
            queue=queue, round=Seconds(round_seconds), restart=Seconds(restart), look=Seconds(look), noise=noise
        ),
        world=world,
        oracle=oracle,
        tenants=tenants,
        data=data_folder(),
        record=frozenset(name.strip() for name in record.split(",") if name.strip()),
    )
    experiment.check(plan)
    runs, stopped = _run(plan, processes)
    command = printable(shlex.join(["cotenant", *sys.argv[1:]]))
    results = experiment.results_of(plan, command, [run.result for run in runs])
    if out is not None and runs:
        write_report(results, runs, out)
    _show(results, output)
    if stopped is not None:
        raise stopped
    never = plan.record.difference(one.job.id for run in runs for one in run.decisions)
    if never:
        click.echo(f"no decision was made about {', '.join(sorted(never))}", err=True)


def data_folder() -> Path | None:
    """The folder of public traces, where one is set."""
    named = os.environ.get("COTENANT_DATA")
    return Path(named) if named else None


def default_nodes(trace: str) -> str:
    """A cluster that suits the trace: its own where it has one, else 16 nodes of 8 GPUs."""
    family = trace.partition(":")[0]
    return family if family in ("demo", "openb") else "16x8"


def _run(plan: "Plan", processes: int) -> "tuple[list[Run], BaseException | None]":
    """All runs, with progress; where something other than the input stopped them, those that were finished."""
    from cotenant.sim.experiment import run_all

    runs: list[Run] = []
    with progress("simulating", len(plan.policies) * len(plan.seeds)) as advance:

        def finished(run: "Run") -> None:
            runs.append(run)
            advance(f"{run.result.policy}, seed {run.result.seed}")

        try:
            run_all(plan, processes, finished)
        except InputError:
            raise
        except (KeyboardInterrupt, CotenantError) as stopped:
            return runs, stopped
    return runs, None


def _show(results: "Results", output: str) -> None:
    from cotenant.cli.show import render

    render(results, output, lambda wide: _draw_runs(results) if wide else _draw_policies(results))
    if not results.complete and output in ("table", "wide"):
        click.echo(f"incomplete: {len(results.runs)} runs had finished", err=True)


def _draw_policies(results: "Results") -> None:
    """A row per policy, over all seeds."""
    from rich.console import Console

    from cotenant.sim.report import table

    if results.runs:
        Console().print(table(results))


def _draw_runs(results: "Results") -> None:
    """A row per policy and seed, with every number there is."""
    from cotenant.cli.show import known, table

    def cell(name: str) -> "Callable[[RunResult], str]":
        return lambda run: known(run.summary.get(name), "{:.6g}")

    numbers = dict.fromkeys(name for run in results.runs for name in run.summary)
    columns = (
        ("POLICY", lambda run: run.policy, False),
        ("SEED", lambda run: str(run.seed), False),
        *((name.upper(), cell(name), False) for name in numbers),
    )
    click.echo(table(results.runs, columns, wide=True))
