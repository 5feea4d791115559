# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant prune`: removes the folders of jobs that ended long ago, or that use too much space."""

import click
import msgspec

from cotenant.cli.options import age_option, output_option, size_option
from cotenant.cli.output import render, table
from cotenant.client.client import Client
from cotenant.core.units import MIB_BYTES
from cotenant.errors import InputError
from cotenant.wire.pruning import Pruned, PruneRequest
from cotenant.wire.text import ago, counted

COLUMNS = (
    ("ID", lambda job: job.id, False),
    ("ENDED", lambda job: f"{ago(job.ended)} ago", False),
    ("SIZE", lambda job: mib(job.bytes), False),
)
EPILOG = """\b
Examples:
  cotenant prune --older-than 7d --dry-run
  cotenant prune --keep-size 5GiB
"""


@click.command(epilog=EPILOG)
@age_option("--older-than", "Remove the folders of jobs that ended longer ago than this.")
@size_option("--keep-size", "Then remove the oldest until the rest uses at most this much.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@output_option
def prune(older_than: float | None, keep_size: int | None, dry_run: bool, output: str) -> None:
    """Removes logs and other files of jobs that have ended. The jobs stay in the list, and queued, starting and running
    jobs keep everything."""
    if older_than is None and keep_size is None:
        raise InputError("prune: give --older-than, --keep-size or both")
    request = PruneRequest(older_than_s=older_than, keep_bytes=keep_size, dry_run=dry_run)
    done = Client(timeout_s=600).post("/v1/prune", Pruned, msgspec.json.encode(request))
    render(done, output, lambda wide: click.echo(text_of(done, wide)))


def text_of(done: Pruned, wide: bool) -> str:
    """How much was freed and is left; with `wide` also each job."""
    freed, count = sum(job.bytes for job in done.jobs), counted(len(done.jobs), "job")
    kept = f"{mib(done.kept_bytes)} {'would be' if done.dry_run else 'is'} left"
    if done.dry_run:
        total = f"would remove the files of {count} and free {mib(freed)}; {kept}"
    else:
        total = f"removed the files of {count} and freed {mib(freed)}; {kept}"
    return f"{table(done.jobs, COLUMNS, wide)}\n{total}" if wide and done.jobs else total


def mib(size: int) -> str:
    return f"{size / MIB_BYTES:.1f} MiB"
