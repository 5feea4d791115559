# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant simulate`: replays a trace under several policies; prints a table and writes a report folder."""

import os
import shlex
import sys
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.options import complete_policies, finite, folder_option, output_option, processes_option, weights
from cotenant.cli.output import progress
from cotenant.cli.request import length
from cotenant.core.placement.policies import ORDERS, QUEUES
from cotenant.core.units import Seconds
from cotenant.errors import CotenantError, InputError
from cotenant.wire.text import counted, printable

if TYPE_CHECKING:
    from cotenant.sim.experiment import Plan, Run
    from cotenant.sim.results import Results, RunResult

MOST_SEEDS = 10_000
ONE, SEVERAL = (42,), (42, 43, 44, 45, 46)
"""seeds if none are given: timed results vary by chance, so they need an interval"""
LONGEST_SEED = 18
"""digits; larger numbers would overflow 64 bits in readers of the JSON file"""
LONGEST_NAME = 100
"""characters of a policy or a job in the name of a decision file"""

POLICY_GRAMMAR = (
    "A/B orders nodes by A and the GPUs of a node by B; A+B breaks ties of A by B; "
    "A@online learns the mix of jobs while it runs."
)

EPILOG = """\b
Examples:
  cotenant simulate --policy bestfit,fgd,fragmentation --out report
  cotenant simulate --trace openb:default --order published --policy fgd --seeds 42-51
  cotenant simulate --trace recorded:day.jsonl --policy least-loaded,cotenant
  cotenant simulate --trace jobs.csv --nodes 4x8:A100:80GiB --mode timed --queue sjf --estimates oracle
"""


def policies(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    """Splits `A,B` and removes duplicates."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def seeds(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Expands `42-51,60` into numbers; None if nothing is given."""
    if text is None:
        return None
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or max(len(first), len(last)) > LONGEST_SEED:
            raise InputError(f"--seeds {text[:40]}: expected integers and ranges, for example 42-51 or 1,2,7")
        low, high = int(first), int(last or first)
        if high < low or high - low + len(found) >= MOST_SEEDS:
            raise InputError(
                f"--seeds {text[:40]}: expected ascending ranges, and at most {MOST_SEEDS:,} seeds in total"
            )
        found.update(dict.fromkeys(range(low, high + 1)))
    return tuple(found)


@click.command(epilog=EPILOG)
@click.option(
    "--trace",
    default="demo",
    show_default=True,
    metavar="PATH|NAME",
    help="The jobs: a CSV file, a name such as demo, openb:default or philly, or recorded:FILE.",
)
@click.option(
    "--nodes",
    metavar="PATH|NAME|SPEC",
    help="The nodes: a file, a name (demo, openb), or a spec such as 16x8:V100:32GiB. Default: by trace, else 16x8.",
)
@click.option(
    "--policy",
    "policy_names",
    default="bestfit,fgd,fragmentation",
    show_default=True,
    metavar="A,B,…",
    callback=policies,
    shell_complete=complete_policies,
    help=f"Placement policies to compare: {', '.join(ORDERS)}. {POLICY_GRAMMAR}",
)
@click.option(
    "--seeds",
    "seed_numbers",
    show_default="42; 42-46 in mode timed, without --record",
    metavar="42-51",
    callback=seeds,
    help="Random seeds, for the order of arrivals and of equal nodes.",
)
@click.option(
    "--mode",
    type=click.Choice(["fill", "timed"]),
    show_default="fill, or timed for a recording",
    help="fill: jobs arrive until the cluster is full, none ends. timed: jobs arrive, wait, run and end.",
)
@click.option(
    "--vary",
    type=click.Choice(["order", "arrivals"]),
    show_default="order; arrivals if no --seeds are given",
    help="timed: what seeds change: the order of equal nodes only, or also the gaps between arrivals.",
)
@click.option(
    "--queue",
    type=click.Choice(list(QUEUES)),
    default="fifo",
    show_default=True,
    help="timed: queue order among jobs of equal priority; srpt and las preempt running jobs; fair shares GPUs among "
    "the groups and users of the trace.",
)
@click.option(
    "--half-life",
    metavar="7d",
    callback=length,
    default="7d",
    show_default=True,
    help="with --queue fair: time in which half of the past use is forgotten.",
)
@click.option(
    "--weights",
    metavar="NAME=N,…",
    callback=weights,
    default="",
    help="with --queue fair: weights of groups and users, such as vision=2,vision/alice=3. Default: 1.",
)
@click.option(
    "--backfill/--no-backfill",
    default=True,
    show_default="on",
    help="timed: reserve GPUs for the first job in the queue; later jobs start only if they do not delay it.",
)
@click.option(
    "--order",
    type=click.Choice(["own", "published"]),
    default="own",
    show_default=True,
    help="fill: arrival order, either shuffled by seed (own) or as published with FGD's evaluation.",
)
@click.option(
    "--load",
    type=click.FloatRange(0.01, 100),
    callback=finite,
    default=1.3,
    show_default=True,
    help="fill: total GPU demand that arrives, in multiples of the cluster's capacity.",
)
@click.option("--limit", type=click.IntRange(1), help="Use only the first N jobs of the trace.")
@click.option(
    "--compress",
    type=click.FloatRange(1e-6, 1e9),
    callback=finite,
    default=1.0,
    show_default=True,
    help="timed: divide the gaps between arrivals by this factor.",
)
@click.option(
    "--estimates",
    default="none",
    show_default=True,
    metavar="none|oracle|noisy:SIGMA",
    help="timed: duration estimates for the queue: the trace's, exact, or with a log-normal error.",
)
@click.option(
    "--round",
    "round_seconds",
    type=click.FloatRange(0.001, 1e9),
    callback=finite,
    default=300.0,
    show_default=True,
    help="timed: seconds between rounds of preemption.",
)
@click.option(
    "--restart",
    type=click.FloatRange(0, 1e9),
    callback=finite,
    default=30.0,
    show_default=True,
    help="timed: seconds of work that a preempted job loses.",
)
@click.option(
    "--startup",
    type=click.FloatRange(0, 1e9),
    callback=finite,
    default=0.0,
    show_default=True,
    help="timed: seconds from the start of a job until it works, such as the start-up of a pod.",
)
@click.option(
    "--world",
    type=click.Choice(["none", "gavel"]),
    default="none",
    show_default=True,
    help="timed: slowdown between jobs on one GPU: none, or as measured by Gavel (GPU types v100, p100, k80).",
)
@click.option("--oracle", is_flag=True, help="with --world: give policies the true slowdowns, as an upper bound.")
@click.option(
    "--tenants",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="with --world: largest number of jobs on one GPU.",
)
@click.option(
    "--look",
    type=click.FloatRange(0.001, 1e9),
    callback=finite,
    default=120.0,
    show_default=True,
    help="with --world: seconds until the speeds of new neighbours are measured.",
)
@click.option(
    "--noise",
    type=click.FloatRange(0, 1),
    callback=finite,
    default=0.0,
    show_default=True,
    help="with --world: error of measured speeds (standard deviation of their logarithm).",
)
@click.option(
    "--record",
    default="",
    metavar="JOB,…",
    help="Write the decisions about these jobs to --out, for `cotenant why --decision`.",
)
@folder_option("Folder for results.json, summary.csv, series.csv and report.html.")
@processes_option
@output_option
def simulate(out: Path | None, processes: int, output: str, **options: Any) -> None:
    """Replays a trace of jobs under scheduling policies, in simulated time, and compares them."""
    from cotenant.sim import experiment

    if options["record"] and out is None:
        raise InputError("--record needs --out DIR, the folder for the recorded decisions")
    if not options["policy_names"]:
        raise InputError(f"--policy is empty; expected some of {', '.join(sorted(ORDERS))}")
    if out is not None:
        check_writable(out)
    plan = _plan(**options)
    experiment.check(plan)
    _print_notes(plan.trace)
    runs, stopped = _run(plan, processes)
    command = printable(shlex.join(["cotenant", *sys.argv[1:]]))
    results = experiment.results_of(plan, command, [run.result for run in runs])
    if out is not None and runs:
        write_report(results, runs, out)
    _show(results, output)
    if stopped is not None:
        raise stopped
    missing = plan.record.difference(one.job.id for run in runs for one in run.decisions)
    if missing:
        click.echo(f"no decision was recorded about {', '.join(sorted(missing))}", err=True)


def _plan(
    *,
    trace: str,
    mode: str | None,
    nodes: str | None,
    policy_names: tuple[str, ...],
    seed_numbers: tuple[int, ...] | None,
    vary: str | None,
    order: str,
    queue: str,
    half_life: float,
    weights: tuple[tuple[tuple[str, ...], float], ...],
    backfill: bool,
    round_seconds: float,
    restart: float,
    startup: float,
    look: float,
    noise: float,
    record: str,
    **same: Any,
) -> "Plan":
    """The plan that the options describe; `same` are options that a plan has under the same name."""
    from cotenant.core.queueing.fair import FairSettings
    from cotenant.sim.experiment import Plan
    from cotenant.sim.timed import Timing
    from cotenant.sim.traces.recorded import is_recorded

    mode = mode or ("timed" if is_recorded(trace) else "fill")
    several = mode == "timed" and seed_numbers is None and not record and not is_recorded(trace)
    timing = Timing(
        queue=queue,
        fair=FairSettings(half_life=Seconds(half_life), weights=weights),
        backfill=backfill,
        round=Seconds(round_seconds),
        restart=Seconds(restart),
        startup=Seconds(startup),
        look=Seconds(look),
        noise=noise,
    )
    return Plan(
        trace=trace,
        mode=mode,
        nodes=nodes or default_nodes(trace),
        policies=policy_names,
        seeds=seed_numbers or (SEVERAL if several else ONE),
        vary=vary or ("arrivals" if several else "order"),
        published_order=order == "published",
        timing=timing,
        data=data_folder(),
        record=frozenset(name.strip() for name in record.split(",") if name.strip()),
        **same,
    )


def _print_notes(trace: str) -> None:
    """Says what was recorded, if the trace is a recording."""
    from cotenant.sim.traces.recorded import is_recorded, recorded_notes

    for note in recorded_notes(trace) if is_recorded(trace) else ():
        click.echo(f"{printable(trace)}: {note}", err=True)


def data_folder() -> Path | None:
    """The folder of public traces ($COTENANT_DATA), if one is set."""
    named = os.environ.get("COTENANT_DATA")
    return Path(named) if named else None


def default_nodes(trace: str) -> str:
    """The cluster that belongs to the trace, or 16 nodes of 8 GPUs if it has none."""
    from cotenant.sim.traces.recorded import is_recorded

    family = trace.partition(":")[0]
    if is_recorded(trace):
        return trace
    return family if family in ("demo", "openb") else "16x8"


def _run(plan: "Plan", processes: int) -> "tuple[list[Run], BaseException | None]":
    """Runs everything with a progress bar; if an interrupt or a failure stops it, returns the finished runs and the
    cause."""
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
    from cotenant.cli.output import render

    render(results, output, lambda wide: _draw_runs(results) if wide else _draw_policies(results))
    if not results.complete and output in ("table", "wide"):
        click.echo(f"incomplete: only {counted(len(results.runs), 'run')} finished", err=True)


def _draw_policies(results: "Results") -> None:
    """Prints one row per policy, averaged over all seeds."""
    from rich.console import Console

    from cotenant.sim.report import table

    if results.runs:
        Console().print(table(results))


def _draw_runs(results: "Results") -> None:
    """Prints one row per policy and seed, with every metric."""
    from cotenant.cli.output import or_dash, table

    def cell(name: str) -> "Callable[[RunResult], str]":
        return lambda run: or_dash(run.summary.get(name), "{:.6g}")

    numbers = dict.fromkeys(name for run in results.runs for name in run.summary)
    columns = (
        ("POLICY", lambda run: run.policy, False),
        ("SEED", lambda run: str(run.seed), False),
        *((name.upper(), cell(name), False) for name in numbers),
    )
    click.echo(table(results.runs, columns, wide=True))


def check_writable(out: Path) -> None:
    """Rejects an output folder before the simulation if the report could not be written to it."""
    existing = next(folder for folder in (out, *out.parents) if folder.exists())
    if not existing.is_dir():
        raise InputError(f"--out {out}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: {existing} is not writable")


def write_report(results: "Results", runs: "list[Run]", out: Path) -> None:
    """Writes the report, and one file for each recorded decision."""
    from cotenant.sim.report import write
    from cotenant.sim.report.files import replace_files
    from cotenant.wire.decision import encode

    write(results, out)
    decisions: dict[str, bytes] = {}
    for run in sorted(runs, key=lambda run: (run.result.policy, run.result.seed)):
        for one in run.decisions:
            name = f"decision-{_file_name(run.result.policy)}-{run.result.seed}-{_file_name(one.job.id)}"
            decisions[_unused_name(name, decisions)] = encode(one)
    try:
        replace_files(out, decisions)
    except OSError as error:
        raise CotenantError(f"{out}: cannot write the recorded decisions: {error.strerror}") from None


def _file_name(text: str) -> str:
    kept = (letter if letter.isascii() and (letter.isalnum() or letter in "+@_.") else "_" for letter in text)
    return "".join(kept)[:LONGEST_NAME]


def _unused_name(name: str, used: "dict[str, bytes]") -> str:
    """A file name that is not in use yet: a preempted job has several decisions, and two job IDs may map to one
    name."""
    names = (f"{name}{again}.json" for again in chain([""], (f"-{n}" for n in count(2))))
    return next(one for one in names if one not in used)
