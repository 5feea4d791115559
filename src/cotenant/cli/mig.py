# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The commands `mig plan` and `mig apply`: which other MIG layouts would serve what waits, who would have to leave, and
how that is carried out."""

import click
import msgspec

from cotenant.cli.options import output_option
from cotenant.cli.output import note, render, table
from cotenant.client.client import Client
from cotenant.wire.mig import MigApplied, MigPlan, MigPlanRequest

COLUMNS = (
    ("GPU", lambda one: one.gpu, False),
    ("TYPE", lambda one: one.type, True),
    ("NOW", lambda one: " ".join(one.now) or "not partitioned", False),
    ("THEN", lambda one: " ".join(one.then) or "-", False),
    ("SERVES", lambda one: ", ".join(one.serves) or "-", False),
    ("MUST LEAVE", lambda one: ", ".join(one.leave) or "-", False),
)
EPILOG = """\b
Examples:
  cotenant mig plan
  cotenant mig plan --want 3g.20gb --want 8GiB --evict
  cotenant mig plan -o json
"""


APPLY_EPILOG = """\b
Examples:
  cotenant mig apply --want 3g.20gb
  cotenant mig apply --want 3g.20gb --evict --yes -o json
"""
CHANGE_S = 600.0
"""within which jobs leave and layouts are changed"""

want_option = click.option(
    "--want",
    multiple=True,
    metavar="PROFILE|MEMORY",
    help="One more request, after the jobs that wait: a profile (1g.10gb) or an amount (8GiB). Repeatable.",
)
evict_option = click.option("--evict", is_flag=True, help="Allow layouts for which running jobs would have to leave.")


@click.group(epilog="\b\nExample:\n  cotenant mig plan --want 1g.10gb\n")
def mig() -> None:
    """Plans MIG layouts, and carries plans out."""


@mig.command(epilog=EPILOG)
@want_option
@evict_option
@output_option
def plan(want: tuple[str, ...], evict: bool, output: str) -> None:
    """Prints which MIG layouts would serve the jobs that wait. It changes nothing."""
    found = _plan(want, evict)
    render(found, output, lambda wide: _draw(found, wide))


@mig.command(epilog=APPLY_EPILOG)
@want_option
@evict_option
@click.option("--yes", is_flag=True, help="Carry the plan out without asking.")
@output_option
def apply(want: tuple[str, ...], evict: bool, yes: bool, output: str) -> None:
    """Carries out what `cotenant mig plan` with the same options prints: all of it, or nothing.

    Jobs that must leave are stopped and queued again. Instances that other jobs or unknown processes use stay.
    """
    found = _plan(want, evict)
    if not found.changes:
        render(found, output, lambda wide: _draw(found, wide))
        return
    if not yes:
        click.echo(table(found.changes, COLUMNS, False), err=True)
        _warn(found)
        click.confirm("Change these layouts now?", abort=True, err=True)
    done = Client(timeout_s=CHANGE_S).post("/v1/mig/apply", MigApplied, msgspec.json.encode(found))
    render(done, output, lambda wide: _draw_applied(done, wide))


def _plan(want: tuple[str, ...], evict: bool) -> MigPlan:
    return Client().post("/v1/mig/plan", MigPlan, msgspec.json.encode(MigPlanRequest(want=want, evict=evict)))


def _draw_applied(done: MigApplied, wide: bool) -> None:
    click.echo(table(done.changes, COLUMNS, wide))
    for job in done.left:
        click.echo(f"{job}: left, and is queued again")


def _draw(found: MigPlan, wide: bool) -> None:
    click.echo(table(found.changes, COLUMNS, wide) if found.changes else "no other layout is needed or possible")
    for name, gpu in found.served.items():
        click.echo(f"{name}: a free instance of {gpu} serves it as it is")
    for name, why in found.unserved.items():
        click.echo(f"{name}: {why}")
    _warn(found)


def _warn(found: MigPlan) -> None:
    for job, why in found.stranded.items():
        note(f"{job}: {why}")
