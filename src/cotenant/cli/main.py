# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The `cotenant` command."""

import os
import signal
import sys
from importlib import import_module
from io import TextIOWrapper

import click

from cotenant import __version__
from cotenant.errors import CotenantError

FAILED = 1
INTERRUPTED = 130
BROKEN_PIPE = 141


COMMANDS = {
    "up": ("daemon", "Starts the daemon of this machine."),
    "down": ("daemon", "Stops the daemon; running jobs go on."),
    "status": ("daemon", "The daemon: devices, policy, counts."),
    "submit": ("jobs", "Queues a command to run on GPUs."),
    "jobs": ("jobs", "Lists jobs."),
    "show": ("jobs", "Everything known of a job."),
    "logs": ("jobs", "Prints what a job wrote."),
    "cancel": ("jobs", "Stops a job, or takes it out of the queue."),
    "why": ("why", "Why a job waits, or was put where it is, in numbers."),
    "gpus": ("gpus", "Lists the GPUs and who is on them."),
    "top": ("gpus", "A live table of GPUs and jobs."),
    "cordon": ("gpus", "Places no new jobs on a GPU."),
    "uncordon": ("gpus", "Takes new jobs on a GPU again."),
    "drain": ("gpus", "Cordons a GPU and waits until it is empty."),
    "simulate": ("simulate", "Runs scheduling policies on a trace of jobs."),
}
"""name -> (module of `cotenant.cli`, what it does): a command's module is imported when the command is used"""


class _Commands(click.Group):
    """Commands that are imported when they are used, so that the quick ones stay quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"cotenant.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cotenant")
def cotenant() -> None:
    """Many deep-learning jobs on shared GPUs, without hurting each other."""


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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # already ending; once more would only be an ugly end
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
