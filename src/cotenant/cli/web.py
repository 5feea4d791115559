# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant web`: a link to the pages of the daemon."""

import click

from cotenant.cli.options import output_option
from cotenant.cli.output import render
from cotenant.client.client import Client
from cotenant.wire.machine import WebLink

EPILOG = """\b
Examples:
  cotenant up --detach --web 8600
  cotenant web
  cotenant web --actions
"""


@click.command(epilog=EPILOG)
@click.option(
    "--actions",
    is_flag=True,
    help="Also allow to cancel own jobs, and administrators to cordon GPUs. Default: read-only.",
)
@output_option
def web(actions: bool, output: str) -> None:
    """Prints a link to the pages of the daemon. It signs in one browser as you, within 10 minutes."""
    link = Client().post(f"/v1/web?act={int(actions)}", WebLink)
    render(link, output, lambda wide: click.echo(link.url))
