# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The options that describe a plan of benchmark tasks, and the plan that they give."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import click

from cotenant.cli.options import complete_policies, finite
from cotenant.workloads.generator import MIXES, PlannedJob, mix_named, plan
from cotenant.workloads.registry import SIZES

F = TypeVar("F", bound=Callable[..., object])
MOST_JOBS = 10_000
PLAN_COLUMNS = (
    ("AT", lambda job: f"{job.at:.1f} s", False),
    ("NAME", lambda job: job.name, False),
    ("MEMORY", lambda job: f"{job.memory} MiB", False),
    ("BUSY", lambda job: f"{job.compute // 10}%", False),
    ("BATCH", lambda job: str(job.batch), False),
    ("RANGE", lambda job: "{}-{}".format(*job.batch_range), True),
    ("COMMAND", lambda job: " ".join(("python", *job.argv)), True),
)


def plan_options(*, jobs: int, mix: str) -> Callable[[F], F]:
    """Adds the options of `plan_of`, with these defaults."""
    options = (
        click.option(
            "--jobs",
            type=click.IntRange(1, MOST_JOBS),
            default=jobs,
            show_default=True,
            help="Number of jobs to submit.",
        ),
        click.option(
            "--scale",
            type=float,
            callback=finite,
            default=1.0,
            show_default=True,
            help="Scale of the gaps between arrivals, relative to 1/1000 of the trace's.",
        ),
        click.option(
            "--trace",
            metavar="PATH|NAME",
            help="Trace whose arrival times are used, as in `cotenant simulate`. Default: random bursts like Philly's.",
        ),
        click.option(
            "--mix",
            default=mix,
            show_default=True,
            metavar="NAME|TASK=WEIGHT,…",
            help=f"Mix of tasks: {', '.join(MIXES)}, or your own weights.",
        ),
        click.option(
            "--seed",
            type=int,
            default=0,
            show_default=True,
            help="Random seed for the choice of tasks and for their data.",
        ),
        click.option(
            "--size", type=click.Choice(SIZES), default="tiny", show_default=True, help="Size of every task's model."
        ),
        click.option(
            "--work",
            type=float,
            callback=finite,
            default=1.0,
            show_default=True,
            help="Length of every job, as a multiple of its default.",
        ),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def task_options(command: F) -> F:
    """Adds the options of benchmark tasks that only a cluster has."""
    for option in (
        click.option(
            "--volume",
            metavar="CLAIM",
            help="PersistentVolumeClaim with data sets of `cotenant workloads prepare`. Default: tasks make their own "
            "samples.",
        ),
        click.option(
            "--policy",
            metavar="NAME",
            shell_complete=complete_policies,
            help="Placement policy of the jobs in a cluster. Default: that of the cluster.",
        ),
        click.option(
            "--image", metavar="NAME", help="Image with cotenant[workloads], in which the tasks run in a cluster."
        ),
    ):
        command = option(command)
    return command


def plan_of(
    jobs: int, scale: float, trace: str | None, mix: str, seed: int, size: str, work: float
) -> list[PlannedJob]:
    """The jobs that these options describe."""
    return plan(
        jobs=jobs,
        scale=scale,
        arrivals=None if trace is None else arrivals_of(trace, jobs),
        mix=mix_named(mix),
        seed=seed,
        size=size,
        work=work,
    )


def arrivals_of(trace: str, jobs: int) -> list[float]:
    """Arrival times of the first jobs of a trace; a trace that is not sorted by time is read completely."""
    from cotenant.cli.simulate import data_folder
    from cotenant.sim.traces.registry import open_trace

    opened = open_trace(trace, data=data_folder())
    times: Iterator[float] = (arrival.job.submitted for arrival in opened.read())
    return list(islice(times, jobs)) if opened.in_order else sorted(times)[:jobs]
