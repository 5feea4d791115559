# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube`: the processes that run in a cluster, the manifests that install them, and the demo."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from cotenant.cli.cluster import print_manifests
from cotenant.cli.inspect import inspect
from cotenant.cli.kube_demo import demo
from cotenant.errors import InputError
from cotenant.node.devices.vendors import REAL_NAMES

F = TypeVar("F", bound=Callable[..., object])
FILE = click.Path(path_type=Path, dir_okay=False)
OUR_IMAGE = "localhost/cotenant:1"
KUBE_SCHEDULER_IMAGE = "localhost/kube-scheduler:1"
EPILOG = """\b
Examples:
  cotenant kube install --dev --image example/cotenant:1 --scheduler-image example/kube-scheduler:v1.34
  cotenant kube install --dev --simulate 4 --gpu-memory 16GiB | kubectl apply -f -
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
INSTALL_EPILOG = """\b
Examples:
  cotenant kube install --dev | kubectl apply -f -
  cotenant kube install --dev | kubectl delete -f -
"""


@click.group(epilog=EPILOG)
def kube() -> None:
    """Shares the GPUs of a Kubernetes cluster: prints the manifests, inspects GPUs, runs the scheduler, the webhook and
    the agents."""


kube.add_command(inspect)
kube.add_command(demo)


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


@kube.command(epilog=SCHEDULER_EPILOG, short_help="Runs the scheduler extender.")
@cluster_options
@click.option(
    "--extender",
    default="127.0.0.1:8888",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the extender for kube-scheduler; other than loopback it needs --client-authority.",
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
    help="Lease of the kube-scheduler in the same pod. Without it there must be only one scheduler.",
)
def scheduler(extender: str, status: str | None, lease: str | None, **options: Any) -> None:
    """Runs the scheduler: the extender of a stock kube-scheduler."""
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
@click.option("--actions", is_flag=True, help="Let viewers delete pods and cordon GPUs, with their own rights.")
def web(listen: str, **options: Any) -> None:
    """Serves pages that show the GPUs of a cluster, its pods and its queue. A viewer signs in with a token of the
    cluster and sees what the API server lets the token's user see."""
    from cotenant.web.kube.process import WebOptions, serve

    serve(WebOptions(listen=address(listen), **options))


@kube.command(epilog=AGENT_EPILOG, short_help="Runs the agent of one node.")
@cluster_options
@click.option("--node", required=True, metavar="NAME", help="Name of the node in the cluster.")
@click.option("--vendor", type=click.Choice(REAL_NAMES), help="Use only the GPUs of this vendor.")
@click.option("--simulate", type=click.IntRange(1, 64), help="Simulate this number of GPUs, for nodes without any.")
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


@kube.command(epilog=INSTALL_EPILOG, short_help="Prints the manifests of an installation.")
@click.option(
    "--dev", is_flag=True, help="Create a self-signed certificate. Required: there is no other way to install yet."
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 9),
    default=1,
    show_default=True,
    help="Number of replicas of the scheduler, one of which leads, and of the webhook.",
)
@click.option("--image", default=OUR_IMAGE, show_default=True, help="Image that contains cotenant.")
@click.option(
    "--scheduler-image",
    default=KUBE_SCHEDULER_IMAGE,
    show_default=True,
    help="Image of the stock kube-scheduler, of the version that your cluster runs.",
)
@click.option(
    "--pull",
    type=click.Choice(["Always", "IfNotPresent", "Never"]),
    default="IfNotPresent",
    show_default=True,
    help="Image pull policy.",
)
@click.option("--settings", type=FILE, metavar="FILE", help="Settings file (YAML).")
@click.option("--no-pages", is_flag=True, help="Leave out the pages (`kube web`).")
@click.option("--page-actions", is_flag=True, help="Let viewers of the pages act, with their own rights.")
@click.option("--vendor", type=click.Choice(REAL_NAMES), help="Use only the GPUs of this vendor.")
@click.option("--simulate", type=click.IntRange(1, 64), help="Simulate this number of GPUs on every node.")
@click.option("--gpu-memory", metavar="16GiB", help="Memory of each simulated GPU. Default: a part of the free memory.")
@click.option("--gpu-type", metavar="NAME", help="Type name of the simulated GPUs.")
@click.option("--strict", is_flag=True, help="Pass GPUs to containers by CDI.")
@click.option("--mps", is_flag=True, help="Let pods use NVIDIA GPUs through MPS: adds a privileged MPS supervisor.")
@click.option(
    "--node-selector", multiple=True, metavar="KEY=VALUE", help="Run agents only on nodes with this label; repeatable."
)
@click.option(
    "--output", "-o", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Output format."
)
def install(dev: bool, output: str, **options: Any) -> None:
    """Prints the manifests of an installation: `kubectl apply -f -` installs them, `kubectl delete -f -` removes
    them."""
    if not dev:
        raise InputError("kube install needs --dev, the only way to install yet (with a self-signed certificate)")
    from cotenant.kube.install.certificate import service_certificate
    from cotenant.kube.install.manifests import manifests

    found = manifests(_install_options(**options), service_certificate)
    print_manifests(found, output)


def _install_options(
    image: str,
    scheduler_image: str,
    pull: str,
    settings: Path | None,
    replicas: int,
    no_pages: bool,
    page_actions: bool,
    node_selector: Sequence[str],
    **agents: Any,
) -> Any:
    from cotenant.kube.install.manifests import InstallOptions
    from cotenant.kube.install.workloads import AgentFlags, Images

    if agents["gpu_memory"] is not None:
        memory(agents["gpu_memory"])
    if agents["simulate"] is None and (agents["gpu_memory"] or agents["gpu_type"]):
        raise InputError(
            "kube install: --gpu-memory and --gpu-type need --simulate COUNT, because they describe simulated GPUs"
        )
    return InstallOptions(
        images=Images(ours=image, kube_scheduler=scheduler_image, pull=pull),
        agents=AgentFlags(nodes=dict(map(_label, node_selector)), **agents),
        settings=settings,
        replicas=replicas,
        pages=not no_pages,
        actions=page_actions,
    )


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


def memory(text: str) -> int:
    """Parses an amount of memory into MiB."""
    from cotenant.core.units import parse_memory

    try:
        return parse_memory(text)
    except ValueError as error:
        raise InputError(f"--gpu-memory {error}") from None


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InputError(f"--node-selector {text!r}: expected KEY=VALUE")
    return key, value
