# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The `cotenant` command."""

import os
import signal
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from cotenant import __version__
from cotenant.errors import CotenantError, InputError
from cotenant.wire.text import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FAILED = 1
INTERRUPTED = 130
BROKEN_PIPE = 141


SECTIONS = {
    "Run jobs on this machine": {
        "submit": ("jobs", "Queues a command to run on GPUs."),
        "jobs": ("jobs", "Lists jobs."),
        "show": ("jobs", "Everything known of a job."),
        "logs": ("jobs", "Prints what a job wrote."),
        "why": ("why", "Why a job waits, or was put where it is, in numbers."),
        "cancel": ("jobs", "Stops a job, or takes it out of the queue."),
        "retry": ("jobs", "Runs a job that has ended again."),
        "profile": ("profile", "Measures what a command takes alone."),
        "profiles": ("profile", "Lists, shows, exports, imports and removes profiles."),
        "generate": ("generate", "Submits benchmark tasks at the times of a trace."),
    },
    "Limit a command without the daemon": {
        "run": ("run", "Runs a command on a slice of GPUs: memory, compute, priority."),
        "slices": ("slices", "Lists the slices in use: limits, use, faults."),
    },
    "Look after its GPUs": {
        "top": ("top", "A live table of GPUs and the jobs on them."),
        "gpus": ("gpus", "Lists the GPUs and who is on them."),
        "cordon": ("gpus", "Places no new jobs on a GPU."),
        "uncordon": ("gpus", "Takes new jobs on a GPU again."),
        "drain": ("gpus", "Cordons a GPU and waits until it is empty."),
    },
    "Start and stop": {
        "up": ("daemon", "Starts the daemon of this machine."),
        "down": ("daemon", "Stops the daemon; running jobs go on."),
        "status": ("daemon", "The daemon: devices, policy, counts."),
        "demo": ("demo", "Shows what sharing brings on this machine, in minutes."),
        "completion": ("completion", "Prints what makes your shell complete commands and names."),
    },
    "Kubernetes": {
        "kube": ("kube", "Shows the GPUs of a cluster, runs its scheduler and agents, prints what installs them."),
    },
    "Compare policies without a GPU": {
        "simulate": ("simulate", "Runs scheduling policies on a trace of jobs."),
        "predictor": ("predictor", "Trains and evaluates the predictor of interference."),
        "experiment": ("experiment", "Runs the studies behind our published figures."),
    },
}
"""what people do -> command -> (module of `cotenant.cli`, what it does); a module is imported when it is needed"""

COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

EPILOG = """\b
Example:
  cotenant up --detach
  cotenant submit --memory 4GiB --compute 30% -- python train.py
  cotenant top
`cotenant COMMAND --help` explains a command, with an example.
"""


class _Commands(click.Group):
    """Commands that are imported when they are used, so that the quick ones stay quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"cotenant.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else "cotenant --help lists them"
            raise InputError(f"no command is named {args[0][:40]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), text) for name, (_, text) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        named = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(
    cls=_Commands, epilog=EPILOG, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="cotenant")
@click.pass_context
def cotenant(context: click.Context) -> None:
    """Many deep-learning jobs on shared GPUs, without hurting each other."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(*first: str) -> None:
    """Runs the command, whose first words may stand for the name of the program; what a user can act on is one line on
    standard error and an exit code."""
    _open_streams()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # our matrices are small, and the cores are for the jobs
    try:
        code = cotenant.main([*first, *sys.argv[1:]], prog_name="cotenant", standalone_mode=False)
    except CotenantError as error:
        _say(str(error))
        code = error.exit_code
    except click.ClickException as error:
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else "cotenant"
        _say(f"{error.format_message()} See {path} --help")
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # already ending; once more would only be an ugly end
        _say("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        code = BROKEN_PIPE
    except OSError as error:
        _drop_output()
        _say(str(error))
        code = FAILED
    sys.exit(code or 0)


def _say(text: str) -> None:
    click.echo(f"cotenant: {printable(text)}", err=True)


def _open_streams() -> None:
    """Standard streams that take whatever we say: none may be missing, and no sign may be too much for one."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Our output cannot be written; keep the interpreter from saying so again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
