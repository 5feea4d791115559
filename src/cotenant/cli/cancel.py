# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant cancel`: stops jobs that run, and removes jobs from the queue."""

import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from cotenant.cli import cluster_jobs
from cotenant.cli.cluster_jobs import KUBERNETES, Where, check_on, on_options
from cotenant.cli.options import job_argument, output_option, state_option
from cotenant.cli.output import print_error, render
from cotenant.client.client import Client
from cotenant.client.endings import ending_of
from cotenant.client.http import at
from cotenant.client.problems import NoDaemonError
from cotenant.errors import CotenantError, InputError
from cotenant.wire.job_views import ENDED, WAITING_OR_ACTIVE, JobView, decode_states
from cotenant.wire.text import printable

CANCEL_MARGIN_S = 5.0
"""beyond its grace period, that `cancel` waits for the end of a job"""
MOST_CANCELLED = 20_000
EPILOG = """\b
Examples:
  cotenant cancel j-000001
  cotenant cancel j-000001 j-000002 nap
  cotenant cancel --state queued
  cotenant cancel --all --no-wait
  cotenant cancel --array j-000017
"""


class Cancelled(NamedTuple):
    """A job that was cancelled, its grace period, and until when `cancel` waits for its end."""

    view: JobView
    grace_s: float
    until: float


@click.command(epilog=EPILOG)
@click.option("--no-wait", is_flag=True, help="Return at once. Default: when the jobs have ended.")
@click.option("--all", "everything", is_flag=True, help="Cancel every job of yours that has not ended, instead of JOB.")
@click.option("--array", is_flag=True, help="Cancel the whole array that each JOB is an element of.")
@state_option("Cancel every job of yours in these states, instead of JOB.")
@on_options
@job_argument(*WAITING_OR_ACTIVE, required=False, several=True)
@output_option
def cancel(
    no_wait: bool, everything: bool, array: bool, state: str, job: tuple[str, ...], output: str, on: str, **where: Any
) -> None:
    """Stops running jobs, or removes queued jobs from the queue, and says what became of each.

    If a job cannot be cancelled, the others still are, and the exit code is that of the first error.
    """
    check_on(on, (), ("array",))
    client = Client() if on != KUBERNETES else None
    selected = everything or state != ""
    if selected == bool(job):
        raise InputError("cancel: name the jobs, or select them by --all or --state")
    if selected:
        job = _selected(client, Where(**where), state)
    if array and client is not None:
        views = (client.get(f"/v1/jobs/{at(name)}", JobView) for name in job)
        job = tuple(dict.fromkeys(view.array or view.id for view in views))
    cancelled, code = list[Cancelled](), 0
    try:
        for name in dict.fromkeys(job):
            try:
                one = _cancel(client, name) if client else _cancel_in_cluster(Where(**where), name, not no_wait)
                cancelled.append(one)
            except NoDaemonError:
                raise
            except CotenantError as error:
                print_error(str(error))
                code = code or error.exit_code
        if not no_wait and client is not None:
            for number, one in enumerate(cancelled):
                cancelled[number] = _wait_for_end(client, one)
    except (CotenantError, KeyboardInterrupt):  # the jobs are cancelled all the same: say what is known of them
        if cancelled:
            _print_cancelled(cancelled, selected or len(job) > 1, output)
        raise
    if cancelled or selected or len(job) > 1:
        _print_cancelled(cancelled, selected or len(job) > 1, output)
    sys.exit(code)


def _selected(client: Client | None, where: Where, state: str) -> tuple[str, ...]:
    """The jobs in these states that have not ended, or all of them; the newest first, so that none starts in a slot
    that another one has just left."""
    chosen = tuple(word for word in decode_states(state) or WAITING_OR_ACTIVE if word in WAITING_OR_ACTIVE)
    if not chosen:
        raise InputError(f"--state {state}: expected some of {', '.join(WAITING_OR_ACTIVE)}; other jobs have ended")
    if client is None:
        found = cluster_jobs.jobs_of(where, chosen, MOST_CANCELLED)
    else:
        found = client.get(f"/v1/jobs?state={','.join(chosen)}&limit={MOST_CANCELLED}&mine=1", list[JobView])
    return tuple(one.id for one in reversed(found))


def _print_cancelled(cancelled: Sequence[Cancelled], several: bool, output: str) -> None:
    views = [one.view for one in cancelled]
    text = "".join(f"{printable(cancelled_text(one.view, one.grace_s))}\n" for one in cancelled)
    render(views if several else views[0], output, lambda wide: click.echo(text, nl=False))


def _cancel(client: Client, job: str) -> Cancelled:
    view = client.post(f"/v1/jobs/{at(job)}/cancel", JobView)
    grace = 0.0 if view.request is None else view.request.grace_s
    return Cancelled(view, grace, time.monotonic() + grace + CANCEL_MARGIN_S)


def _cancel_in_cluster(where: Where, job: str, wait: bool) -> Cancelled:
    return Cancelled(cluster_jobs.cancel(where, job, wait=wait), 0.0, time.monotonic())


def _wait_for_end(client: Client, one: Cancelled) -> Cancelled:
    if one.view.state in ENDED:
        return one
    return one._replace(view=client.wait_for(one.view.id, one.until - time.monotonic()))


def cancelled_text(job: JobView, grace_s: float) -> str:
    """What became of a job that was cancelled."""
    if job.state not in ENDED:
        return f"{job.id} was sent SIGTERM and has not ended yet; SIGKILL follows after {grace_s:g} s"
    if job.state != "cancelled":
        return f"{ending_of(job)}; it was not cancelled"
    return ending_of(job) if job.started is not None else f"{job.id} was removed from the queue; it had not started"
