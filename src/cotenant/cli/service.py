# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant service`: the daemon as a service of systemd, for the machine or for one user."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cotenant import __version__
from cotenant.cli.options import output_option
from cotenant.errors import CotenantError, InputError

if TYPE_CHECKING:
    from cotenant.local.service import Service

USER_RUNS = """the daemon runs, and starts when you log in; it ends with your last session, and so do its jobs, unless
`loginctl enable-linger` was run once"""
KEPT = "jobs that run continue without a daemon; the state folder and the group of administrators stay"
INSTALL_EPILOG = """\b
Examples:
  cotenant service install
  cotenant service install --user
  cotenant service install --print
"""


def where_options(command: Callable[..., None]) -> Callable[..., None]:
    """--user and --root."""
    command = click.option("--user", is_flag=True, help="The daemon of one user. Default: the daemon for all users.")(
        command
    )
    return click.option(
        "--root",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("/"),
        help="Root of the file system to change, such as that of an image; systemd is then not called.",
    )(command)


@click.group(epilog="\b\nExample:\n  cotenant service install\n")
def service() -> None:
    """Installs the daemon as a service of systemd, which starts it with the machine and after a crash."""


@service.command(epilog=INSTALL_EPILOG)
@where_options
@click.option("--print", "only_print", is_flag=True, help="Print the files, and change nothing.")
def install(user: bool, root: Path, only_print: bool) -> None:
    """Writes the units, and enables and starts them if systemd runs."""
    from cotenant.local import service as files

    found = _service(user, root)
    if only_print:
        for path, content in found.contents.items():
            click.echo(f"# {path}\n{content}")
        return
    with_systemd = root == Path("/") and files.RUNS.is_dir()
    if not user and root == Path("/"):
        _needs_root()
        files.check_program()
        files.check_readable()
    if with_systemd:
        files.check_bus(found)
        _refuse_other_daemon(user, found)
    files.install(found)
    for path in found.contents:
        click.echo(f"wrote {path}")
    if with_systemd:
        files.carry_out(found.enable)
        _wait_until_up(user, found)
        click.echo("the daemon runs, and starts with the machine" if not user else USER_RUNS)
        return
    click.echo("systemd does not run here. Where it does, these commands enable the daemon:")
    for command in found.enable:
        click.echo(f"  {' '.join(command)}")
    click.echo(f"without systemd: cotenant up --detach{'' if user else ' --system'}")


@service.command(epilog="\b\nExample:\n  cotenant service uninstall\n")
@where_options
def uninstall(user: bool, root: Path) -> None:
    """Stops and disables the daemon if systemd runs, and removes the units. Jobs and the state folder stay."""
    from cotenant.local import service as files

    found = _service(user, root)
    if not user and root == Path("/"):
        _needs_root()
    with_systemd = root == Path("/") and files.RUNS.is_dir() and any(path.exists() for path in found.contents)
    if with_systemd:
        files.carry_out(found.disable)
    removed = files.uninstall(found)
    for path in removed:
        click.echo(f"removed {path}")
    if with_systemd:
        files.carry_out([found.reload])
    click.echo(KEPT if removed else "nothing is installed")


@service.command(epilog="\b\nExample:\n  cotenant service status\nExit code: 0 if the daemon answers, else 3.\n")
@where_options
@output_option
def status(user: bool, root: Path, output: str) -> None:
    """Shows whether the units are installed as this version writes them, and whether the daemon answers."""
    from cotenant.cli.daemon import status_of_daemon
    from cotenant.cli.output import render
    from cotenant.client.addresses import own_socket, system_socket
    from cotenant.client.problems import NoDaemonError
    from cotenant.local import service as files

    found = _service(user, root)
    shown: dict[str, object] = {
        "files": {str(path): files.state_of(path, content) for path, content in found.contents.items()}
    }
    lines = [f"{path}: {files.state_of(path, content)}" for path, content in found.contents.items()]
    here, address, asked = root == Path("/"), own_socket() if user else system_socket(), root == Path("/")
    if here and files.RUNS.is_dir():
        enabled, active = (files.property_of(found, name) for name in ("UnitFileState", "ActiveState"))
        shown |= {"enabled": enabled == "enabled", "active": active or "unknown"}
        lines.append(f"systemd: {enabled or 'not enabled'}, {active or 'does not answer'}")
        asked = active == "active"  # otherwise systemd would start the daemon to answer
    answer = status_of_daemon(address) if asked else None
    if here:
        shown |= {"address": str(address), "pid": None, "version": None}
    if answer is not None:
        shown |= {"pid": answer["pid"], "version": answer["version"]}
        lines.append(f"{address}: the daemon answers (pid {answer['pid']}, version {answer['version']})")
        if answer["version"] != __version__:
            fix = f"cotenant service install{' --user' if user else ''}"
            lines.append(f"the daemon is not of this version ({__version__}): `{fix}` restarts it, and jobs continue")
    elif here:
        lines.append(f"{address}: no daemon is running; `{_start(user, files.RUNS.is_dir())}` starts it")
    render(shown, output, lambda wide: click.echo("\n".join(lines)))
    if here and answer is None:
        sys.exit(NoDaemonError.exit_code)


def _start(user: bool, with_systemd: bool) -> str:
    """The command that starts the daemon."""
    if with_systemd:
        return f"cotenant service install{' --user' if user else ''}"
    return f"cotenant up --detach{'' if user else ' --system'}"


def _wait_until_up(user: bool, found: "Service") -> None:
    """CotenantError if the daemon that systemd has started does not answer: systemd only knows that it was started."""
    from cotenant.cli.daemon import STARTED_WITHIN_S, status_of_daemon
    from cotenant.client.addresses import own_socket, system_socket
    from cotenant.local.service import property_of

    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline and property_of(found, "SubState") == "running":
        if status_of_daemon(own_socket() if user else system_socket(), timeout_s=1.0) is not None:
            return
        time.sleep(0.1)
    log = f"journalctl {'--user ' if user else ''}-u cotenant -n 20"
    raise CotenantError(
        f"the service is installed, but the daemon does not answer: `{log}` says why; its options are in "
        f"{'~/.config' if user else '/etc'}/cotenant/daemon.env"
    )


def _refuse_other_daemon(user: bool, found: "Service") -> None:
    """InputError if a daemon runs that systemd did not start: the one of the service could not start beside it."""
    from cotenant.cli.daemon import refuse_second_daemon, status_of_daemon
    from cotenant.client.addresses import own_socket, system_socket
    from cotenant.local.service import property_of

    if user:
        refuse_second_daemon()
    address = own_socket() if user else system_socket()
    running = status_of_daemon(address) if address.exists() else None
    if running is not None and str(running["pid"]) != property_of(found, "MainPID"):
        sudo = "" if user else "sudo "
        raise InputError(
            f"a daemon runs already that systemd did not start (pid {running['pid']}): stop it with `{sudo}cotenant "
            "down --wait`, and install the service then; running jobs continue"
        )


def _service(user: bool, root: Path) -> "Service":
    from cotenant.local.service import system_service, user_configuration, user_service

    if not user:
        return system_service(root)
    if root != Path("/"):
        raise InputError("--root: only for the daemon for all users; leave out --user")
    return user_service(user_configuration())


def _needs_root() -> None:
    if os.geteuid() != 0:
        raise InputError("the daemon for all users needs root: use sudo, or --user for a daemon of your own")
