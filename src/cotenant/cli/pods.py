# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods of a cluster, which `cotenant why pod/NAME` and `cotenant show pod/NAME` ask the scheduler about."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from cotenant.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cotenant.kube.scheduler.why import TenantView, WhyPod

F = TypeVar("F", bound="Callable[..., object]")

PREFIXES = ("pod/", "pods/")
"""of a pod's name, as in kubectl; job names contain no slash"""
STATES = {
    "waiting": "is pending",
    "placing": "is being placed",
    "placed": "is placed",
    "ended": "has ended",
    "elsewhere": "is not managed by cotenant",
}


def pod_options(command: F) -> F:
    """The options that select the cluster and the namespace of a pod."""
    kubeconfig = click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="For a pod: the kubeconfig file. Default: as kubectl finds it.",
    )
    namespace = click.option(
        "--namespace", "-n", metavar="NAME", help="Namespace of the pod. Default: that of the kubeconfig."
    )
    return namespace(kubeconfig(command))


def is_pod(name: str) -> bool:
    return name.startswith(PREFIXES)


def pod_name(name: str) -> str:
    """The name of a pod that is given as pod/NAME."""
    pod = name.partition("/")[2]
    if not pod or "/" in pod:
        raise InputError(f"pod/{pod[:80]}: expected pod/NAME; give the namespace with -n")
    return pod


def ask_about_pod(name: str, namespace: str | None, kubeconfig: Path | None) -> "WhyPod":
    """The scheduler's answer about a pod, given as pod/NAME, through the API server."""
    import asyncio
    import os

    from cotenant.kube.api.access import find_access
    from cotenant.kube.scheduler.why import ask_scheduler

    pod = pod_name(name)
    access = find_access(os.environ, kubeconfig)
    return asyncio.run(ask_scheduler(access, namespace or access.namespace, pod))


def speed_line(tenant: "TenantView") -> str:
    """The predicted and the measured speed of one of the pods that share a GPU."""
    from cotenant.cli.output import or_dash

    expected, measured = (or_dash(value, "{:.0%}") for value in (tenant.predicted, tenant.measured))
    workload = "no workload named" if tenant.workload is None else tenant.workload
    return f"{tenant.pod} ({workload}): predicted {expected}, measured {measured} of its speed alone"


def pod_details(answer: "WhyPod") -> "Iterator[str]":
    """`field  value` lines about a pod; the pods that share its GPU follow as a table."""
    from cotenant.cli.output import aligned, or_dash

    fields = {
        "pod": f"{answer.metadata.namespace}/{answer.metadata.name}",
        "uid": answer.metadata.uid,
        "state": answer.state,
        "policy": answer.policy,
        "node": answer.node,
        "isolation": answer.isolation,
        "reason": answer.reason,
    }
    rows = [[name, value] for name, value in fields.items() if value]
    for share in answer.gpus:
        compute = f", {share.compute_percent:g}% of its compute" if share.compute_percent else ""
        if share.limit_percent:
            compute = f", at most {share.limit_percent:g}% of its compute beside a server with a latency objective"
        if share.compute_limit_percent:
            compute += f" (at most {share.compute_limit_percent:g}%)"
        memory = f"{share.memory_mib} MiB" + f" (at most {share.memory_limit_mib} MiB)" * bool(share.memory_limit_mib)
        rows.append(["gpu", f"{share.gpu}: {memory}{compute}, container {share.container}"])
    if answer.latency is not None:
        about = answer.latency
        held = "held" if about.held else "missed"
        text = f"p{about.percentile} is {about.latency_ms:.4g} ms, the objective is {about.objective_ms:g} ms: {held}"
        rows.append(["latency", text])
    rows += [["note", note] for note in answer.notes]
    yield from aligned(rows)
    if answer.tenants:
        yield ""
        yield "tenants of its GPU:"
        table = [["POD", "WORKLOAD", "BATCH", "TUNED", "SAMPLES/S", "MEASURED", "PREDICTED"]]
        for one in answer.tenants:
            speeds = (or_dash(value, "{:.0%}") for value in (one.measured, one.predicted))
            tuned = "-" if one.batch is None else "yes" if one.tuned else "no"
            rate = or_dash(one.samples_per_second, "{:.4g}")
            table.append([one.pod, one.workload or "-", str(one.batch or "-"), tuned, rate, *speeds])
        yield from (f"  {line}" for line in aligned(table))
