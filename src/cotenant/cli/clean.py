# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant clean`: removes ended jobs from the list, with their output and other files."""

import sys

import click
import msgspec

from cotenant.cli.options import age_option, job_argument, output_option, state_option
from cotenant.cli.output import print_error, render, table
from cotenant.cli.prune import mib
from cotenant.client.client import Client
from cotenant.errors import InputError
from cotenant.wire.cleaning import MOST_NAMED, Cleaned, CleanRequest
from cotenant.wire.job_views import ENDED
from cotenant.wire.text import ago, counted

COLUMNS = (
    ("ID", lambda job: job.id, False),
    ("USER", lambda job: job.user, False),
    ("JOBS", lambda job: str(job.jobs), False),
    ("ENDED", lambda job: f"{ago(job.ended)} ago", False),
    ("SIZE", lambda job: mib(job.bytes), False),
)
EPILOG = """\b
Examples:
  cotenant clean --older-than 7d --dry-run -o wide
  cotenant clean --state done,cancelled
  cotenant clean j-000001 sweep
  cotenant clean --all
"""


@click.command(epilog=EPILOG)
@job_argument(*ENDED, required=False, several=True)
@age_option("--older-than", "Remove jobs that ended longer ago than this.")
@state_option("Remove jobs that ended in these ways.")
@click.option("--all", "everything", is_flag=True, help="Remove all jobs that have ended.")
@click.option("--user", metavar="NAME", help="Remove jobs of this user; for administrators. Default: your jobs.")
@click.option("--all-users", is_flag=True, help="Remove jobs of all users; for administrators.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@output_option
def clean(
    job: tuple[str, ...],
    older_than: float | None,
    state: str,
    everything: bool,
    user: str | None,
    all_users: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Removes ended jobs of yours for good: from the list, with their output and other files. Options are combined.

    Jobs that wait or run are never removed. An array is removed as a whole, if all of its elements are selected. A job
    stays if one of yours that has not ended was submitted to run after it; if an administrator removes jobs, one of any
    user counts.
    """
    conditions = older_than is not None or state != "" or everything
    if conditions == bool(job) or (job and (user is not None or all_users)):
        raise InputError("clean: name the jobs, or select them by --older-than, --state or --all")
    if user is not None and all_users:
        raise InputError("clean: give --user or --all-users")
    if len(job) > MOST_NAMED:
        raise InputError(f"clean: name at most {MOST_NAMED} jobs, or select them by --older-than or --state")
    request = CleanRequest(
        jobs=job, older_than_s=older_than, state=state, user=user, all_users=all_users, dry_run=dry_run
    )
    done = Client(timeout_s=600).post("/v1/clean", Cleaned, msgspec.json.encode(request))
    render(done, output, lambda wide: click.echo(text_of(done, wide)))
    if job and done.kept:
        for one in done.kept:
            print_error(f"{one.id} is still there: {one.why}")
        sys.exit(InputError.exit_code)


def text_of(done: Cleaned, wide: bool) -> str:
    """How many jobs were removed and kept; with `wide` also each of them."""
    count = counted(sum(one.jobs for one in done.jobs), "job")
    freed = mib(sum(one.bytes for one in done.jobs))
    lines = [f"would remove {count} and free {freed}" if done.dry_run else f"removed {count} and freed {freed}"]
    if done.kept:
        lines.append(f"{counted(len(done.kept), 'other')} stayed; -o wide says why" if not wide else "stayed:")
    if wide:
        lines = [*([table(done.jobs, COLUMNS, wide)] if done.jobs else []), *lines]
        lines += [f"  {one.id}: {one.why}" for one in done.kept]
    return "\n".join(lines)
