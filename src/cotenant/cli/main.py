# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The `cotenant` command."""

import os
import sys
from io import TextIOWrapper

import click

from cotenant import __version__
from cotenant.cli.simulate import simulate
from cotenant.cli.why import why
from cotenant.errors import CotenantError

FAILED = 1
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
    _open_streams()
    try:
        code = cotenant.main(prog_name="cotenant", standalone_mode=False)
    except CotenantError as error:
        click.echo(f"cotenant: {_one_line(str(error))}", err=True)
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("cotenant: interrupted", err=True)
        code = INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        code = BROKEN_PIPE
    except OSError as error:
        _drop_output()
        click.echo(f"cotenant: {_one_line(str(error))}", err=True)
        code = FAILED
    sys.exit(code or 0)


def _open_streams() -> None:
    """Standard streams that take whatever we say: none may be missing, and no sign may be too much for one."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Our output cannot be written; keep the interpreter from saying so again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(text: str) -> str:
    """Names of files may hold anything, line breaks and what moves a cursor included."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
