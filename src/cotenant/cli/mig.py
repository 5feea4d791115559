# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The command `mig plan`: which other MIG layouts would serve what waits, and who would have to leave."""

import click
import msgspec

from cotenant.cli.client import Client
from cotenant.cli.options import output_option
from cotenant.cli.output import render, table
from cotenant.wire.local import MigPlan, MigPlanRequest

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


@click.group(epilog="\b\nExample:\n  cotenant mig plan --want 1g.10gb\n")
def mig() -> None:
    """Plans MIG layouts."""


@mig.command(epilog=EPILOG)
@click.option(
    "--want",
    multiple=True,
    metavar="PROFILE|MEMORY",
    help="One more request, after the jobs that wait: a profile (1g.10gb) or an amount (8GiB). Repeatable.",
)
@click.option("--evict", is_flag=True, help="Allow layouts for which running jobs would have to leave.")
@output_option
def plan(want: tuple[str, ...], evict: bool, output: str) -> None:
    """Prints which MIG layouts would serve the jobs that wait. It changes nothing: use nvidia-smi to carry it out."""
    body = msgspec.json.encode(MigPlanRequest(want=want, evict=evict))
    found = Client().post("/v1/mig/plan", MigPlan, body)
    render(found, output, lambda wide: _draw(found, wide))


def _draw(found: MigPlan, wide: bool) -> None:
    click.echo(table(found.changes, COLUMNS, wide) if found.changes else "no other layout is needed or possible")
    for name, gpu in found.served.items():
        click.echo(f"{name}: a free instance of {gpu} serves it as it is")
    for name, why in found.unserved.items():
        click.echo(f"{name}: {why}")
