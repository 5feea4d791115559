# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube`: what runs in a cluster, and what installs it there."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from cotenant.cli.inspect import inspect
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
"""
SCHEDULER_EPILOG = """\b
Example:
  cotenant kube scheduler --kubeconfig ~/.kube/config --settings settings.yaml
"""
AGENT_EPILOG = """\b
Example:
  cotenant kube agent --node $(hostname) --simulate 2 --gpu-memory 16GiB
"""
INSTALL_EPILOG = """\b
Examples:
  cotenant kube install --dev | kubectl apply -f -
  cotenant kube install --dev | kubectl delete -f -
"""


@click.group(epilog=EPILOG)
def kube() -> None:
    """Shares the GPUs of a Kubernetes cluster: a scheduler, an agent on every node, and what installs them."""


kube.add_command(inspect)


def cluster_options(command: F) -> F:
    """Settings, and the way to the API server."""
    for option in (
        click.option("--kubeconfig", type=FILE, metavar="FILE", help="How to reach the API server."),
        click.option("--settings", type=FILE, metavar="FILE", help="The settings file (YAML)."),
    ):
        command = option(command)
    return command


@kube.command(epilog=SCHEDULER_EPILOG)
@cluster_options
@click.option(
    "--extender",
    default="127.0.0.1:8888",
    show_default=True,
    metavar="HOST:PORT",
    help="Where kube-scheduler asks; not on loopback it needs --client-authority.",
)
@click.option("--webhook", metavar="HOST:PORT", help="Where the API server asks; needs --certificate and --key.")
@click.option(
    "--certificate", type=FILE, metavar="FILE", help="What the webhook shows (PEM); read again when it changes."
)
@click.option("--key", type=FILE, metavar="FILE", help="The certificate's key (PEM).")
@click.option("--why-key", type=FILE, metavar="FILE", help="What `cotenant why` has to show; else nobody may ask.")
@click.option("--client-authority", type=FILE, metavar="FILE", help="Who signs the certificates of callers (PEM).")
@click.option(
    "--lease", metavar="NAMESPACE/NAME", help="Of the kube-scheduler beside it; else there must be no other scheduler."
)
def scheduler(extender: str, webhook: str | None, lease: str | None, **options: Any) -> None:
    """Places pods on GPUs: the extender of a stock kube-scheduler, and the webhook that prepares pods."""
    from cotenant.kube.scheduler.process import SchedulerOptions, serve

    serve(
        SchedulerOptions(
            extender=address(extender),
            webhook=None if webhook is None else address(webhook),
            lease=None if lease is None else _lease(lease),
            **options,
        )
    )


@kube.command(epilog=AGENT_EPILOG)
@cluster_options
@click.option("--node", required=True, metavar="NAME", help="The node's name in the cluster.")
@click.option("--vendor", type=click.Choice(REAL_NAMES), help="Hand out the GPUs of this vendor only.")
@click.option("--simulate", type=click.IntRange(1, 64), help="Simulate so many GPUs, for clusters without.")
@click.option("--gpu-memory", metavar="16GiB", help="Memory of each simulated GPU.")
@click.option("--gpu-type", metavar="NAME", help="What the simulated GPUs are called.")
@click.option("--strict", is_flag=True, help="Hand GPUs out by CDI, where the runtime heeds no NVIDIA_VISIBLE_DEVICES.")
@click.option("--remove", is_flag=True, help="Take back what an agent has said of the node, and end.")
def agent(**options: Any) -> None:
    """Looks after the GPUs of one node: tells the cluster of them, and gives containers what was assigned to them."""
    from cotenant.kube.agent.process import AgentOptions, serve

    serve(AgentOptions(**options))


@kube.command(epilog=INSTALL_EPILOG)
@click.option("--dev", is_flag=True, help="A certificate of its own: the only way so far.")
@click.option("--replicas", type=click.IntRange(1, 9), default=1, show_default=True, help="Schedulers; one leads.")
@click.option("--image", default=OUR_IMAGE, show_default=True, help="The image with this package.")
@click.option(
    "--scheduler-image",
    default=KUBE_SCHEDULER_IMAGE,
    show_default=True,
    help="The stock kube-scheduler: the image that your cluster runs.",
)
@click.option(
    "--pull",
    type=click.Choice(["Always", "IfNotPresent", "Never"]),
    default="IfNotPresent",
    show_default=True,
    help="When nodes fetch the images.",
)
@click.option("--settings", type=FILE, metavar="FILE", help="The settings file (YAML).")
@click.option("--vendor", type=click.Choice(REAL_NAMES), help="Hand out the GPUs of this vendor only.")
@click.option("--simulate", type=click.IntRange(1, 64), help="Simulate so many GPUs on every node.")
@click.option("--gpu-memory", metavar="16GiB", help="Memory of each simulated GPU.")
@click.option("--gpu-type", metavar="NAME", help="What the simulated GPUs are called.")
@click.option("--strict", is_flag=True, help="Hand GPUs out by CDI.")
@click.option(
    "--node-selector", multiple=True, metavar="KEY=VALUE", help="Agents only on nodes with this label; repeatable."
)
@click.option(
    "--output", "-o", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="What to print."
)
def install(dev: bool, output: str, **options: Any) -> None:
    """Prints what runs cotenant in a cluster, for `kubectl apply -f -`; the same with `delete` removes it."""
    if not dev:
        raise InputError("kube install: say --dev; there is no other way to install yet")
    from cotenant.kube.install.certificate import make_certificate
    from cotenant.kube.install.manifests import manifests

    found = manifests(_install_options(**options), make_certificate())
    click.echo(_as_json(found) if output == "json" else _as_yaml(found), nl=False)


def _install_options(
    image: str,
    scheduler_image: str,
    pull: str,
    settings: Path | None,
    replicas: int,
    node_selector: Sequence[str],
    **agents: Any,
) -> Any:
    from cotenant.kube.install.manifests import InstallOptions
    from cotenant.kube.install.workloads import AgentWishes, Images

    if agents["gpu_memory"] is not None:
        memory(agents["gpu_memory"])
    if agents["simulate"] is None and (agents["gpu_memory"] or agents["gpu_type"]):
        raise InputError("kube install: --gpu-memory and --gpu-type are for simulated GPUs only: say --simulate COUNT")
    return InstallOptions(
        images=Images(ours=image, kube_scheduler=scheduler_image, pull=pull),
        agents=AgentWishes(nodes=dict(map(_label, node_selector)), **agents),
        settings=settings,
        replicas=replicas,
    )


def address(text: str) -> tuple[str, int]:
    """`HOST:PORT`."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise InputError(f"{text!r}: expected HOST:PORT, such as 127.0.0.1:8888")
    return host.strip("[]"), int(port)


def _lease(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise InputError(f"--lease {text!r}: expected NAMESPACE/NAME")
    return namespace, name


def memory(text: str) -> int:
    """An amount of memory, in MiB."""
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


def _as_json(objects: Sequence[Any]) -> str:
    import json

    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}) + "\n"


def _as_yaml(objects: Sequence[Any]) -> str:
    import json

    import yaml

    plain = [json.loads(json.dumps(one)) for one in objects]  # or what two of them share would be a reference
    return yaml.safe_dump_all(plain, sort_keys=False, explicit_start=True)
