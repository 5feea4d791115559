# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant attach`, and the terminal of `cotenant submit --interactive`."""

import os
import sys

import click
import msgspec

from cotenant.cli.options import job_argument
from cotenant.cli.output import write_output
from cotenant.client.client import Client, Job
from cotenant.client.endings import ending_of, exit_code
from cotenant.client.requests import own_size
from cotenant.client.terminal import refuse_remote, use_terminal
from cotenant.errors import CotenantError, InputError
from cotenant.wire.job_requests import JobRequest, TerminalSize
from cotenant.wire.job_views import ENDED
from cotenant.wire.text import printable

EPILOG = """\b
Examples:
  cotenant attach j-000001
  cotenant attach --read-only notebook
"""
SHOWN_LINES = 20
"""of the output of a job that is not interactive"""


class Waiting:
    """One line on stderr that says why a job waits; on a terminal it is replaced, else a new one follows."""

    def __init__(self) -> None:
        self._shown = ""

    def note(self, text: str) -> None:
        if text == self._shown:
            return
        text, before, self._shown = printable(text), self._shown, text
        if not sys.stderr.isatty():
            if text:
                click.echo(text, err=True)
            return
        width = max(os.get_terminal_size(2).columns - 1, 20)
        click.echo(("\r\x1b[K" if before else "") + text[:width], err=True, nl=False)


def check_terminal(client: Client) -> None:
    """InputError if this process has no terminal, or the daemon cannot offer one."""
    refuse_remote(client)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("--interactive needs a terminal as standard input and output; leave it out in scripts")


def run_interactively(client: Client, request: JobRequest) -> int:
    """Submits a job with a terminal, waits until it runs and connects with it; the exit code. Ctrl-C while it waits
    cancels it."""
    check_terminal(client)
    request = msgspec.structs.replace(request, terminal=TerminalSize(**own_size()))
    job, waiting = client.submit_request(request), Waiting()
    waiting.note(f"{job.id} is submitted")
    try:
        return _attach(job, waiting, read_only=False)
    except KeyboardInterrupt:
        waiting.note("")
        job.cancel()
        click.echo(f"{job.id} is cancelled", err=True)
        raise


def _attach(job: Job, waiting: Waiting, *, read_only: bool) -> int:
    view = use_terminal(job.client, job.id, read_only=read_only, note=waiting.note)
    if view is None:
        click.echo(f"\ndetached; {job.id} continues: `cotenant attach {job.id}` returns to it", err=True)
        return 0
    click.echo(printable(ending_of(view)), err=True)
    return exit_code(view)


@click.command(epilog=EPILOG)
@click.option("--read-only", is_flag=True, help="Only watch: keys are not passed on, and Ctrl-C leaves.")
@job_argument("queued", "running")
def attach(job: str, read_only: bool) -> None:
    """Connects this terminal with that of an interactive job, and exits as the job does; or shows the output of
    another job until it has ended.

    Ctrl-] d leaves the terminal; the job continues. Ctrl-C and all other keys go to the job. Only the owner of a job
    can attach, from the machine on which it runs.
    """
    client = Client()
    found, waiting = client.job(job), Waiting()
    view = found.view
    if view.state in ENDED:
        raise CotenantError(f"{printable(ending_of(view))}; `cotenant logs {view.id}` shows its output")
    try:
        if view.request is not None and view.request.terminal is not None:
            if not read_only and not sys.stdin.isatty():
                raise InputError("attach needs a terminal as standard input; use --read-only in scripts")
            sys.exit(_attach(found, waiting, read_only=read_only))
        click.echo(f"{view.id} is not interactive: this is its output; Ctrl-C leaves it, and it continues", err=True)
        for chunk in found.log(follow=True, tail=SHOWN_LINES):
            write_output(chunk)
        sys.exit(exit_code(client.wait_for(view.id)))
    except KeyboardInterrupt:
        waiting.note("")
        click.echo(f"detached; {view.id} continues", err=True)
        sys.exit(0)
