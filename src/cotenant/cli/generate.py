# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant generate`: submits benchmark tasks to the daemon at the arrival times of a trace."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import click
import msgspec

from cotenant.cli.client import Client, RefusedByDaemonError, at
from cotenant.cli.options import finite, output_option
from cotenant.cli.output import emit
from cotenant.cli.request import environment
from cotenant.wire.local import WAITING_OR_ACTIVE, JobRequest, JobView, described_state
from cotenant.wire.text import counted
from cotenant.workloads.driving import Change, Ledger, Life, drive
from cotenant.workloads.generator import MIXES, PlannedJob, mix_named, plan
from cotenant.workloads.registry import SIZES

MOST_JOBS = 10_000
PAGE = 10_000
COPIED_VARIABLES = ("COTENANT_CACHE", "XDG_CACHE_HOME", "XLA_FLAGS")
"""environment variables that say where compiled tasks are cached, and how they are compiled"""
GRACE_S = 2.0
"""seconds between SIGTERM and SIGKILL; tasks exit within a second of a signal"""
PLAN_COLUMNS = (
    ("AT", lambda job: f"{job.at:.1f} s", False),
    ("NAME", lambda job: job.name, False),
    ("MEMORY", lambda job: f"{job.memory} MiB", False),
    ("BUSY", lambda job: f"{job.compute // 10}%", False),
    ("BATCH", lambda job: str(job.batch), False),
    ("RANGE", lambda job: "{}-{}".format(*job.batch_range), True),
    ("COMMAND", lambda job: " ".join(("python", *job.argv)), True),
)
RESULT_COLUMNS = (
    ("ID", lambda one: one["job"], False),
    ("NAME", lambda one: one["name"], False),
    ("STATE", lambda one: one["state"], False),
    ("WAITED", lambda one: "-" if one["start"] is None else f"{one['start'] - one['submit']:.1f} s", False),
    ("JCT", lambda one: f"{one['jct_s']:.1f} s", False),
)
EPILOG = """\b
Examples:
  cotenant generate --jobs 20 --dry-run
  cotenant generate --jobs 100 --scale 0.2 --mix iadeep-eight --csv jobs.csv
  cotenant generate --jobs 50 --trace philly --mix neumf=2,bert=1
"""


@click.command(epilog=EPILOG)
@click.option(
    "--jobs", type=click.IntRange(1, MOST_JOBS), default=100, show_default=True, help="Number of jobs to submit."
)
@click.option(
    "--scale",
    type=float,
    callback=finite,
    default=1.0,
    show_default=True,
    help="Scale of the gaps between arrivals, relative to 1/1000 of the trace's.",
)
@click.option(
    "--trace",
    metavar="PATH|NAME",
    help="Trace whose arrival times are used, as in `cotenant simulate`. Default: random bursts like Philly's.",
)
@click.option(
    "--mix",
    default="iadeep",
    show_default=True,
    metavar="NAME|TASK=WEIGHT,…",
    help=f"Mix of tasks: {', '.join(MIXES)}, or your own weights.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Random seed for the choice of tasks and for their data."
)
@click.option("--size", type=click.Choice(SIZES), default="tiny", show_default=True, help="Size of every task's model.")
@click.option(
    "--work",
    type=float,
    callback=finite,
    default=1.0,
    show_default=True,
    help="Length of every job, as a multiple of its default.",
)
@click.option("--compute", is_flag=True, help="Also request the compute share that each task uses alone.")
@click.option("--dry-run", is_flag=True, help="Print the planned jobs without submitting them.")
@click.option(
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path),
    default="generated.csv",
    show_default=True,
    help="File for submit time, start time, finish time and JCT of each job, written while they run.",
)
@click.option(
    "--cancel-on-interrupt", is_flag=True, help="Cancel the submitted jobs on Ctrl-C. Default: they continue."
)
@output_option
def generate(
    jobs: int,
    scale: float,
    trace: str | None,
    mix: str,
    seed: int,
    size: str,
    work: float,
    compute: bool,
    dry_run: bool,
    csv_file: Path,
    cancel_on_interrupt: bool,
    output: str,
) -> None:
    """Submits benchmark tasks at the arrival times of a trace, and records when each started and ended."""
    planned = plan(
        jobs=jobs,
        scale=scale,
        arrivals=None if trace is None else arrivals_of(trace, jobs),
        mix=mix_named(mix),
        seed=seed,
        size=size,
        work=work,
    )
    if dry_run:
        emit(planned, output, PLAN_COLUMNS)
        return
    if find_spec("jax") is None:  # every job would fail
        raise ModuleNotFoundError("jax", name="jax")
    submitter = Submitter(Client(), compute)
    ended: list[dict[str, object]] = []
    with (
        Ledger(csv_file) as ledger,
        _progress(len(planned)) as progress,
        _interruptible(submitter, cancel_on_interrupt),
    ):
        for changes in drive(planned, submitter.submit, submitter.poll):
            for change in changes:
                ledger.add(change)
                if change.event == "finished":
                    ended.append(result_row(change))
            progress(len(submitter.views), len(ended))
    emit(ended, output, RESULT_COLUMNS)


def arrivals_of(trace: str, jobs: int) -> list[float]:
    """Arrival times of the first jobs of a trace; a trace that is not sorted by time is read completely."""
    from cotenant.cli.simulate import data_folder
    from cotenant.sim.traces.registry import open_trace

    opened = open_trace(trace, data=data_folder())
    times: Iterator[float] = (arrival.job.submitted for arrival in opened.read())
    return list(islice(times, jobs)) if opened.in_order else sorted(times)[:jobs]


class Submitter:
    """Submits planned jobs to the daemon and tracks their states."""

    def __init__(self, client: Client, compute: bool = False, **changes: object) -> None:
        """`changes` are fields of the request that are the same for every job."""
        self.views: dict[str, JobView] = {}
        """job ID -> the last state that the daemon reported, for every submitted job"""
        self._client, self._compute, self._changes = client, compute, changes

    def submit(self, planned: PlannedJob) -> Life:
        request = msgspec.structs.replace(request_of(planned, self._compute), **self._changes)
        try:
            view = self._client.post("/v1/jobs", JobView, msgspec.json.encode(request))
        except RefusedByDaemonError as error:
            raise type(error)(f"{planned.name}: {error}") from None
        self.views[view.id] = view
        return life_of(view)

    def poll(self, jobs: Sequence[str]) -> Mapping[str, Life]:
        """Returns the current states. Jobs are listed in pages after the first one, which is then requested by itself,
        so two requests usually suffice for any number of jobs."""
        views: dict[str, JobView] = {}
        last = jobs[0]
        while len(views) < len(jobs) - 1:
            page = self._client.get(f"/v1/jobs?after={at(last)}&limit={PAGE}", list[JobView])
            if not page:
                break
            views |= {view.id: view for view in page if view.id in jobs}
            last = page[-1].id
        views[jobs[0]] = self._client.get(f"/v1/jobs/{at(jobs[0])}", JobView)
        self.views |= views
        return {job: life_of(view) for job, view in views.items()}


def request_of(planned: PlannedJob, compute: bool = False) -> JobRequest:
    """The request for a planned job. It claims memory, and a compute share only if `compute` is set."""
    return JobRequest(
        command=(sys.executable, *planned.argv),
        cwd=str(Path.cwd()),
        env=environment(tuple(name for name in COPIED_VARIABLES if name in os.environ)),
        name=planned.name,
        memory=f"{planned.memory}MiB",
        compute=f"{planned.compute // 10}%" if compute else None,
        batch=planned.batch,
        batch_range=planned.batch_range,
        workload=planned.task,
        grace_s=GRACE_S,
    )


def life_of(view: JobView) -> Life:
    return Life(job=view.id, submit=view.submitted, start=view.started, finish=view.ended, state=described_state(view))


def result_row(change: Change) -> dict[str, object]:
    """A row of the result table for a job that has ended."""
    life = change.life
    return {
        "job": life.job,
        "name": change.planned.name,
        "task": change.planned.task,
        "submit": life.submit,
        "start": life.start,
        "finish": life.finish,
        "jct_s": life.jct,
        "state": life.state,
    }


@contextmanager
def _interruptible(submitter: Submitter, cancel: bool) -> Iterator[None]:
    """On Ctrl-C, says what happens to the submitted jobs: they continue, or are cancelled."""
    try:
        yield
    except KeyboardInterrupt:
        submitted = counted(len(submitter.views), "job")
        if cancel:
            cancel_all(Client(), set(submitter.views))
            click.echo(f"cotenant: submitted {submitted}; those that had not ended are cancelled", err=True)
        else:
            what = (
                "continues; `cotenant jobs` lists it"
                if submitted == "1 job"
                else "continue; `cotenant jobs` lists them"
            )
            click.echo(f"cotenant: submitted {submitted}, which {what}", err=True)
        raise


def cancel_all(client: Client, jobs: set[str]) -> None:
    """Cancels those of the jobs that have not ended."""
    for view in active_jobs(client):
        if view.id in jobs:
            try:
                client.post(f"/v1/jobs/{at(view.id)}/cancel", JobView)
            except RefusedByDaemonError:
                continue  # it ended in the meantime


def active_jobs(client: Client) -> list[JobView]:
    return client.get(f"/v1/jobs?state={','.join(WAITING_OR_ACTIVE)}&limit={PAGE}", list[JobView])


class _Progress:
    """A status line on standard error that is overwritten in place."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._shown = ""

    def __call__(self, submitted: int, ended: int) -> None:
        line = f"{submitted} of {self._total} submitted, {submitted - ended} queued or running, {ended} ended"
        if line != self._shown and sys.stderr.isatty():
            self._shown = line
            click.echo(f"\r\033[K{line}", nl=False, err=True)


@contextmanager
def _progress(total: int) -> Iterator[_Progress]:
    progress = _Progress(total)
    try:
        yield progress
    finally:
        if sys.stderr.isatty():
            click.echo("", err=True)
