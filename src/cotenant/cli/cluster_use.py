# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant top --on kubernetes`: the GPU memory of a cluster by node, job or model server."""

import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cotenant.cli import inspect
from cotenant.cli.cluster import in_cluster
from cotenant.cli.output import emit, table
from cotenant.wire.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cotenant.kube.api.client import Client
    from cotenant.kube.inspect.report import ClusterUse

COLUMNS = (
    ("NAME", lambda one: one.name, False),
    ("NAMESPACE", lambda one: one.namespace, False),
    ("PODS", lambda one: str(one.pods), False),
    ("GPUS", lambda one: str(one.gpus), False),
    ("ALLOCATED", lambda one: f"{one.allocated_mib} MiB", False),
    ("NODES", lambda one: ",".join(one.nodes), False),
)

NONE = {"job": "no job has GPUs", "serving": "no model server has GPUs"}


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What the placed pods of a job or of a model server have together."""

    name: str
    namespace: str
    pods: int
    gpus: int
    """Slices of GPUs."""
    allocated_mib: int
    nodes: tuple[str, ...]


def show_cluster(what: str, output: str, namespace: str | None, kubeconfig: Path | None, context: str | None) -> None:
    """Prints the GPU memory of each node, or that of each job or model server of the namespace."""
    seen = inspect.read(None, namespace, kubeconfig, context, None)
    if what == "node":
        inspect.show(seen, output, lambda wide: inspect.memory_summary(seen, "GiB", wide))
    else:
        emit(_uses(seen, what, namespace, kubeconfig, context), output, COLUMNS, NONE[what])


def cluster_screen(what: str, wide: bool, namespace: str | None, kubeconfig: Path | None, context: str | None) -> str:
    """The same as a text with a title, for a table that is redrawn."""
    seen = inspect.read(None, namespace, kubeconfig, context, None)
    gpus = counted(sum(len(node.gpus) for node in seen.nodes), "GPU")
    title = f"{gpus} on {counted(len(seen.nodes), 'node')}, {time.strftime('%H:%M:%S')}"
    if what == "node":
        body = "\n".join(inspect.memory_summary(seen, "GiB", wide)) if seen.nodes else "no node has GPUs"
    else:
        found = _uses(seen, what, namespace, kubeconfig, context)
        body = table(found, COLUMNS, wide) if found else NONE[what]
    return f"{title}\n\n{body}"


def _uses(
    seen: "ClusterUse", what: str, namespace: str | None, kubeconfig: Path | None, context: str | None
) -> list[Use]:
    from cotenant.kube.api.client import Selection
    from cotenant.kube.api.listing import listed
    from cotenant.kube.deploy.objects import JOB, OWN_PODS, SERVING, selector

    label = JOB if what == "job" else SERVING

    async def owners(client: "Client", chosen: str) -> "dict[str, str]":
        found, _ = await listed(client, OWN_PODS, Selection(namespace=chosen, labels=selector(label)))
        return {pod.metadata.uid: pod.metadata.labels[label] for pod in found}

    return uses(seen, in_cluster(owners, namespace, kubeconfig, context))


def uses(seen: "ClusterUse", owners: "Mapping[str, str]") -> list[Use]:
    """What each owner has; `owners` gives the owner of a pod by its UID."""
    found = defaultdict(list)
    for node in seen.nodes:
        for pod in node.pods:
            if pod.uid in owners:
                found[pod.namespace, owners[pod.uid]].append((node.name, pod))
    return [
        Use(
            name=name,
            namespace=namespace,
            pods=len(pods),
            gpus=sum(len(pod.assigned) for _, pod in pods),
            allocated_mib=sum(part.memory_mib for _, pod in pods for part in pod.assigned),
            nodes=tuple(sorted({node for node, _ in pods})),
        )
        for (namespace, name), pods in sorted(found.items())
    ]
