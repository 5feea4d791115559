# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant change` and `cotenant rerun`: other values for a job, and a copy of a job."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from cotenant.cli.jobs import COLUMNS
from cotenant.cli.options import job_argument, output_option
from cotenant.cli.output import emit
from cotenant.cli.request import job_name, length
from cotenant.client.client import Client
from cotenant.client.http import at
from cotenant.errors import InputError
from cotenant.wire.job_requests import JobChange
from cotenant.wire.job_views import WAITING_OR_ACTIVE, JobView

F = TypeVar("F", bound=Callable[..., object])
CHANGE_EPILOG = """\b
Examples:
  cotenant change --priority 10 j-000001
  cotenant change --memory 6GiB --time 4h j-000001
"""
RERUN_EPILOG = """\b
Examples:
  cotenant rerun j-000001
  cotenant rerun --memory 8GiB --name again j-000001
"""


def change_options(command: F) -> F:
    """Adds the options with the new values."""
    for option in (
        click.option("--name", callback=job_name, help="Another name."),
        click.option("--time", metavar="2h", callback=length, help="Another time limit of one run."),
        click.option("--memory", metavar="4GiB|50%|2GiB:6GiB|auto", help="Other memory on each GPU."),
        click.option("--compute", metavar="30%|20%:60%", help="Another compute share of each GPU."),
        click.option("--priority", type=click.IntRange(-1000, 1000), help="Another queue priority."),
    ):
        command = option(command)
    return command


@click.command(epilog=CHANGE_EPILOG)
@change_options
@job_argument(*WAITING_OR_ACTIVE)
@output_option
def change(job: str, output: str, **values: Any) -> None:
    """Gives a job that waits or runs another priority, memory, compute share, time limit or name.

    A waiting job keeps its place among jobs of equal priority. A running job keeps its GPUs: it gets more only if that
    is free there, and its memory is not lowered below what it uses. Its time limit counts from the start of the run.
    """
    wanted = _change(**values)
    if wanted == JobChange():
        raise InputError("change: give --priority, --memory, --compute, --time or --name")
    emit(Client().post(f"/v1/jobs/{at(job)}/change", JobView, msgspec.json.encode(wanted)), output, COLUMNS)


@click.command(epilog=RERUN_EPILOG)
@change_options
@job_argument()
@output_option
def rerun(job: str, output: str, **values: Any) -> None:
    """Submits a copy of a job as a new job, with the same command, folder, environment and options, and prints its ID.

    The job itself stays as it is: it may still run. `cotenant retry` runs a job again under its own ID.
    """
    copy = Client().post(f"/v1/jobs/{at(job)}/rerun", JobView, msgspec.json.encode(_change(**values)))
    if output == "table":
        click.echo(copy.id)
    else:
        emit(copy, output, COLUMNS)


def _change(
    priority: int | None, memory: str | None, compute: str | None, time: float | None, name: str | None
) -> JobChange:
    return JobChange(priority=priority, memory=memory, compute=compute, time_s=time, name=name)
