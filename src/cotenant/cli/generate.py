# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant generate`: submits benchmark tasks to the daemon or to a cluster at the arrival times of a trace."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import click
import msgspec

from cotenant.cli.cluster_jobs import KUBERNETES, Where, check_on, on_options
from cotenant.cli.options import output_option
from cotenant.cli.output import emit
from cotenant.cli.planning import PLAN_COLUMNS, plan_of, plan_options, task_options
from cotenant.client.client import Client
from cotenant.client.http import at
from cotenant.client.problems import RefusedByDaemonError
from cotenant.client.requests import environment
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import WAITING_OR_ACTIVE, JobView, described_state
from cotenant.wire.text import counted
from cotenant.workloads.driving import Change, Ledger, Life, drive
from cotenant.workloads.generator import PlannedJob

PAGE = 10_000
COPIED_VARIABLES = ("COTENANT_CACHE", "XDG_CACHE_HOME", "XLA_FLAGS")
"""environment variables that say where compiled tasks are cached, and how they are compiled"""
GRACE_S = 2.0
"""seconds between SIGTERM and SIGKILL; tasks exit within a second of a signal"""
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
  cotenant generate --on kubernetes --image team/workloads:1 --jobs 100 --policy iadeep
"""
ONLY_CLUSTER = ("image", "policy", "volume")
"""options that have no meaning on one machine"""


@click.command(epilog=EPILOG)
@plan_options(jobs=100, mix="iadeep")
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
@task_options
@on_options
@output_option
def generate(
    compute: bool,
    dry_run: bool,
    csv_file: Path,
    cancel_on_interrupt: bool,
    image: str | None,
    policy: str | None,
    volume: str | None,
    on: str,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
    output: str,
    **options: Any,
) -> None:
    """Submits benchmark tasks at the arrival times of a trace, and records when each started and ended."""
    check_on(on, ONLY_CLUSTER, ())
    planned = plan_of(**options)
    if dry_run:
        emit(planned, output, PLAN_COLUMNS)
        return
    if on == KUBERNETES:
        from cotenant.cli.cluster_batch import batch_options, on_cluster

        common = batch_options(image, policy, compute, volume)
        opened: Opened = on_cluster(Where(namespace, kubeconfig, context), common)
    else:
        opened = _on_machine(compute)
    with opened as (submitter, sleep), Ledger(csv_file) as ledger:
        emit(_run(planned, submitter, sleep, ledger, cancel_on_interrupt), output, RESULT_COLUMNS)


class Submitting(Protocol):
    """Where planned jobs run."""

    @property
    def views(self) -> Mapping[str, JobView]: ...
    @property
    def listing(self) -> str: ...
    def submit(self, planned: PlannedJob) -> Life: ...
    def poll(self, jobs: Sequence[str]) -> Mapping[str, Life]: ...
    def cancel(self) -> None: ...


Opened = AbstractContextManager[tuple[Submitting, Callable[[float], None]]]
"""a submitter, and the function with which its caller waits"""


@contextmanager
def _on_machine(compute: bool) -> Iterator[tuple[Submitting, Callable[[float], None]]]:
    if find_spec("jax") is None:  # every job would fail
        raise ModuleNotFoundError("jax", name="jax")
    yield Submitter(Client(), compute), time.sleep


def _run(
    planned: Sequence[PlannedJob],
    submitter: Submitting,
    sleep: Callable[[float], None],
    ledger: Ledger,
    cancel: bool,
) -> list[dict[str, object]]:
    """Runs the plan; a row for each job that has ended."""
    ended: list[dict[str, object]] = []
    with _progress(len(planned)) as progress, _interruptible(submitter, cancel):
        for changes in drive(planned, submitter.submit, submitter.poll, sleep=sleep):
            for change in changes:
                ledger.add(change)
                if change.event == "finished":
                    ended.append(result_row(change))
            progress(len(submitter.views), len(ended))
    return ended


class Submitter:
    """Submits planned jobs to the daemon and tracks their states."""

    listing = "cotenant jobs"

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

    def cancel(self) -> None:
        """Cancels the jobs that have not ended."""
        cancel_all(self._client, set(self.views))


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
def _interruptible(submitter: Submitting, cancel: bool) -> Iterator[None]:
    """On Ctrl-C, says what happens to the submitted jobs: they continue, or are cancelled."""
    try:
        yield
    except KeyboardInterrupt:
        submitted = counted(len(submitter.views), "job")
        if cancel:
            submitter.cancel()
            click.echo(f"cotenant: submitted {submitted}; those that had not ended are cancelled", err=True)
        else:
            lists = f"`{submitter.listing}` lists"
            what = f"continues; {lists} it" if submitted == "1 job" else f"continue; {lists} them"
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
