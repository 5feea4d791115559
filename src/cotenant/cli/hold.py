# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant hold` and `cotenant release`: queued jobs of this machine that do not start until they are released."""

import sys

import click

from cotenant.cli.client import Client, NoDaemonError, at
from cotenant.cli.jobs import COLUMNS
from cotenant.cli.options import job_argument, output_option
from cotenant.cli.output import emit, print_error
from cotenant.errors import CotenantError
from cotenant.wire.local import JobView


@click.command(epilog="\b\nExamples:\n  cotenant hold j-000001\n  cotenant hold j-000001 nap\n")
@job_argument("queued", several=True)
@output_option
def hold(job: tuple[str, ...], output: str) -> None:
    """Keeps queued jobs from starting until they are released, also after a restart of the daemon.

    A held job keeps its position in the queue. A job that runs cannot be held.
    """
    _each(job, "hold", output)


@click.command(epilog="\b\nExamples:\n  cotenant release j-000001\n  cotenant release j-000001 nap\n")
@job_argument("queued", several=True)
@output_option
def release(job: tuple[str, ...], output: str) -> None:
    """Lets held jobs start again."""
    _each(job, "release", output)


def _each(jobs: tuple[str, ...], verb: str, output: str) -> None:
    """If it fails for a job, it is still done for the others; the exit code is that of the first error."""
    client, done, code = Client(), list[JobView](), 0
    for name in dict.fromkeys(jobs):
        try:
            done.append(client.post(f"/v1/jobs/{at(name)}/{verb}", JobView))
        except NoDaemonError:
            raise
        except CotenantError as error:
            print_error(str(error))
            code = code or error.exit_code
    if done:
        emit(done if len(jobs) > 1 else done[0], output, COLUMNS)
    sys.exit(code)
