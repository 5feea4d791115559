# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube install`, `upgrade`, `uninstall`, `status` and `doctor`: the chart, by helm if there is one."""

import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cotenant.cli.cluster import in_cluster, kubeconfig_options, print_manifests
from cotenant.cli.options import kube_output_option
from cotenant.cli.output import note, render, table
from cotenant.errors import InputError

if TYPE_CHECKING:
    from cotenant.kube.api.client import Client
    from cotenant.kube.install.helm import Helm
    from cotenant.kube.install.installing import Plan
    from cotenant.kube.install.status import InstallationStatus

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")
VARIABLE = "COTENANT_NAMESPACE"
WAIT_S = 300.0
NOT_READY = 6
INSTALL_EPILOG = """\b
Examples:
  cotenant kube install --wait
  cotenant kube install --values values.yaml --set web.actions=true
  cotenant kube install --set devices.simulate=2 --set devices.memory=16GiB
  cotenant kube install --print > cotenant.yaml
"""
UPGRADE_EPILOG = """\b
Examples:
  cotenant kube upgrade --wait
  cotenant kube upgrade --set scheduler.replicas=3
  cotenant kube upgrade --reset-values --values values.yaml --dry-run
"""
UNINSTALL_EPILOG = """\b
Examples:
  cotenant kube uninstall
  cotenant kube uninstall --purge
"""
STATUS_EPILOG = """\b
Examples:
  cotenant kube status
  cotenant kube status --output json
Exit code: 0 if all pods are ready, 6 otherwise.
"""
DOCTOR_EPILOG = """\b
Example:
  cotenant kube doctor
Exit code: 0 without findings, 6 with warnings only, 7 with errors.
"""


def _choose_namespace(_context: click.Context, _option: click.Parameter, name: str | None) -> None:
    """All modules of the engine read the namespace of the installation from one variable, when they are loaded."""
    if name is None:
        return
    loaded = sys.modules.get("cotenant.kube.api.names")
    if loaded is not None and name != loaded.NAMESPACE:
        raise InputError(f"--namespace {name}: set the variable {VARIABLE} instead")
    os.environ[VARIABLE] = name
    from cotenant.kube.deploy.pods import check_namespace  # not before the variable is set

    check_namespace(name)


def place_options(command: F) -> F:
    """Adds the options that select the cluster and the namespace of the installation."""
    namespace = click.option(
        "--namespace",
        "-n",
        metavar="NAME",
        expose_value=False,
        is_eager=True,
        callback=_choose_namespace,
        help=f"Namespace of the installation. Default: ${VARIABLE}, or cotenant-system.",
    )
    return namespace(kubeconfig_options(command))


def chart_options(command: F) -> F:
    """Adds the options of a change: values, and how it is done."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing."),
        click.option(
            "--timeout",
            type=click.FloatRange(1, 86_400),
            default=WAIT_S,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait.",
        ),
        click.option("--wait", is_flag=True, help="Return when all pods are ready."),
        click.option(
            "--helm/--no-helm", "use_helm", default=None, help="Whether to use helm. Default: if it is on the PATH."
        ),
        click.option(
            "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Set one value, as with helm; repeatable."
        ),
        click.option(
            "--values",
            "-f",
            multiple=True,
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="File with values (YAML); repeatable.",
        ),
        click.option(
            "--settings",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Settings file (YAML): the value `settings` of the chart.",
        ),
    ):
        command = option(command)
    return command


@click.command(epilog=INSTALL_EPILOG, short_help="Installs cotenant in a cluster.")
@place_options
@chart_options
@click.option("--print", "only_print", is_flag=True, help="Print the manifests instead, for `kubectl apply -f -`.")
@click.option(
    "--kube-version",
    metavar="VERSION",
    help="With --print: the version of the cluster, such as 1.34.4. Default: ask it.",
)
@click.option(
    "--output", "-o", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Format of --print."
)
def install(
    only_print: bool,
    kube_version: str | None,
    output: str,
    values: tuple[Path, ...],
    assignments: tuple[str, ...],
    settings: Path | None,
    **options: Any,
) -> None:
    """Installs the chart in a cluster, by helm if it is on the PATH. The reference of the chart lists all values."""
    from cotenant.kube.install.chart import checked_values, merged_values
    from cotenant.kube.install.installing import plan_install, refuse_second

    said = merged_values(values, assignments, settings)
    checked_values(said)
    if kube_version is not None and not only_print:
        raise InputError("--kube-version: only with --print; an installation asks the cluster for its version")
    if only_print:
        print_manifests(_manifests(said, kube_version, options["kubeconfig"], options["context"]), output)
        return

    async def by_helm(client: "Client", helm: "Helm", **how: Any) -> str:
        failed = await refuse_second(client)
        return helm.install(said, again=failed is not None, **how)

    _change(by_helm, lambda client: plan_install(client, said), **options)


@click.command(epilog=UPGRADE_EPILOG, short_help="Upgrades an installation, or changes its values.")
@place_options
@chart_options
@click.option("--reset-values", "reset", is_flag=True, help="Forget the values of before; keep only the defaults.")
def upgrade(
    reset: bool, values: tuple[Path, ...], assignments: tuple[str, ...], settings: Path | None, **options: Any
) -> None:
    """Upgrades an installation to the version of this command, or changes its values. Values that were set before are
    kept."""
    from cotenant.kube.install.chart import merged_values
    from cotenant.kube.install.installing import plan_upgrade, require_release

    said = merged_values(values, assignments, settings)

    async def by_helm(client: "Client", helm: "Helm", **how: Any) -> str:
        release = await require_release(client)
        return replace(helm, release=release.name).upgrade(said, reset=reset, **how)

    _change(by_helm, lambda client: plan_upgrade(client, said, reset=reset), **options)


@click.command(epilog=UNINSTALL_EPILOG, short_help="Removes an installation.")
@place_options
@click.option("--purge", is_flag=True, help="Also remove the custom resource, and with it all measured profiles.")
def uninstall(purge: bool, kubeconfig: Path | None, context: str | None) -> None:
    """Removes an installation, in the way in which it was made. Running pods keep their GPUs and their limits."""
    from cotenant.kube.install.helm import Helm, find_helm
    from cotenant.kube.install.installing import helm_release, remove

    async def work(client: "Client", _namespace: str) -> bool:
        program, release = find_helm(), await helm_release(client)
        if program is None or release is None:
            await remove(client, note, purge=purge)
        else:
            helm = Helm(program=program, release=release.name, kubeconfig=kubeconfig, context=context)
            click.echo(helm.uninstall(has_failed=release.has_failed).strip())
        return True

    in_cluster(work, None, kubeconfig, context)


@click.command(epilog=STATUS_EPILOG, short_help="Shows what is installed in a cluster.")
@place_options
@kube_output_option
def status(kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Shows what is installed, which pods are ready, until when certificates are valid, and the agents of the nodes."""
    from cotenant.kube.install.status import read_status

    async def work(client: "Client", _namespace: str) -> "InstallationStatus":
        return await read_status(client)

    found = in_cluster(work, None, kubeconfig, context)
    render(found, output, lambda wide: _draw(found, wide))
    sys.exit(0 if found.is_ready else NOT_READY)


@click.command(epilog=DOCTOR_EPILOG, short_help="Checks an installation.")
@place_options
@kube_output_option
@click.pass_context
def kube_doctor(context: click.Context, /, **options: Any) -> None:
    """Checks an installation and gives a fix for each finding, as `cotenant doctor --on kubernetes` does."""
    from cotenant.cli.doctor import doctor

    context.invoke(doctor, on="kubernetes", namespace=None, **options)


def _change(
    by_helm: "Callable[..., Coroutine[None, None, str]]",
    plan_of: "Callable[[Client], Coroutine[None, None, Plan]]",
    *,
    kubeconfig: Path | None,
    context: str | None,
    use_helm: bool | None,
    wait: bool,
    timeout: float,
    dry_run: bool,
) -> None:
    from cotenant.kube.install.helm import Helm, find_helm
    from cotenant.kube.install.installing import carry_out, refuse_own, wait_ready

    program = find_helm() if use_helm is not False else None
    if use_helm and program is None:
        raise InputError("--helm: there is no helm on the PATH; without the option, cotenant installs the chart itself")

    async def work(client: "Client", _namespace: str) -> None:
        if program is not None:
            await refuse_own(client)
            helm = Helm(program=program, kubeconfig=kubeconfig, context=context)
            done = await by_helm(client, helm, wait_s=timeout if wait else None, dry_run=dry_run)
            click.echo(done.strip())
            return
        plan = await plan_of(client)
        if dry_run:
            _say_plan(plan)
            return
        await carry_out(client, plan, note)
        if wait:
            await wait_ready(client, plan.objects, timeout, note)

    in_cluster(work, None, kubeconfig, context)


def _say_plan(plan: "Plan") -> None:
    from cotenant.kube.install.kinds import Key

    for one in plan.objects:
        click.echo(f"apply   {Key.of(one)}")
    for key in plan.removed:
        click.echo(f"remove  {key}")


def _manifests(
    said: dict[str, Any], kube_version: str | None, kubeconfig: Path | None, context: str | None
) -> list[dict[str, Any]]:
    from cotenant.kube.api.names import NAMESPACE
    from cotenant.kube.install.chart import (
        ClusterFacts,
        checked_values,
        full_version,
        namespace_object,
        rendered,
        without_removal,
    )
    from cotenant.kube.install.installing import read_cluster

    async def work(client: "Client", _namespace: str) -> ClusterFacts:
        return await read_cluster(client)

    if kube_version is not None:
        facts = ClusterFacts(version=full_version(kube_version))
    else:
        facts = in_cluster(work, None, kubeconfig, context)
    return [namespace_object(), *without_removal(rendered(checked_values(said), facts, NAMESPACE))]


def _draw(found: "InstallationStatus", wide: bool) -> None:
    if found.installed is None:
        click.echo(f"cotenant is not installed in namespace {found.namespace}: `cotenant kube install` installs it")
        return
    click.echo(f"cotenant {found.chart} in namespace {found.namespace}, installed by {found.installed}\n")
    rows = [
        ("WORKLOAD", lambda one: f"{one.kind} {one.name}", False),
        ("READY", lambda one: f"{one.ready}/{one.wanted}", False),
        ("IMAGES", lambda one: ", ".join(one.images), True),
    ]
    click.echo(table(found.workloads, rows, wide))
    click.echo()
    dates = [("CERTIFICATE", lambda one: one.name, False), ("EXPIRES", lambda one: one.expires or "unknown", False)]
    click.echo(table(found.certificates, dates, wide))
    click.echo()
    agents = [
        ("NODE", lambda one: one.node, False),
        ("AGENT", lambda one: one.pod, False),
        ("READY", lambda one: "yes" if one.ready else "no", False),
        ("REPORTS GPUS", lambda one: "yes" if one.reports else "no", False),
    ]
    click.echo(table(found.agents, agents, wide) if found.agents else "no node has an agent")
