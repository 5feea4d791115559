# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Creates, lists and cancels the jobs of users in a cluster, in the words of a job on one machine."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import CONFLICT, NOT_FOUND, ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import Json
from cotenant.kube.api.objects import Condition
from cotenant.kube.codec.queueing import hold_of
from cotenant.kube.deploy.objects import (
    CANCELLED,
    JOB,
    OWN_PODS,
    About,
    OwnPod,
    Terminated,
    belongs,
    condition_of,
    seconds,
    selector,
)
from cotenant.kube.deploy.session import NoSuchObjectError
from cotenant.kube.deploy.waiting import first_obstacle, pods_of
from cotenant.wire.job_views import JobView

EVERY_S = 0.5
MARGIN_S = 60.0
"""beyond the grace period, that the pods of a cancelled job may take to end"""
KILLED = 128
"""A container that a signal ended has this exit code plus the number of the signal."""


class JobCondition(Condition, frozen=True, kw_only=True, rename="camel"):
    """A condition of a Job, with the time of its last change."""

    last_transition_time: str | None = None


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Status of a Job."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    completion_time: str | None = None
    conditions: tuple[JobCondition, ...] = ()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A Job."""

    metadata: About = About()
    spec: dict[str, Any] = {}
    status: JobStatus = JobStatus()


class PriorityClass(msgspec.Struct, frozen=True, kw_only=True):
    """A PriorityClass."""

    metadata: About = About()
    value: int = 0


JOBS = Kind("jobs", Job, group="apis/batch/v1")
PRIORITIES = Kind("priorityclasses", PriorityClass, group="apis/scheduling.k8s.io/v1", cluster_wide=True)


async def priority_class(client: Client, priority: int) -> str | None:
    """Return the name of the PriorityClass with this value; None for 0, InputError if there is none."""
    if priority == 0:
        return None
    found, _ = await listed(client, PRIORITIES)
    names = {one.value: one.metadata.name for one in found}
    if priority not in names:
        known = ", ".join(map(str, sorted(names)))
        raise InputError(f"--priority {priority}: the cluster has no PriorityClass of this value; it has {known}")
    return names[priority]


async def create(client: Client, namespace: str, job: Json) -> JobView:
    """Create a Job, and return it as a job that is queued."""
    name = job["metadata"]["name"]
    try:
        return view_of(await client.create(JOBS, job, namespace=namespace), ())
    except ApiError as error:
        if error.status != CONFLICT:
            raise
        raise InputError(f"--name {name}: namespace {namespace} already has a Job of this name") from None


async def jobs(client: Client, namespace: str) -> list[JobView]:
    """Return all jobs of a namespace that our commands created, oldest first, with the reasons why they wait."""
    which = Selection(namespace=namespace, labels=selector(JOB))
    (found, _), (pods, _) = await listed(client, JOBS, which), await listed(client, OWN_PODS, which)
    by_job: dict[str, list[OwnPod]] = defaultdict(list)
    for pod in pods:
        by_job[pod.metadata.labels[JOB]].append(pod)
    views = [await _explained(client, view_of(job, own), own) for job, own in _joined(found, by_job)]
    return sorted(views, key=lambda view: (view.submitted, view.id))


def _joined(found: Sequence[Job], by_job: dict[str, list[OwnPod]]) -> list[tuple[Job, list[OwnPod]]]:
    return [(job, by_job.get(job.metadata.name, [])) for job in found]


async def one_job(client: Client, namespace: str, name: str) -> JobView:
    """Return a job; NoSuchObjectError if there is none of ours."""
    job = await find(client, namespace, name)
    pods = await pods_of(client, namespace, JOB, name)
    return await _explained(client, view_of(job, pods), pods)


async def find(client: Client, namespace: str, name: str) -> Job:
    """Return the Job of this name; NoSuchObjectError if there is none of ours."""
    try:
        found = await client.get(JOBS, name, namespace=namespace)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise NoSuchObjectError(
            f"no job {name} in namespace {namespace}; see `cotenant jobs --on kubernetes`"
        ) from None
    if not belongs(found.metadata.labels, JOB, name):
        raise NoSuchObjectError(f"Job {name} in namespace {namespace} was not created by `cotenant submit`")
    return found


async def cancel(client: Client, namespace: str, name: str, *, wait: bool) -> JobView:
    """Suspend a Job, so that the cluster ends its pods, and mark it as cancelled; an ended job is refused.

    With `wait`, return when its pods are gone; CotenantError if that takes longer than their grace period allows.
    """
    job = await find(client, namespace, name)
    pods = await pods_of(client, namespace, JOB, name)
    view = view_of(job, pods)
    if view.state in ("finished", "cancelled"):
        raise CotenantError(f"{name} is already {view.state}; it was not cancelled")
    patch = {"metadata": {"labels": {CANCELLED: "true"}}, "spec": {"suspend": True}}
    changed = await client.patch(JOBS, name, patch, namespace=namespace)
    grace = job.spec.get("template", {}).get("spec", {}).get("terminationGracePeriodSeconds", 30)
    until = time.monotonic() + grace + MARGIN_S
    while wait and await pods_of(client, namespace, JOB, name):
        if time.monotonic() > until:
            raise CotenantError(f"{name} is cancelled, but its pods have not ended after {grace + MARGIN_S:g} s")
        await asyncio.sleep(EVERY_S)
    return msgspec.structs.replace(view_of(changed, pods), ended=time.time())


async def _explained(client: Client, view: JobView, pods: Sequence[OwnPod]) -> JobView:
    """Return the view with the sentence why it waits."""
    if view.state != "queued":
        return view
    pending = [pod for pod in pods if pod.status.phase == "Pending"]
    obstacle = await first_obstacle(client, pending)
    held = any(hold_of(pod) is not None for pod in pending)
    return view if obstacle is None else msgspec.structs.replace(view, reason=obstacle.text, held=held)


def view_of(job: Job, pods: Sequence[OwnPod]) -> JobView:
    """Return a Job and its pods in the words of a job on one machine."""
    about, status = job.metadata, job.status
    begun = [stamp for pod in pods if (stamp := _started(pod)) is not None]
    outcome, code, signal, error = None, None, None, None
    ended = seconds(status.completion_time)
    if CANCELLED in about.labels:
        state = "cancelled"
    elif (done := _condition(job, "Complete")) is not None:
        state, outcome, code = "finished", "exited", 0
        ended = ended or seconds(done.last_transition_time)
    elif (failed := _condition(job, "Failed")) is not None:
        state, error, ended = "finished", failed.message or failed.reason, seconds(failed.last_transition_time)
        outcome, code, signal = _outcome(pods)
    elif any(pod.status.phase == "Running" for pod in pods):
        state = "running"
    else:
        state = "starting" if any(_is_placed(pod) for pod in pods) else "queued"
    return JobView(
        id=about.name,
        name=about.name,
        state=state,
        submitted=seconds(about.creation_timestamp) or 0.0,
        started=min(begun, default=None),
        ended=ended,
        outcome=outcome,
        code=code,
        signal=signal,
        error=error,
        attempts=status.failed + (1 if status.active or status.succeeded else 0),
        reason=_progress(job),
    )


def _progress(job: Job) -> str | None:
    """Return how many pods of an array or a gang are in which state."""
    count, status = job.spec.get("completions", 1), job.status
    if count == 1 or CANCELLED in job.metadata.labels:
        return None
    return f"{status.succeeded} of {count} pods done, {status.active} active, {status.failed} failed"


def _condition(job: Job, kind: str) -> JobCondition | None:
    return next((one for one in job.status.conditions if (one.type, one.status) == (kind, "True")), None)


def _is_placed(pod: OwnPod) -> bool:
    placed = condition_of(pod.status.conditions, "PodScheduled")
    return placed is not None and placed.status == "True"


def _started(pod: OwnPod) -> float | None:
    for one in pod.status.container_statuses:
        if begun := one.state.running or one.state.terminated:
            return seconds(begun.started_at)
    return None


def _outcome(pods: Sequence[OwnPod]) -> tuple[str, int | None, int | None]:
    """Return outcome, exit code and signal of the pod that failed last."""
    ends = [one.state.terminated for pod in pods for one in pod.status.container_statuses]
    failed = [one for one in ends if isinstance(one, Terminated) and one.exit_code]
    if not failed:
        return "exited", None, None
    last = max(failed, key=lambda one: one.finished_at or "")
    if last.reason == "OOMKilled":
        return "out-of-memory", last.exit_code, None
    if last.exit_code > KILLED:
        return "signalled", None, last.exit_code - KILLED
    return "exited", last.exit_code, None
