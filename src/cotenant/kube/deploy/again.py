# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job of a cluster in all details, and once more after it has ended."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import NOT_FOUND, ApiError
from cotenant.kube.api.names import Json
from cotenant.kube.codec.assignment import RECORD, decode_record
from cotenant.kube.deploy.jobs import EVERY_S, JOBS, MARGIN_S, Job, find, view_of
from cotenant.kube.deploy.objects import CANCELLED, JOB, OwnPod, labelled
from cotenant.kube.deploy.waiting import pods_of
from cotenant.wire.job_views import ENDED, JobView

_OF_THE_CLUSTER = ("controller-uid", "job-name")
"""Labels that the cluster gives to the pods of a Job; a copy may not have them."""


async def details(client: Client, namespace: str, name: str) -> dict[str, Any]:
    """Return a job in the words of one machine, with its pods and their GPUs; NoSuchObjectError if there is none."""
    job, pods = await find(client, namespace, name), await pods_of(client, namespace, JOB, name)
    view = view_of(job, pods)
    template = job.spec.get("template", {})
    main: Json = next(iter(template.get("spec", {}).get("containers", [])), {})
    return {
        **msgspec.to_builtins(view),
        "namespace": namespace,
        "request": {
            "command": [word.replace("$$", "$") for word in main.get("command", [])],
            "image": main.get("image", ""),
            "limits": main.get("resources", {}).get("limits", {}),
            "annotations": template.get("metadata", {}).get("annotations", {}),
            "retries": job.spec.get("backoffLimit", 0),
        },
        "pods": [_pod(pod) for pod in pods],
    }


def _pod(pod: OwnPod) -> dict[str, Any]:
    codes = [one.state.terminated.exit_code for one in pod.status.container_statuses if one.state.terminated]
    return {
        "pod": pod.metadata.name,
        "state": pod.status.phase.lower(),
        "node": pod.spec.node_name,
        "gpus": " ".join(_gpus(pod)),
        "code": codes[0] if codes else None,
    }


def _gpus(pod: OwnPod) -> Iterator[str]:
    """Yield each GPU of a pod with its memory; none if its assignment cannot be read."""
    text = pod.metadata.annotations.get(RECORD)
    try:
        record = None if text is None else decode_record(text)
    except InputError:
        return
    for held in () if record is None else record.containers:
        for share in held.gpus:
            yield f"{share.gpu}:{share.memory}MiB"


async def retry(client: Client, namespace: str, name: str, lost: Callable[[Json], object]) -> JobView:
    """Queue a job again after it has ended; CotenantError if it has not.

    A cancelled Job goes on. Any other is replaced by a copy, since Kubernetes runs no Job twice. If the old one was
    deleted and the copy could not be created, for whatever reason, `lost` is called with the copy.
    """
    job = await find(client, namespace, name)
    view = view_of(job, await pods_of(client, namespace, JOB, name))
    if view.state not in ENDED:
        raise CotenantError(f"{name} is {view.state}; only a job that has ended is run again")
    if view.state == "cancelled":
        patch = {"metadata": {"labels": {CANCELLED: None}}, "spec": {"suspend": False}}
        return view_of(await client.patch(JOBS, name, patch, namespace=namespace), ())
    copy = copy_of(job)
    await client.delete(JOBS, name, namespace=namespace, uid=job.metadata.uid, cascade="Foreground")
    try:
        await _gone(client, namespace, job)
        return view_of(await client.create(JOBS, copy, namespace=namespace), ())
    except ApiError as error:
        lost(copy)
        raise CotenantError(f"{name} was deleted and could not be created again: {error}") from None
    except BaseException:  # an interrupt, too
        lost(copy)
        raise


def copy_of(job: Job) -> Json:
    """Return a Job with the same spec, without what the cluster added to it."""
    spec = {key: value for key, value in job.spec.items() if key not in ("selector", "manualSelector", "suspend")}
    template = dict(spec["template"])
    metadata = dict(template.get("metadata") or {})
    labels = metadata.get("labels") or {}
    metadata["labels"] = {key: value for key, value in labels.items() if key.rpartition("/")[2] not in _OF_THE_CLUSTER}
    spec["template"] = {**template, "metadata": metadata}
    own = {key: value for key, value in job.metadata.labels.items() if key.rpartition("/")[2] not in _OF_THE_CLUSTER}
    return labelled("Job", "batch/v1", job.metadata.name, JOB, spec, **own)


async def _gone(client: Client, namespace: str, job: Job) -> None:
    """Wait until a Job that was deleted is gone, with its pods."""
    until = time.monotonic() + MARGIN_S
    while True:
        try:
            found = await client.get(JOBS, job.metadata.name, namespace=namespace)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return
            raise
        if found.metadata.uid != job.metadata.uid:
            return
        if time.monotonic() > until:
            raise CotenantError(f"{job.metadata.name}: its old pods have not ended after {MARGIN_S:g} s")
        await asyncio.sleep(EVERY_S)
