# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube inspect`, which is also `kubectl inspect`: the GPUs of a cluster, read with one's own rights."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from cotenant.kube.inspect.report import ClusterUse

F = TypeVar("F", bound=Callable[..., object])
FILE = click.Path(path_type=Path, dir_okay=False)
EPILOG = """\b
Examples:
  cotenant kube inspect gpushare
  cotenant kube inspect gpu -d worker-3
As plugins of kubectl: kubectl inspect gpushare, kubectl inspect gpu, and kubectl cotenant for all commands.
"""
MEMORY_EPILOG = """\b
Examples:
  kubectl inspect gpushare
  kubectl inspect gpushare -d worker-3
  kubectl inspect gpushare --unit MiB -o wide
Allocated is what pods were given, Requested what they ask for, Used what is in use, whoever uses it.
"""
CARDS_EPILOG = """\b
Examples:
  kubectl inspect gpu
  kubectl inspect gpu -d worker-3
"""


@click.group(epilog=EPILOG)
def inspect() -> None:
    """Shows the GPUs of a cluster: what is asked for, given and used, and how cards are linked."""


def inspect_options(command: F) -> F:
    """Which cluster, which part of it, and how much to say."""
    for option in (
        click.option(
            "--output",
            "-o",
            type=click.Choice(["table", "wide", "json", "yaml"]),
            default="table",
            show_default="table",  # not `True`: on the page of commands, `--output` of `install` has another default
            help="What to print: tables for people, the rest for programs.",
        ),
        click.option(
            "--settings", type=FILE, metavar="FILE", help="The settings, where the cluster's are not readable."
        ),
        click.option("--context", metavar="NAME", help="The context of the kubeconfig."),
        click.option("--kubeconfig", type=FILE, metavar="FILE", help="How to reach the API server."),
        click.option("--namespace", "-n", metavar="NAME", help="Count the pods of this namespace only."),
        click.option("--details", "-d", is_flag=True, help="Each node with its pods, or with the links of its GPUs."),
        click.argument("node", required=False),
    ):
        command = option(command)
    return command


@inspect.command(epilog=MEMORY_EPILOG)
@inspect_options
@click.option("--unit", type=click.Choice(["GiB", "MiB"]), default="GiB", show_default=True, help="Of GPU memory.")
def gpushare(details: bool, unit: str, output: str, **which: Any) -> None:
    """Memory of GPUs by node, or by pod: what was given, what is asked for, what is used."""
    seen = read(**which)
    from cotenant.cli.inspect_tables import memory_details, memory_summary

    show(seen, output, lambda wide: (memory_details if details else memory_summary)(seen, unit, wide))


@inspect.command(epilog=CARDS_EPILOG)
@inspect_options
def gpu(details: bool, output: str, **which: Any) -> None:
    """GPUs by node: how many there are, how many are in use, how they are linked."""
    seen = read(**which)
    from cotenant.cli.inspect_tables import card_details, card_summary

    show(seen, output, lambda wide: card_details(seen) if details else card_summary(seen, wide))


def read(
    node: str | None, namespace: str | None, kubeconfig: Path | None, context: str | None, settings: Path | None
) -> "ClusterUse":
    """What the API server says now."""
    import asyncio
    import os

    from cotenant.kube.api.access import find_access
    from cotenant.kube.inspect.listing import Wish, read_cluster
    from cotenant.kube.settings import read_settings

    chosen = None if settings is None else read_settings(settings)
    access = find_access(os.environ, kubeconfig, context)
    return asyncio.run(read_cluster(access, Wish(node=node, namespace=namespace, settings=chosen)))


def show(seen: "ClusterUse", output: str, draw: Callable[[bool], Iterable[str]]) -> None:
    """Prints it; what is missing from it is said beside it."""
    from cotenant.cli.show import render
    from cotenant.wire.text import printable

    def print_lines(wide: bool) -> None:
        empty = ["no node has GPUs that an agent has told of"]
        click.echo("\n".join(draw(wide) if seen.nodes or seen.pending else empty))

    render(seen, output, print_lines)
    if seen.namespace is not None:
        click.echo(f"only pods of namespace {printable(seen.namespace)} are counted; others may have more", err=True)
    for sentence in dict.fromkeys(node.unenforced for node in seen.nodes):
        if sentence is not None:
            click.echo(f"note: {sentence}", err=True)
    for trouble in seen.unread:
        click.echo(f"not shown: {printable(trouble)}", err=True)
