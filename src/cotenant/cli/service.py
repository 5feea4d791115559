# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant service`: the daemon as a service of systemd, for the machine or for one user."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cotenant.errors import InputError

if TYPE_CHECKING:
    from cotenant.local.service import Service

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
    if not user and root == Path("/"):
        _needs_root()
        files.check_program()
    files.install(found)
    for path in found.contents:
        click.echo(f"wrote {path}")
    if root == Path("/") and files.RUNS.is_dir():
        files.carry_out(found.enable)
        click.echo("the daemon runs, and starts with the machine")
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
    if root == Path("/") and files.RUNS.is_dir() and any(path.exists() for path in found.contents):
        files.carry_out(found.disable)
    for path in files.uninstall(found):
        click.echo(f"removed {path}")


@service.command(epilog="\b\nExample:\n  cotenant service status\n")
@where_options
def status(user: bool, root: Path) -> None:
    """Shows whether the units are installed as this version writes them, and whether the daemon answers."""
    from cotenant.cli.client import Client, NoDaemonError, own_socket
    from cotenant.local import service as files
    from cotenant.local.state_folder import system_socket

    for path, content in _service(user, root).contents.items():
        click.echo(f"{path}: {files.state_of(path, content)}")
    address = own_socket() if user else system_socket()
    try:
        answer = Client(at=address).get("/v1/status", dict[str, object])
        click.echo(f"{address}: the daemon answers (pid {answer['pid']}, version {answer['version']})")
    except NoDaemonError as error:
        click.echo(f"{address}: {error}")


def _service(user: bool, root: Path) -> "Service":
    from cotenant.local.service import system_service, user_service

    if not user:
        return system_service(root)
    if root != Path("/"):
        raise InputError("--root: only for the daemon for all users; leave out --user")
    named = os.environ.get("XDG_CONFIG_HOME")
    return user_service(Path(named) if named else Path.home() / ".config")


def _needs_root() -> None:
    if os.geteuid() != 0:
        raise InputError("the daemon for all users needs root: use sudo, or --user for a daemon of your own")
