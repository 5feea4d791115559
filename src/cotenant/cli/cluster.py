# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the commands for a cluster share: options, the connection, amounts, and how manifests are printed."""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cotenant.errors import InputError

if TYPE_CHECKING:
    import asyncio

    from cotenant.core.units import MiB, Percent
    from cotenant.kube.api.access import Access
    from cotenant.kube.api.client import Client

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")


def kubeconfig_options(command: F) -> F:
    """Adds the options that select the cluster."""
    for option in (
        click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Kubeconfig file. Default: as kubectl finds it.",
        ),
    ):
        command = option(command)
    return command


def cluster_options(command: F) -> F:
    """Adds the options that select the cluster and the namespace."""
    namespace = click.option("--namespace", "-n", metavar="NAME", help="Namespace. Default: that of the kubeconfig.")
    return namespace(kubeconfig_options(command))


def in_cluster(
    work: "Callable[[Client, str], Awaitable[R]]", namespace: str | None, kubeconfig: Path | None, context: str | None
) -> R:
    """Runs `work` with a client of the chosen cluster and the chosen namespace."""
    import asyncio

    from cotenant.kube.deploy.session import session

    access, chosen = _access(namespace, kubeconfig, context)

    async def run() -> R:
        async with session(access) as client:
            return await work(client, chosen)

    return asyncio.run(run())


def _access(namespace: str | None, kubeconfig: Path | None, context: str | None) -> "tuple[Access, str]":
    """How to reach the chosen cluster, and the chosen namespace."""
    import os

    from cotenant.kube.api.access import find_access
    from cotenant.kube.deploy.pods import check_namespace

    chosen = None if namespace is None else check_namespace(namespace)
    access = find_access(os.environ, kubeconfig, context)
    return access, chosen or access.namespace


class Connected:
    """A connection to a cluster for commands that wait and act in turns. Its tasks run while the command waits."""

    def __init__(self, runner: "asyncio.Runner", client: "Client", namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self._runner = runner
        self._tasks: list[asyncio.Task[object]] = []

    def do(self, work: Coroutine[None, None, R]) -> R:
        """Returns the result of a coroutine; what the cluster refuses becomes a CotenantError."""
        from cotenant.kube.api.connection import ApiError
        from cotenant.kube.deploy.session import explained

        try:
            return self._runner.run(work)
        except ApiError as error:
            raise explained(error) from None

    def sleep(self, seconds: float) -> None:
        import asyncio

        self.do(asyncio.sleep(seconds))
        for task in self._tasks:
            if task.done():
                task.result()  # a follower never ends but by an error

    def start(self, *works: Coroutine[None, None, object]) -> None:
        """Runs coroutines in the background until the connection is closed."""
        loop = self._runner.get_loop()
        self._tasks += [loop.create_task(work) for work in works]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.do(self._end())

    async def _end(self) -> None:
        import asyncio

        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()


@contextmanager
def connected(namespace: str | None, kubeconfig: Path | None, context: str | None) -> Iterator[Connected]:
    """Connects to the chosen cluster and the chosen namespace."""
    import asyncio

    from cotenant.kube.api.client import Client
    from cotenant.kube.deploy.session import AGENT, LIMITS

    access, chosen = _access(namespace, kubeconfig, context)
    with asyncio.Runner() as runner:
        cluster = Connected(runner, Client(access, LIMITS, agent=AGENT), chosen)
        try:
            yield cluster
        finally:
            cluster.close()


def memory_of(_context: click.Context, option: click.Parameter, text: str | None) -> "MiB | None":
    """Converts `3GiB` into MiB."""
    from cotenant.core.units import parse_memory

    try:
        return None if text is None else parse_memory(text)
    except ValueError as error:
        raise InputError(f"{option.opts[0]}: {error}") from None


def percent_of(_context: click.Context, option: click.Parameter, text: str | None) -> "Percent | None":
    """Converts `30%` into a whole percent from 1 to 100."""
    from cotenant.core.units import parse_percent

    try:
        percent = None if text is None else parse_percent(text)
    except ValueError as error:
        raise InputError(f"{option.opts[0]}: {error}") from None
    if percent == 0:
        raise InputError(f"{option.opts[0]}: 0 % is no share; leave the option out to claim none")
    return percent


def print_manifests(objects: Sequence[dict[str, Any]], output: str) -> None:
    """Prints objects for `kubectl apply -f -`."""
    import json

    if output == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    else:
        click.echo(yaml_text(objects), nl=False)


def yaml_text(objects: Sequence[dict[str, Any]]) -> str:
    """Objects as YAML documents."""
    import json

    import yaml

    # A copy, or objects that share a value would be written with YAML aliases.
    plain = [json.loads(json.dumps(one)) for one in objects]
    return yaml.safe_dump_all(plain, sort_keys=False, explicit_start=True)
