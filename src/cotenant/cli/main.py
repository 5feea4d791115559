# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The `cotenant` command: its table of subcommands, and how errors become one line and an exit code."""

import os
import signal
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from cotenant import __version__
from cotenant.cli.output import print_error
from cotenant.errors import CotenantError, InputError
from cotenant.extras import missing_package

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FAILED = 1
INTERRUPTED = 130
BROKEN_PIPE = 141


SECTIONS = {
    "Run jobs on this machine": {
        "submit": ("jobs", "Queues a command to run on GPUs."),
        "jobs": ("jobs", "Lists jobs."),
        "show": ("jobs", "Shows all details of a job."),
        "logs": ("jobs", "Prints the output of a job."),
        "attach": ("attach", "Connects with the terminal of an interactive job."),
        "why": ("why", "Explains why a job waits, or why it was placed where it is."),
        "whatif": ("whatif", "Shows where a job would go, and who would slow down."),
        "decisions": ("decisions", "Downloads what was decided, to replay it."),
        "wait": ("wait", "Waits until jobs have ended, and exits as they did."),
        "cancel": ("cancel", "Stops running jobs, or removes queued ones."),
        "hold": ("hold", "Keeps queued jobs from starting."),
        "release": ("hold", "Lets held jobs start again."),
        "pause": ("hold", "Stops the processes of running jobs."),
        "resume": ("hold", "Lets paused jobs go on."),
        "change": ("change", "Changes the priority, limits or name of a job."),
        "rerun": ("change", "Submits a copy of a job as a new job."),
        "reserve": ("reserve", "Reserves GPUs for a while, lists and cancels reservations."),
        "clean": ("clean", "Removes ended jobs from the list, with their files."),
        "retry": ("jobs", "Runs a job again after it has ended."),
        "profile": ("profile", "Measures a command while it runs alone on a GPU."),
        "profiles": ("profile", "Lists, shows, exports, imports and removes profiles."),
        "generate": ("generate", "Submits benchmark tasks at the arrival times of a trace."),
        "workloads": ("workloads", "Prepares the data sets and manifests of the benchmark tasks."),
    },
    "Limit a command without the daemon": {
        "run": ("run", "Runs a command with limits on GPU memory and compute."),
        "slices": ("slices", "Lists the slices in use: limits, usage and faults."),
        "conformance": ("conformance", "Measures whether limits hold on this machine's GPU."),
        "ai-benchmark": ("ai_benchmark", "Measures ten cases: native, in a slice, with virtual memory."),
    },
    "Manage the GPUs of this machine": {
        "top": ("top", "Shows GPUs, running jobs and the queue, live."),
        "gpus": ("gpus", "Lists the GPUs and their tenants."),
        "cordon": ("gpus", "Stops placing new jobs on a GPU."),
        "uncordon": ("gpus", "Allows new jobs on a GPU again."),
        "accounts": ("accounts", "Lists users and groups, their use and their limits."),
        "mig": ("mig", "Plans MIG layouts for the jobs that wait."),
        "drain": ("gpus", "Cordons a GPU and waits until no job is left on it."),
    },
    "Start and stop": {
        "up": ("daemon", "Starts the daemon."),
        "down": ("daemon", "Stops the daemon; running jobs continue."),
        "web": ("web", "Prints a link to the pages of the daemon."),
        "service": ("service", "Installs the daemon as a service of systemd."),
        "token": ("token", "Makes and revokes tokens, by which users are known over TCP."),
        "status": ("daemon", "Shows the state of the daemon: GPUs, policy, number of jobs."),
        "mcp": ("mcp", "Serves tools about GPUs and jobs to an assistant."),
        "report": ("report", "Reports use, sharing, waits and what sharing saved."),
        "prune": ("prune", "Removes the files of jobs that have ended."),
        "doctor": ("doctor", "Finds what is wrong with this machine or a cluster."),
        "demo": ("demo", "Compares shared with exclusive GPUs, in a few minutes."),
        "completion": ("main", "Prints the completion script for your shell."),
    },
    "Kubernetes": {
        "serve": ("serve", "Serves models in a cluster, each on a part of a GPU."),
        "kube": ("kube", "Installs and inspects GPU sharing in a cluster."),
    },
    "Compare policies without a GPU": {
        "simulate": ("simulate", "Replays a trace of jobs under several policies."),
        "traces": ("traces", "Lists public traces, and adds them to the data folder."),
        "predictor": ("predictor", "Trains and evaluates the interference predictor."),
        "experiment": ("experiment", "Reruns the studies behind the published results."),
    },
}
"""section of the help -> command -> (module of `cotenant.cli`, summary); a module is imported only when its command
runs"""

COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

EPILOG = """\b
Example:
  cotenant up --detach
  cotenant submit --memory 4GiB --compute 30% -- python train.py
  cotenant top
`cotenant COMMAND --help` describes a command and gives examples.
"""

COMPLETION_EPILOG = """\b
Examples:
  eval "$(cotenant completion bash)"                                in ~/.bashrc
  eval "$(cotenant completion zsh)"                                 in ~/.zshrc
  cotenant completion fish > ~/.config/fish/completions/cotenant.fish
"""


class _OutputClosedError(Exception):
    """The reader of standard output has closed it."""


class _Commands(click.Group):
    """Imports a subcommand only when it is used, so that short commands start fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"cotenant.cli.{COMMANDS[cmd_name][0]}"), cmd_name.replace("-", "_"))
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click itself would exit with code 1
            raise _OutputClosedError from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else "`cotenant --help` lists the commands"
            raise InputError(f"unknown command {args[0][:40]!r}; {hint}")
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
    """Runs many deep-learning jobs on shared GPUs and limits how much they slow each other down."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@click.command(epilog=COMPLETION_EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints the script with which your shell completes commands, options, jobs and GPUs."""
    from click.shell_completion import shell_complete

    root = context.find_root().command
    context.exit(shell_complete(root, {}, "cotenant", "_COTENANT_COMPLETE", f"{shell}_source"))


def main(*prefix: str) -> None:
    """Runs the command line, with `prefix` put before the arguments; every error is one line on standard error and an
    exit code."""
    _prepare_streams()
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # one thread is fastest for small matrices, and leaves the cores to the jobs
    try:
        code = cotenant.main([*prefix, *sys.argv[1:]], prog_name="cotenant", standalone_mode=False)
    except CotenantError as error:
        print_error(str(error))
        code = error.exit_code
    except click.ClickException as error:
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else "cotenant"
        print_error(f"{error.format_message()} See {path} --help")
        code = error.exit_code
    except ModuleNotFoundError as error:
        message = missing_package(error)
        if message is None:
            raise
        print_error(message)
        code = FAILED
    except (KeyboardInterrupt, click.Abort):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C while we exit would print a traceback
        print_error("interrupted")
        code = INTERRUPTED
    except (_OutputClosedError, BrokenPipeError):
        _discard_output()
        code = BROKEN_PIPE
    except OSError as error:
        _discard_output()
        print_error(str(error))
        code = FAILED
    sys.exit(code or 0)


def _prepare_streams() -> None:
    """Replaces missing standard streams, and lets standard output replace characters that it cannot encode."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open until the process exits
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _discard_output() -> None:
    """Points standard output at /dev/null, or the interpreter would report the same write error again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def inspect_gpushare() -> None:
    """Entry point of `kubectl-inspect-gpushare`, the name under which kubectl finds `kubectl inspect gpushare`."""
    main("kube", "inspect", "gpushare")


def inspect_gpu() -> None:
    """Entry point of `kubectl-inspect-gpu`."""
    main("kube", "inspect", "gpu")
