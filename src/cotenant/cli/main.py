# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The `cotenant` command."""

import os
import sys

import click

from cotenant import __version__
from cotenant.cli.simulate import simulate
from cotenant.cli.why import why
from cotenant.errors import CotenantError

INTERRUPTED = 130
BROKEN_PIPE = 141


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cotenant")
def cotenant() -> None:
    """Many deep-learning jobs on shared GPUs, without hurting each other."""


cotenant.add_command(simulate)
cotenant.add_command(why)


def main() -> None:
    """Runs the command; what a user can act on is one line on standard error and an exit code."""
    try:
        code = cotenant.main(standalone_mode=False)
    except CotenantError as error:
        click.echo(f"cotenant: {error}", err=True)
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("cotenant: interrupted", err=True)
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; keep the interpreter from saying so again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    sys.exit(code or 0)
