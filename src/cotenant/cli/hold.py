# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant hold` and `release`: queued jobs that do not start; `pause` and `resume`: running jobs whose processes are
stopped."""

import sys
from collections.abc import Callable

import click

from cotenant.cli import cluster_jobs
from cotenant.cli.cluster_jobs import KUBERNETES, Where, check_on, on_options
from cotenant.cli.jobs import COLUMNS
from cotenant.cli.options import job_argument, output_option
from cotenant.cli.output import emit, print_error
from cotenant.client.client import Client
from cotenant.client.http import at
from cotenant.client.problems import NoDaemonError
from cotenant.errors import CotenantError
from cotenant.wire.job_views import JobView

HOLD_EPILOG = """\b
Examples:
  cotenant hold j-000001
  cotenant hold j-000001 nap
  cotenant hold --on kubernetes -n team train-7 pod/notebook-0
"""
RELEASE_EPILOG = HOLD_EPILOG.replace("hold", "release")
PAUSE_EPILOG = """\b
Examples:
  cotenant pause j-000001
  cotenant pause j-000001 nap
"""
RESUME_EPILOG = PAUSE_EPILOG.replace("pause", "resume")


@click.command(epilog=HOLD_EPILOG)
@job_argument("queued", several=True)
@on_options
@output_option
def hold(job: tuple[str, ...], on: str, output: str, **where: object) -> None:
    """Keeps queued jobs from starting until they are released, also after a restart of the daemon or the scheduler.

    A held job keeps its position in the queue. A job that runs cannot be held. In a cluster, JOB is a job of `cotenant
    submit` or pod/NAME, and must wait in cotenant's queue.
    """
    _each(job, "hold", on, where, output)


@click.command(epilog=RELEASE_EPILOG)
@job_argument("queued", several=True)
@on_options
@output_option
def release(job: tuple[str, ...], on: str, output: str, **where: object) -> None:
    """Lets held jobs start again."""
    _each(job, "release", on, where, output)


@click.command(epilog=PAUSE_EPILOG)
@job_argument("running", several=True)
@output_option
def pause(job: tuple[str, ...], output: str) -> None:
    """Stops all processes of running jobs (SIGSTOP) until they are resumed, also over a restart of the daemon.

    A paused job keeps its GPUs and their memory, and counts for limits and shares; the clock of --time goes on. So it
    frees compute and processors only. `cotenant hold` is for jobs that wait. A paused job can be cancelled.
    """
    _each(job, "pause", "machine", {}, output)


@click.command(epilog=RESUME_EPILOG)
@job_argument("running", several=True)
@output_option
def resume(job: tuple[str, ...], output: str) -> None:
    """Lets paused jobs go on."""
    _each(job, "resume", "machine", {}, output)


def _each(jobs: tuple[str, ...], verb: str, on: str, where: dict[str, object], output: str) -> None:
    """If it fails for a job, it is still done for the others; the exit code is that of the first error."""
    check_on(on, (), ())
    change = _in_cluster(verb, Where(**where)) if on == KUBERNETES else _on_machine(verb)  # type: ignore[arg-type]
    done, code = list[JobView](), 0
    for name in dict.fromkeys(jobs):
        try:
            done.append(change(name))
        except NoDaemonError:
            raise
        except CotenantError as error:
            print_error(str(error))
            code = code or error.exit_code
    if done:
        emit(done if len(jobs) > 1 else done[0], output, COLUMNS)
    sys.exit(code)


def _on_machine(verb: str) -> Callable[[str], JobView]:
    client = Client()
    return lambda name: client.post(f"/v1/jobs/{at(name)}/{verb}", JobView)


def _in_cluster(verb: str, where: Where) -> Callable[[str], JobView]:
    change = cluster_jobs.hold if verb == "hold" else cluster_jobs.release
    return lambda name: change(where, name)
