# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`--on kubernetes` of the commands for jobs: the same commands for jobs of a cluster."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from cotenant.cli.cluster import cluster_options, in_cluster, print_manifests
from cotenant.cli.output import note
from cotenant.errors import CotenantError, InputError

if TYPE_CHECKING:
    from cotenant.kube.api.client import Client
    from cotenant.kube.api.names import Json
    from cotenant.wire.arrays import Array
    from cotenant.wire.job_views import JobView

F = TypeVar("F", bound=Callable[..., object])
MACHINE, KUBERNETES = "machine", "kubernetes"
POLL_S = 0.5
ONLY_CLUSTER = ("image", "replicas")
"""options of `submit` that have no meaning on one machine"""
ONLY_MACHINE = (
    "batch",
    "batch_range",
    "floor",
    "env_none",
    "cwd",
    "latency",
    "no_revert",
    "time",
    "warn",
    "after",
    "grid",
    "retry_oom",
    "file",
    "notify",
    "interactive",
    "cpus",
    "host_memory",
    "container",
    "volumes",
    "reservation",
)
"""options of `submit` that have no meaning in a cluster"""


class Where(NamedTuple):
    """The cluster and the namespace of a command."""

    namespace: str | None
    kubeconfig: Path | None
    context: str | None = None


def on_option(command: F) -> F:
    """Adds `--on machine|kubernetes`."""
    return click.option(
        "--on",
        type=click.Choice([MACHINE, KUBERNETES]),
        default=MACHINE,
        show_default=True,
        help="Where the job is: on this machine, or in a Kubernetes cluster.",
    )(command)


def on_options(command: F) -> F:
    """Adds --on, and the options that select the cluster and the namespace."""
    return on_option(cluster_options(command))


def given(names: Sequence[str]) -> list[str]:
    """Those options of the present command that its caller gave, as they are written."""
    context = click.get_current_context()
    written = {one.name: max(one.opts, key=len) for one in context.command.params}
    return [
        written[name]
        for name in names
        if name in written and context.get_parameter_source(name) is not ParameterSource.DEFAULT
    ]


def check_on(on: str, cluster: Sequence[str], machine: Sequence[str]) -> None:
    """InputError if an option does not belong to where the job is."""
    if on == MACHINE and (wrong := given(("namespace", "kubeconfig", "context", *cluster))):
        raise InputError(f"{wrong[0]}: needs --on {KUBERNETES}")
    if on == KUBERNETES and (wrong := given(machine)):
        raise InputError(f"{wrong[0]}: has no meaning with --on {KUBERNETES}; leave it out")


def submit(
    where: Where, command: Sequence[str], options: Mapping[str, Any], *, wait: bool, dry_run: bool, output: str
) -> "JobView | None":
    """Creates a Job; returns it, with `wait` when it has ended. With `dry_run` prints it instead."""
    from dataclasses import replace

    from cotenant.kube.deploy import jobs
    from cotenant.kube.deploy.training import job_object
    from cotenant.wire.job_views import ENDED

    request = _request(command, options)
    job = job_object(request)
    if dry_run:
        print_manifests([job], "json" if output == "json" else "yaml")
        return None
    priority = int(options["priority"])

    async def work(client: "Client", namespace: str) -> "JobView":
        import asyncio

        chosen = await jobs.priority_class(client, priority)
        made = job if chosen is None else job_object(replace(request, priority_class=chosen))
        view = await jobs.create(client, namespace, made)
        if output == "table":
            click.echo(view.id)
        try:
            while wait and (view := await jobs.one_job(client, namespace, view.id)).state not in ENDED:
                await asyncio.sleep(POLL_S)
        except asyncio.CancelledError:
            click.echo(f"{view.id} continues; `cotenant cancel --on kubernetes {view.id}` stops it", err=True)
            raise
        return view

    return in_cluster(work, *where)


def _request(command: Sequence[str], options: Mapping[str, Any]) -> Any:
    import secrets

    from cotenant.kube.deploy.pods import parse_variable
    from cotenant.kube.deploy.training import TrainingRequest

    if options["image"] is None:
        raise InputError("--image is missing; name the image in which the command runs")
    same = (
        "image",
        "gpus",
        "memory",
        "compute",
        "mig",
        "isolation",
        "types",
        "exclusive",
        "workload",
        "retries",
        "replicas",
    )
    size, at_most = _pods(options["array"])
    return TrainingRequest(
        name=options["name"] or f"job-{secrets.token_hex(4)}",
        command=tuple(command),
        estimate_s=options["estimate"],
        grace_s=options["grace"],
        variables=dict(map(parse_variable, options["env"])),
        array=size,
        at_most=at_most,
        **{name: options[name] for name in same},
    )


def _pods(array: "Array | None") -> tuple[int | None, int | None]:
    """The number of pods of an array, and how many may run at a time; a Job counts its pods from 0."""
    from cotenant.wire.arrays import index_of, size_of

    if array is None:
        return None, None
    size = size_of(array)
    if index_of(array, size - 1) != size - 1:
        raise InputError(f"--array {array.indexes}: with --on {KUBERNETES}, indexes begin with 0 and follow each other")
    return size, array.at_most


def jobs_of(where: Where, states: Sequence[str], limit: int) -> "list[JobView]":
    """The newest jobs in these states (all if none is given), oldest first."""
    from cotenant.kube.deploy.jobs import jobs
    from cotenant.wire.job_views import described_state

    found = in_cluster(jobs, *where)
    words = set(states)
    chosen = [
        job for job in found if not words or words & {job.state, described_state(job), described_state(job).split()[0]}
    ]
    return chosen[-limit:]


def logs(
    where: Where,
    name: str,
    write: Callable[[bytes], None],
    note: Callable[[str], None],
    *,
    follow: bool,
    tail: int | None,
) -> None:
    """Writes the output of all pods of a job."""
    from cotenant.kube.deploy.jobs import one_job
    from cotenant.kube.deploy.logs import write_logs
    from cotenant.kube.deploy.objects import JOB
    from cotenant.kube.deploy.pods import check_name
    from cotenant.kube.deploy.waiting import pods_of

    check_name(name)

    async def work(client: "Client", namespace: str) -> None:
        view = await one_job(client, namespace, name)
        if view.state == "queued":
            note(f"{name} is queued and has no output yet: {view.reason or 'it waits'}")
            return
        pods = await pods_of(client, namespace, JOB, name)
        if not pods:
            raise CotenantError(f"{name} is {view.state}; its pods are gone, and their output with them")
        await write_logs(client, pods, write, note, follow=follow, tail=tail)

    in_cluster(work, *where)


def wait_for(where: Where, name: str, most_s: float) -> "JobView":
    """The job when it has ended, or as it is after `most_s`."""
    from cotenant.kube.deploy.jobs import one_job
    from cotenant.kube.deploy.pods import check_name
    from cotenant.wire.job_views import ENDED

    check_name(name)

    async def work(client: "Client", namespace: str) -> "JobView":
        import asyncio
        import time

        until = time.monotonic() + most_s
        while (view := await one_job(client, namespace, name)).state not in ENDED and time.monotonic() < until:
            await asyncio.sleep(POLL_S)
        return view

    return in_cluster(work, *where)


def cancel(where: Where, name: str, *, wait: bool) -> "JobView":
    """Cancels one job; with `wait`, returns when its pods have ended."""
    from cotenant.kube.deploy import jobs
    from cotenant.kube.deploy.pods import check_name

    check_name(name)
    return in_cluster(lambda client, namespace: jobs.cancel(client, namespace, name, wait=wait), *where)


def hold(where: Where, name: str) -> "JobView":
    """Holds a job, or `pod/NAME`, in the queue."""
    from cotenant.kube.deploy import holding

    name = _held_name(name)
    return in_cluster(lambda client, namespace: holding.hold(client, namespace, name), *where)


def release(where: Where, name: str) -> "JobView":
    """Lets a held job, or `pod/NAME`, start."""
    from cotenant.kube.deploy import holding

    name = _held_name(name)
    return in_cluster(lambda client, namespace: holding.release(client, namespace, name), *where)


def _held_name(name: str) -> str:
    """The name of a job, or `pod/NAME`."""
    from cotenant.cli.pods import is_pod, pod_name
    from cotenant.kube.deploy.holding import POD
    from cotenant.kube.deploy.pods import check_name

    return f"{POD}{pod_name(name)}" if is_pod(name) else check_name(name)


def details(where: Where, name: str) -> dict[str, Any]:
    """A job with all that is known of it."""
    from cotenant.kube.deploy import again
    from cotenant.kube.deploy.pods import check_name

    check_name(name)
    return in_cluster(lambda client, namespace: again.details(client, namespace, name), *where)


def retry(where: Where, name: str) -> "JobView":
    """Queues a job again after it has ended."""
    from cotenant.kube.deploy import again
    from cotenant.kube.deploy.pods import check_name

    check_name(name)

    def lost(job: "Json") -> None:
        note(f"{name} no longer exists; `kubectl create -f -` with this manifest creates it again:")
        note(json.dumps(job))

    return in_cluster(lambda client, namespace: again.retry(client, namespace, name, lost), *where)


def pod_to_explain(where: Where, name: str) -> str:
    """The pod of a job that waits, or else its newest pod, as `pod/NAME`."""
    from cotenant.kube.deploy.jobs import find
    from cotenant.kube.deploy.objects import JOB
    from cotenant.kube.deploy.pods import check_name
    from cotenant.kube.deploy.waiting import pods_of

    check_name(name)

    async def work(client: "Client", namespace: str) -> str:
        await find(client, namespace, name)
        pods = await pods_of(client, namespace, JOB, name)
        if not pods:
            raise CotenantError(f"{name} has no pods, so there is nothing to explain")
        waiting = [pod for pod in pods if pod.status.phase == "Pending"]
        return f"pod/{(waiting or pods[-1:])[0].metadata.name}"

    return in_cluster(work, *where)
