# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The command `accounts`: users and groups of one machine, what they use, and their limits."""

import click

from cotenant.cli.options import output_option
from cotenant.cli.output import emit, or_dash
from cotenant.client.client import Client
from cotenant.wire.machine import AccountView


def _of(used: float, most: float | None) -> str:
    return f"{used:g}" if most is None else f"{used:g}/{most:g}"


NONE = "no user has used a GPU yet"
COLUMNS = (
    ("ACCOUNT", lambda one: one.account, False),
    ("GPUS", lambda one: _of(one.gpus, one.most_gpus), False),
    ("FAIR", lambda one: or_dash(one.fair_gpus, "{:.3g}"), False),
    ("MEMORY", lambda one: f"{_of(one.memory_mib, one.most_memory_mib)} MiB", False),
    ("RUNNING", lambda one: _of(one.running, one.most_running), False),
    ("QUEUED", lambda one: _of(one.queued, one.most_queued), False),
    ("WEEK", lambda one: f"{_of(round(one.week_gpu_hours, 1), one.most_week_gpu_hours)} h", False),
    ("CPUS", lambda one: _of(one.cpus, one.most_cpus), True),
    ("HOST MEMORY", lambda one: f"{_of(one.host_memory_mib, one.most_host_memory_mib)} MiB", True),
    ("PAST", lambda one: f"{one.used_gpu_hours:.1f} h", True),
    ("WEIGHT", lambda one: f"{one.weight:g}", True),
)


EPILOG = """\b
Examples:
  cotenant accounts -o wide
  cotenant accounts reload
"""


@click.group(epilog=EPILOG, invoke_without_command=True)
@output_option
@click.pass_context
def accounts(context: click.Context, output: str) -> None:
    """Lists the users and groups that use GPUs, wait for some, or have used some.

    GPUS counts parts of GPUs, FAIR is the fair share, WEEK are the GPU-hours of the last seven days, PAST those that
    fair share remembers. A number after a slash is a limit.
    """
    if context.invoked_subcommand is None:
        emit(Client().get("/v1/accounts", list[AccountView]), output, COLUMNS, NONE)


@accounts.command("reload", epilog="\b\nExample:\n  cotenant accounts reload\n")
@output_option
def reload_accounts(output: str) -> None:
    """Lets the daemon read its file of accounts again (`up --accounts`), and lists them. Only for administrators.

    If the file is not valid, everything stays as it was. SIGHUP to the daemon does the same.
    """
    emit(Client().post("/v1/accounts/reload", list[AccountView]), output, COLUMNS, NONE)
