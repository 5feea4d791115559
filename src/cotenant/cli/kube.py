# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube`: the processes that run in a cluster, the commands that install them, and the demo."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cotenant.cli.inspect import inspect
from cotenant.cli.kube_demo import demo
from cotenant.cli.kube_install import install, kube_doctor, status, uninstall, upgrade
from cotenant.errors import InputError
from cotenant.node.devices.vendors import REAL_NAMES

F = TypeVar("F", bound=Callable[..., object])
FILE = click.Path(path_type=Path, dir_okay=False)
EPILOG = """\b
Examples:
  cotenant kube install --wait
  cotenant kube upgrade --set scheduler.replicas=3
  cotenant kube status
  cotenant kube inspect gpushare
  cotenant kube demo --image example/workloads:1 --policy iadeep
"""
SCHEDULER_EPILOG = """\b
Example:
  cotenant kube scheduler --kubeconfig ~/.kube/config --settings settings.yaml
"""
WEBHOOK_EPILOG = """\b
Example:
  cotenant kube webhook --listen 0.0.0.0:8443 --certificate tls.crt --key tls.key --settings settings.yaml
"""
WEB_EPILOG = """\b
Examples:
  cotenant kube web --listen 127.0.0.1:8080 --kubeconfig ~/.kube/config
  cotenant kube web --listen 0.0.0.0:8443 --certificate tls.crt --key tls.key --actions
"""
AGENT_EPILOG = """\b
Example:
  cotenant kube agent --node $(hostname) --simulate 2 --gpu-memory 16GiB
"""
MPS_EPILOG = """\b
Example:
  cotenant kube mps --node $(hostname)
"""
CLEAN_EPILOG = """\b
Examples:
  cotenant kube clean
  cotenant kube clean --node worker-3
"""
KEYS_EPILOG = """\b
Example:
  cotenant kube keys --certificate-days 365
"""
CERTIFICATE_DAYS = "Days for which new certificates are valid. Without it, another program creates them."


@click.group(epilog=EPILOG)
def kube() -> None:
    """Shares the GPUs of a Kubernetes cluster: installs cotenant, inspects GPUs, runs the scheduler, the webhook and
    the agents."""


kube.add_command(inspect)
kube.add_command(demo)
for command in (install, upgrade, uninstall, status):
    kube.add_command(command)
kube.add_command(kube_doctor, "doctor")


def _simulated(_context: click.Context, option: click.Parameter, text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    found: int = click.IntRange(1, 64)(text, option, _context)
    return found


def cluster_options(command: F) -> F:
    """Adds --settings and --kubeconfig."""
    for option in (
        click.option(
            "--kubeconfig",
            type=FILE,
            metavar="FILE",
            help="Kubeconfig file. Default: as kubectl finds it, or the pod's service account.",
        ),
        click.option("--settings", type=FILE, metavar="FILE", help="Settings file (YAML)."),
    ):
        command = option(command)
    return command


@kube.command(epilog=SCHEDULER_EPILOG, short_help="Runs the scheduler.")
@cluster_options
@click.option(
    "--extender",
    default="127.0.0.1:8888",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the extender for kube-scheduler; other than loopback it needs --client-authority. Unused if "
    "the settings say claims.only.",
)
@click.option(
    "--status",
    metavar="HOST:PORT",
    help="Address of `cotenant why` and the health checks; needs --certificate and --key.",
)
@click.option("--certificate", type=FILE, metavar="FILE", help="TLS certificate (PEM); reloaded when it changes.")
@click.option("--key", type=FILE, metavar="FILE", help="Private key of the certificate (PEM).")
@click.option(
    "--why-key",
    type=FILE,
    metavar="FILE",
    help="File with the key that `cotenant why` must send. Without it the endpoint is disabled.",
)
@click.option(
    "--decisions",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Volume for recorded decisions, which no other program can reach. Default: they are kept in memory.",
)
@click.option(
    "--decisions-key",
    type=FILE,
    metavar="FILE",
    help="File with the key that `cotenant decisions` must send. Without it the endpoint is disabled.",
)
@click.option(
    "--client-authority",
    type=FILE,
    metavar="FILE",
    help="CA that signs the client certificates of the extender's callers (PEM).",
)
@click.option(
    "--lease",
    metavar="NAMESPACE/NAME",
    help="Lease of the kube-scheduler in the same pod, or our own if the settings say claims.only. Without it there "
    "must be only one scheduler.",
)
@click.option("--certificate-days", type=click.IntRange(1, 3650), help=CERTIFICATE_DAYS)
@click.option("--await-webhook", is_flag=True, help="Be ready only when the API server trusts the webhook.")
def scheduler(extender: str, status: str | None, lease: str | None, **options: Any) -> None:
    """Runs the scheduler: the extender of a stock kube-scheduler, and the allocator of ResourceClaims."""
    from cotenant.kube.scheduler.process import SchedulerOptions, serve

    serve(
        SchedulerOptions(
            extender=address(extender),
            status=None if status is None else address(status),
            lease=None if lease is None else _lease(lease),
            **options,
        )
    )


@kube.command(epilog=WEBHOOK_EPILOG, short_help="Runs the admission webhook.")
@click.option("--settings", type=FILE, metavar="FILE", help="Settings file (YAML).")
@click.option("--listen", required=True, metavar="HOST:PORT", help="Address for the API server.")
@click.option(
    "--certificate",
    required=True,
    type=FILE,
    metavar="FILE",
    help="TLS certificate (PEM); reloaded when it changes.",
)
@click.option("--key", required=True, type=FILE, metavar="FILE", help="Private key of the certificate (PEM).")
@click.option("--cdi", is_flag=True, help="The agents give GPUs to containers by CDI, so pods do not name them.")
def webhook(listen: str, **options: Any) -> None:
    """Runs the webhook that prepares pods at their creation, or refuses them. It needs no access to the cluster."""
    from cotenant.kube.webhook.process import WebhookOptions, serve

    serve(WebhookOptions(listen=address(listen), **options))


@kube.command(epilog=WEB_EPILOG, short_help="Serves the pages of the cluster.")
@cluster_options
@click.option("--listen", required=True, metavar="HOST:PORT", help="Address; other than loopback it needs TLS.")
@click.option("--certificate", type=FILE, metavar="FILE", help="TLS certificate (PEM); reloaded when it changes.")
@click.option("--key", type=FILE, metavar="FILE", help="Private key of the certificate (PEM).")
@click.option("--name", default="cluster", show_default=True, help="Name of the cluster on the pages.")
@click.option("--history", type=FILE, metavar="FILE", help="File for the last day. Default: it is kept in memory.")
@click.option(
    "--decisions-key",
    type=FILE,
    metavar="FILE",
    help="File with the key that `cotenant report` must send. Default: it cannot ask.",
)
@click.option(
    "--actions", is_flag=True, help="Let viewers delete and hold pods and cordon GPUs, with their own rights."
)
def web(listen: str, **options: Any) -> None:
    """Serves pages that show the GPUs of a cluster, its pods and its queue. A viewer signs in with a token of the
    cluster and sees what the API server lets the token's user see."""
    from cotenant.web.kube.process import WebOptions, serve

    serve(WebOptions(listen=address(listen), **options))


@kube.command(epilog=AGENT_EPILOG, short_help="Runs the agent of one node.")
@cluster_options
@click.option("--node", required=True, metavar="NAME", help="Name of the node in the cluster.")
@click.option("--vendor", type=click.Choice(REAL_NAMES), help="Use only the GPUs of this vendor.")
@click.option(
    "--simulate",
    callback=_simulated,
    metavar="COUNT|auto",
    help="Simulate this number of GPUs, for nodes without any; auto: two, as long as the cluster has no GPUs.",
)
@click.option("--gpu-memory", metavar="16GiB", help="Memory of each simulated GPU. Default: a part of the free memory.")
@click.option("--gpu-type", metavar="NAME", help="Type name of the simulated GPUs.")
@click.option(
    "--strict", is_flag=True, help="Pass GPUs to containers by CDI, for runtimes that ignore NVIDIA_VISIBLE_DEVICES."
)
@click.option("--mps", is_flag=True, help="Let pods use NVIDIA GPUs through MPS; needs `cotenant kube mps` beside it.")
@click.option("--remove", is_flag=True, help="Remove what an agent has published about the node, and exit.")
@click.option(
    "--mount-regions",
    is_flag=True,
    help="Mount a small file system for what tenants write to on the node, and exit. Run it before the agent.",
)
@click.option(
    "--remove-files",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Remove the files of an agent from the node whose /run and /var/lib are in FOLDER, and exit. All of them stay"
    " if a container uses one.",
)
def agent(**options: Any) -> None:
    """Runs the agent of one node: publishes its GPUs, and gives containers the slices that were assigned to them."""
    from cotenant.kube.agent.options import AgentOptions
    from cotenant.kube.agent.process import serve

    serve(AgentOptions(**options))


@kube.command(epilog=MPS_EPILOG, short_help="Runs the MPS supervisor of one node.")
@click.option("--node", required=True, metavar="NAME", help="Name of the node in the cluster.")
def mps(node: str) -> None:
    """Runs the MPS supervisor of one node, as root: it starts and ends MPS control daemons for the agent."""
    from cotenant.kube.agent.allocating import HostPlaces
    from cotenant.kube.agent.mps_supervisor import serve

    serve(HostPlaces().mps.seen, f"agent of {node}")


@kube.command(epilog=CLEAN_EPILOG, short_help="Removes what agents have left on nodes.")
@click.option(
    "--kubeconfig",
    type=FILE,
    metavar="FILE",
    help="Kubeconfig file. Default: as kubectl finds it, or the pod's service account.",
)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME",
    help="Clean this node, which has no agent any more; repeatable. Default: end all agents, and clean their nodes.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="If cotenant was uninstalled before: a value of the chart, such as agent.image; repeatable.",
)
@click.option(
    "--hook", is_flag=True, help="As the job of the chart: do nothing if a tool that knows no hooks applied the job."
)
def clean(kubeconfig: Path | None, nodes: tuple[str, ...], assignments: tuple[str, ...], *, hook: bool) -> None:
    """Ends all agents of an installation and removes what they have left on their nodes: annotations, and files that no
    running pod uses. The chart runs this in a job before it is uninstalled."""
    from cotenant.cli.cluster import in_cluster
    from cotenant.kube.install.chart import merged_values
    from cotenant.kube.install.cleaning import clean_nodes, why_no_removal

    said = merged_values(assignments=assignments)

    async def work(client: Any, _namespace: str) -> None:
        if hook and (why := await why_no_removal(client)):
            click.echo(why)
            return
        await clean_nodes(client, click.echo, named=nodes, said=said)

    in_cluster(work, None, kubeconfig, None)


@kube.command(epilog=KEYS_EPILOG, short_help="Creates the keys of an installation.")
@click.option(
    "--kubeconfig",
    type=FILE,
    metavar="FILE",
    help="Kubeconfig file. Default: as kubectl finds it, or the pod's service account.",
)
@click.option("--settings", type=FILE, metavar="FILE", help="Settings file (YAML) that is to be valid.")
@click.option("--certificate-days", type=click.IntRange(1, 3650), help=CERTIFICATE_DAYS)
def keys(kubeconfig: Path | None, settings: Path | None, certificate_days: int | None) -> None:
    """Creates the Secrets of an installation that are missing, unless the settings are not valid, or a version is
    installed that this one cannot follow. The chart runs this in a job before anything else."""
    from cotenant.cli.cluster import in_cluster
    from cotenant.kube.api.keys import create_missing
    from cotenant.kube.install.installing import check_installed
    from cotenant.kube.settings import read_settings

    read_settings(settings)

    async def work(client: Any, _namespace: str) -> list[str]:
        await check_installed(client)
        return await create_missing(client, certificate_days)

    written = in_cluster(work, None, kubeconfig, None)
    click.echo(f"created: {', '.join(written)}" if written else "all keys are there")


def address(text: str) -> tuple[str, int]:
    """Parses `HOST:PORT`. Port 0 is any free port."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 65536):
        raise InputError(f"{text!r}: expected HOST:PORT, such as 127.0.0.1:8888")
    return host.strip("[]"), int(port)


def _lease(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise InputError(f"--lease {text!r}: expected NAMESPACE/NAME")
    return namespace, name
