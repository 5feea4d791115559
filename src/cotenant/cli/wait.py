# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant wait`: waits for the end of jobs, and passes on their exit code."""

import math
import sys
import time

import click

from cotenant.cli import cluster_jobs
from cotenant.cli.cluster_jobs import KUBERNETES, Where, check_on, on_options
from cotenant.cli.options import job_argument, output_option
from cotenant.cli.output import render
from cotenant.cli.request import length
from cotenant.client.client import Client
from cotenant.client.endings import ending_of, exit_code
from cotenant.wire.job_views import ENDED, JobView
from cotenant.wire.text import printable

EPILOG = """\b
Examples:
  cotenant wait j-000001
  cotenant wait --timeout 2h j-000001 train && echo all done
"""


@click.command(epilog=EPILOG)
@click.option("--timeout", metavar="2h", callback=length, help="Wait at most this long, then exit with code 124.")
@job_argument(several=True)
@on_options
@output_option
def wait(timeout: float | None, job: tuple[str, ...], output: str, on: str, **where: object) -> None:
    """Waits until jobs have ended, and says how each did.

    The exit code is that of the job. Of several jobs, it is that of the first, in the given order, that did not exit
    with 0. The jobs do not notice: Ctrl-C ends only the waiting.
    """
    check_on(on, (), ())
    client, until = Client(), math.inf if timeout is None else time.monotonic() + timeout
    found = list[JobView]()
    for name in dict.fromkeys(job):
        left = until - time.monotonic()
        if on == KUBERNETES:
            found.append(cluster_jobs.wait_for(Where(**where), name, left))  # type: ignore[arg-type]
        else:
            found.append(client.wait_for(name, left))
    text = "".join(f"{printable(_end_of(view))}\n" for view in found)
    render(found if len(job) > 1 else found[0], output, lambda wide: click.echo(text, nl=False))
    sys.exit(next(filter(None, map(exit_code, found)), 0))


def _end_of(job: JobView) -> str:
    return ending_of(job) if job.state in ENDED else f"{job.id} is {job.state}: it has not ended in time"
