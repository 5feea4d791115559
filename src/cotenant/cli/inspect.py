# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube inspect`, also installed as `kubectl inspect`: shows the GPUs of a cluster with the caller's
permissions."""

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
The same as kubectl plugins: kubectl inspect gpushare, kubectl inspect gpu; kubectl cotenant has all commands.
"""
MEMORY_EPILOG = """\b
Examples:
  kubectl inspect gpushare
  kubectl inspect gpushare -d worker-3
  kubectl inspect gpushare --unit MiB -o wide
Allocated: given to pods. Requested: what pods request. Used: in use by any process.
"""
GPUS_EPILOG = """\b
Examples:
  kubectl inspect gpu
  kubectl inspect gpu -d worker-3
"""


@click.group(epilog=EPILOG, short_help="Shows the GPUs of a cluster.")
def inspect() -> None:
    """Shows the GPUs of a cluster: memory requested, allocated and used, and the links between GPUs."""


def inspect_options(command: F) -> F:
    """Adds the options that select the cluster, the node, the namespace and the output."""
    for option in (
        click.option(
            "--output",
            "-o",
            type=click.Choice(["table", "wide", "json", "yaml"]),
            default="table",
            show_default="table",  # not `True`: on the page of commands, `--output` of `install` has another default
            help="Output format; json and yaml have every field.",
        ),
        click.option(
            "--settings", type=FILE, metavar="FILE", help="Settings file, if those of the cluster cannot be read."
        ),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
        click.option("--kubeconfig", type=FILE, metavar="FILE", help="Kubeconfig file. Default: as kubectl finds it."),
        click.option("--namespace", "-n", metavar="NAME", help="Count the pods of this namespace only."),
        click.option(
            "--details",
            "-d",
            is_flag=True,
            help="Show each node with its pods (gpushare) or the links between its GPUs (gpu).",
        ),
        click.argument("node", required=False),
    ):
        command = option(command)
    return command


@inspect.command(epilog=MEMORY_EPILOG, short_help="Shows GPU memory by node or pod.")
@inspect_options
@click.option("--unit", type=click.Choice(["GiB", "MiB"]), default="GiB", show_default=True, help="Unit of GPU memory.")
def gpushare(details: bool, unit: str, output: str, **which: Any) -> None:
    """Shows the GPU memory of each node, or of each pod with --details: allocated, requested and used."""
    seen = read(**which)
    from cotenant.cli.inspect_tables import memory_details, memory_summary

    show(seen, output, lambda wide: (memory_details if details else memory_summary)(seen, unit, wide))


@inspect.command(epilog=GPUS_EPILOG, short_help="Shows GPUs and their links by node.")
@inspect_options
def gpu(details: bool, output: str, **which: Any) -> None:
    """Shows the number of GPUs of each node and how many are in use; with --details how they are linked."""
    seen = read(**which)
    from cotenant.cli.inspect_tables import card_details, card_summary

    show(seen, output, lambda wide: card_details(seen) if details else card_summary(seen, wide))


def read(
    node: str | None, namespace: str | None, kubeconfig: Path | None, context: str | None, settings: Path | None
) -> "ClusterUse":
    """Reads the current state from the API server."""
    import asyncio
    import os

    from cotenant.kube.api.access import find_access
    from cotenant.kube.inspect.listing import Query, read_cluster
    from cotenant.kube.settings import read_settings

    chosen = None if settings is None else read_settings(settings)
    access = find_access(os.environ, kubeconfig, context)
    return asyncio.run(read_cluster(access, Query(node=node, namespace=namespace, settings=chosen)))


def show(seen: "ClusterUse", output: str, draw: Callable[[bool], Iterable[str]]) -> None:
    """Prints the tables, and on standard error what is missing from them."""
    from cotenant.cli.output import render
    from cotenant.wire.text import printable

    def print_lines(wide: bool) -> None:
        empty = ["no node has GPUs that an agent has published"]
        click.echo("\n".join(draw(wide) if seen.nodes or seen.pending else empty))

    render(seen, output, print_lines)
    if seen.namespace is not None:
        click.echo(
            f"only pods of namespace {printable(seen.namespace)} are counted; pods of other namespaces may use more",
            err=True,
        )
    for sentence in dict.fromkeys(node.unenforced for node in seen.nodes):
        if sentence is not None:
            click.echo(f"note: {sentence}", err=True)
    for trouble in seen.unread:
        click.echo(f"not shown: {printable(trouble)}", err=True)
