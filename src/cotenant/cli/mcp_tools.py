# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tools of `cotenant mcp`: plain functions that ask the daemon or a cluster and answer with JSON of bounded size.

Only tools in `ACTIONS` change anything; the server has them only if they are enabled.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import Field

from cotenant.cli.cluster_jobs import KUBERNETES, MACHINE
from cotenant.cli.pods import is_pod
from cotenant.client.client import Client, encoded
from cotenant.client.http import at
from cotenant.client.requests import environment
from cotenant.errors import CotenantError, InputError
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView, decode_states
from cotenant.wire.machine import GpuView

MOST_BYTES = 64 * 1024
"""of one answer"""
MOST_JOBS = 200

JobName = Annotated[str, Field(max_length=200, description="ID such as j-000017, or name; on a cluster pod/NAME")]
States = Annotated[str, Field(max_length=200, description="such as queued,running or failed; empty: all")]
Newest = Annotated[int, Field(ge=1, le=MOST_JOBS, description="newest jobs")]
Hours = Annotated[float, Field(gt=0, le=24 * 365, description="hours until now")]


def bounded(value: object) -> str:
    """JSON of at most `MOST_BYTES`; of a longer list as many entries as fit, and how many are left out."""
    text = msgspec.json.encode(value, order="deterministic").decode()
    if len(text.encode()) <= MOST_BYTES:
        return text
    if not isinstance(value, list):
        raise CotenantError(f"the answer is larger than {MOST_BYTES} bytes; ask for less")
    kept = list(value)
    while kept and len(text.encode()) > MOST_BYTES - 200:
        kept = kept[: len(kept) * 3 // 4]
        text = msgspec.json.encode({"left_out": len(value) - len(kept), "entries": kept}).decode()
    return text


def gpus() -> str:
    """Lists the GPUs of this machine: type, memory and compute that are free, utilisation, health, tenants."""
    return bounded(Client().get("/v1/gpus", list[GpuView]))


def status() -> str:
    """Shows the daemon of this machine: version, policy, number of GPUs, of running and of queued jobs."""
    return bounded(Client().get("/v1/status", dict[str, Any]))


def jobs(
    state: States = "",
    limit: Newest = 50,
) -> str:
    """Lists jobs of this machine, oldest first: state, GPUs, why each waits, speed against running alone."""
    states = ",".join(decode_states(state))
    return bounded(Client().get(f"/v1/jobs?state={at(states)}&limit={limit}", list[JobView]))


def job(name: JobName) -> str:
    """Shows all details of one job of this machine; values of its environment are hidden."""
    return bounded(Client().get(f"/v1/jobs/{at(name)}", JobView))


def log(name: JobName, lines: Annotated[int, Field(ge=1, le=500)] = 50) -> str:
    """Shows the last lines that a job of this machine wrote."""
    chunks = Client().lines(f"/v1/jobs/{at(name)}/log?tail={lines}")
    text = b"".join(chunks).decode(errors="replace")
    return text[-MOST_BYTES // 4 :]


def history(
    kind: Annotated[str, Field(description="gpu, tenant or queue")] = "gpu",
    quantity: Annotated[str, Field(max_length=60, description="such as utilisation, tenants, speed, waiting")] = (
        "utilisation"
    ),
    hours: Hours = 24.0,
    points: Annotated[int, Field(ge=1, le=50)] = 12,
) -> str:
    """Shows a quantity of all GPUs, tenants or the queue of this machine over time: [time, mean, highest] by name."""
    import time

    since = int(time.time() - 3600 * hours)
    path = f"/v1/history?kind={at(kind)}&quantity={at(quantity)}&since={since}&points={points}"
    return bounded(Client().get(path, dict[str, Any]))


class Explainer:
    """Tools that work on this machine and on a cluster."""

    def __init__(self, on: str, namespace: str | None, kubeconfig: Path | None) -> None:
        self._on, self._namespace, self._kubeconfig = on, namespace, kubeconfig

    def why(self, name: JobName) -> str:
        """Explains why a job or a pod waits, why it was placed where it is, what would make it fit, or how it ended."""
        if self._on == KUBERNETES or is_pod(name):
            from cotenant.cli.pods import ask_about_pod

            pod = name if is_pod(name) else f"pod/{name}"
            return bounded(ask_about_pod(pod, self._namespace, self._kubeconfig))
        return bounded(Client().get(f"/v1/jobs/{at(name)}/why", dict[str, Any]))

    def report(self, hours: Hours = 24.0) -> str:
        """Reports use, sharing, waits, slowdowns and GPU-hours saved, for all jobs and by user, team, namespace."""
        from cotenant.cli.report import day_report

        return bounded(day_report(3600 * hours, None, self._on, self._namespace, self._kubeconfig))

    def what_if(
        self,
        gpus: Annotated[int, Field(ge=0, le=1024)] = 1,
        memory: Annotated[str | None, Field(max_length=40, description="on each GPU, such as 4GiB or 50%")] = None,
        compute: Annotated[str | None, Field(max_length=40, description="share of each GPU, such as 30%")] = None,
        workload: Annotated[str | None, Field(max_length=200, description="by which speeds are predicted")] = None,
        exclusive: bool = False,
    ) -> str:
        """Shows where a job would go now, and how slow it and its neighbours would get. Nothing is submitted."""
        from cotenant.cli.whatif import ask_cluster, ask_daemon

        wanted = {"gpus": gpus, "memory": memory, "compute": compute, "workload": workload, "exclusive": exclusive}
        if self._on == KUBERNETES:
            return bounded(ask_cluster(self._namespace, self._kubeconfig, **wanted))
        return bounded(ask_daemon(**wanted))


class ClusterTools(Explainer):
    """Tools about a cluster, under the names of those about this machine."""

    def gpus(self) -> str:
        """Lists the nodes of the cluster that have GPUs: each GPU with its memory, what is assigned, and its pods."""
        from cotenant.cli import inspect

        return bounded(list(inspect.read(None, self._namespace, self._kubeconfig, None, None).nodes))

    def jobs(self, state: States = "", limit: Newest = 50) -> str:
        """Lists jobs of the namespace that were submitted with cotenant, oldest first: state, pods, why each waits."""
        from cotenant.cli.cluster_jobs import Where, jobs_of

        words = [word for word in state.split(",") if word]
        return bounded(jobs_of(Where(self._namespace, self._kubeconfig), words, limit))


def submit(
    command: Annotated[list[str], Field(min_length=1, max_length=1000, description="program and its arguments")],
    memory: Annotated[str | None, Field(max_length=40, description="on each GPU, such as 4GiB")] = None,
    compute: Annotated[str | None, Field(max_length=40, description="share of each GPU, such as 30%")] = None,
    gpus: Annotated[int, Field(ge=0, le=1024)] = 1,
    name: Annotated[str | None, Field(max_length=100)] = None,
    folder: Annotated[str | None, Field(max_length=4096, description="where it runs; an absolute path")] = None,
) -> str:
    """Queues a command on this machine, as the user of this server and without a shell."""
    request = JobRequest(
        command=tuple(command),
        cwd=folder or os.getcwd(),
        env=environment(()),
        memory=memory,
        compute=compute,
        gpus=gpus,
        name=name,
    )
    return bounded(Client().post("/v1/jobs", JobView, encoded(request)))


def cancel(name: JobName) -> str:
    """Stops a running job of this machine, or removes a queued one."""
    return bounded(Client().post(f"/v1/jobs/{at(name)}/cancel", JobView))


Tool = Callable[..., str]
ACTIONS: tuple[Tool, ...] = (submit, cancel)


def tools(on: str, namespace: str | None, kubeconfig: Path | None, *, actions: bool) -> tuple[list[Tool], list[Tool]]:
    """The tools that read, and those that act."""
    if on == KUBERNETES:
        if actions:
            raise InputError(f"--allow-actions is for --on {MACHINE}: a cluster is only read")
        cluster = ClusterTools(on, namespace, kubeconfig)
        return [cluster.gpus, cluster.jobs, cluster.why, cluster.report, cluster.what_if], []
    here = Explainer(on, namespace, kubeconfig)
    reading: list[Tool] = [status, gpus, jobs, job, log, history, here.why, here.report, here.what_if]
    return reading, list(ACTIONS) if actions else []
