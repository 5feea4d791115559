# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Many jobs of one command: a planned benchmark task as a Job, and the states of all jobs of a run, kept up to date by
watches."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import NOT_FOUND, ApiError
from cotenant.kube.api.listing import listed
from cotenant.kube.api.names import Json
from cotenant.kube.api.reflector import Pace, Reflector
from cotenant.kube.codec.assignment import RECORD, decode_record
from cotenant.kube.deploy import jobs
from cotenant.kube.deploy.jobs import JOBS, Job
from cotenant.kube.deploy.objects import JOB, OWN_PODS, RUN, OwnPod, selector
from cotenant.kube.deploy.pods import Volume
from cotenant.kube.deploy.training import TrainingRequest
from cotenant.kube.deploy.waiting import permanent_obstacle
from cotenant.wire.job_views import ENDED, JobView
from cotenant.workloads.datasets import FOLDERS
from cotenant.workloads.generator import PlannedJob
from cotenant.workloads.registry import TASKS

PYTHON = "python3"
DATA = "/data"
"""Folder at which a job reads the volume with the data sets."""
IMAGE_USER = 65532
"""User and group of the image `cotenant-workloads`."""
GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL; tasks exit within a second of a signal."""
FIRST_LIST_S = 15.0
"""After so many seconds without a complete list, an error such as a missing right is not expected to pass."""
SILENT_S = 120.0
"""Without any response of the API server for this long, a run gives up; its jobs continue."""
GONE_S = 120.0
"""How long the pods of deleted jobs may take to end."""
EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What all jobs of a run have in common."""

    image: str
    run: str | None = None
    """Name of the run; it ends the name of each job. None: the jobs belong to no run."""
    policy: str | None = None
    exclusive: bool = False
    """Whether each job gets GPUs of its own, with the batch size that it has."""
    compute: bool = False
    """Whether jobs also request the compute share that their tasks use alone."""
    claim: str | None = None
    """PersistentVolumeClaim with the data sets; None: tasks make their samples themselves."""


def request_of(planned: PlannedJob, options: BatchOptions) -> TrainingRequest:
    """Return the request for a planned job."""
    reads = TASKS[planned.task].folder if options.claim else None
    data = () if reads is None else ("--data", f"{DATA}/{FOLDERS[reads]}")
    return TrainingRequest(
        # Jobs that have ended remain in the namespace, so the name alone would not be unique.
        name="-".join(filter(None, (planned.name.replace("_", "-"), options.run))),
        image=options.image,
        command=(PYTHON, *planned.argv, *data),
        memory=f"{planned.memory}MiB",
        compute=f"{planned.compute // 10}%" if options.compute else None,
        exclusive=options.exclusive,
        workload=planned.task,
        policy=options.policy,
        tune=not options.exclusive,
        grace_s=GRACE_S,
        volumes=() if options.claim is None or reads is None else (Volume(options.claim, DATA),),
        run=options.run,
    )


def preparation(claim: str, image: str, size: str, run: str | None = None) -> TrainingRequest:
    """Return the request for the job that writes the data sets to a volume; it needs no GPU."""
    return TrainingRequest(
        name="-".join(filter(None, ("prepare-data", run))),
        image=image,
        command=(PYTHON, "-P", "-m", "cotenant", "workloads", "prepare", "--out", DATA, "--size", size),
        gpus=0,
        retries=2,
        grace_s=GRACE_S,
        volumes=(Volume(claim, DATA, writable=True),),
        group=IMAGE_USER,
        run=run,
    )


class Batch:
    """The jobs of one run. Its views follow the cluster while its `followers` run."""

    def __init__(self, client: Client, namespace: str, run: str) -> None:
        self.views: dict[str, JobView] = {}
        """Job name -> its last known state, for every job that was submitted."""
        self.places: dict[str, tuple[str, tuple[str, ...]]] = {}
        """Job name -> node and UUIDs of the GPUs that it has or had."""
        self._client, self._namespace = client, namespace
        self._pods: dict[str, dict[str, OwnPod]] = defaultdict(dict)
        self._changed: set[str] = set()
        self._seen: set[str] = set()
        """Names of the jobs that the watch of Jobs has shown; it may do so after the watch of pods."""
        which = Selection(namespace=namespace, labels=f"{selector(JOB)},{RUN}={run}")
        pace = Pace(watches_s=0.2, lists_s=1.0)
        self._error, self._began = "", time.monotonic()
        report = self._failed
        self._jobs = Reflector(client, JOBS, self._job_changed, which, pace=pace, report=report)
        self._own_pods = Reflector(client, OWN_PODS, self._pod_changed, which, pace=pace, report=report)

    def followers(self) -> tuple[Coroutine[None, None, object], ...]:
        """Return what must run to keep the views up to date."""
        return self._jobs.run(), self._own_pods.run()

    def _failed(self, error: str) -> None:
        self._error = error

    async def create(self, job: Json) -> JobView:
        """Create a Job, which must have the label of the run."""
        view = await jobs.create(self._client, self._namespace, job)
        self.views.setdefault(view.id, view)
        return self.views[view.id]

    def changed(self) -> list[JobView]:
        """Return the jobs that have changed since the last call; CotenantError if one of them can never start, or if
        the API server is silent."""
        synced = self._jobs.synced.is_set() and self._own_pods.synced.is_set()
        if not synced and self._error and time.monotonic() > self._began + FIRST_LIST_S:
            raise CotenantError(f"the jobs of this run cannot be followed: {self._error}")
        if synced and max(self._jobs.silence_s(), self._own_pods.silence_s()) > SILENT_S:
            raise CotenantError(
                f"the API server has not answered for {SILENT_S:g} s; the jobs continue, and "
                "`cotenant jobs --on kubernetes` lists them"
            )
        # A job may be seen before its creation is answered, and its pod before the job: they stay for the next call.
        names = self._changed & self.views.keys() & self._seen
        self._changed -= names
        found = self._jobs.objects
        for name in names:
            job = found.get((self._namespace, name))
            self.views[name] = _deleted(self.views[name]) if job is None else self._view(job)
            if obstacle := permanent_obstacle(self._pods[name].values()):
                raise CotenantError(f"{name} cannot start: {obstacle.text}")
        return [self.views[name] for name in names]

    async def last_lines(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the result that each of these jobs printed as its last line; empty if it printed none."""

        async def one(name: str) -> dict[str, Any]:
            for pod in reversed(self._pods[name].values()):
                try:
                    log = self._client.log(pod.metadata.name, namespace=self._namespace, tail=1)
                    return msgspec.json.decode(b"".join([piece async for piece in log]), type=dict[str, Any])
                except (ApiError, msgspec.MsgspecError):
                    continue
            return {}

        return [await one(name) for name in names]

    def _view(self, job: Job) -> JobView:
        view = jobs.view_of(job, tuple(self._pods[job.metadata.name].values()))
        before = self.views[view.id]
        # The pods of an ended job may be gone already, and with them the time of its start.
        started = view.started or before.started
        ended = view.ended or before.ended or (time.time() if view.state in ENDED else None)
        return msgspec.structs.replace(view, started=started, ended=ended)

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        names = {one.metadata.name for one in (old, new) if one is not None}
        self._seen |= names
        self._changed |= names

    def _pod_changed(self, old: OwnPod | None, new: OwnPod | None) -> None:
        one = new or old
        assert one is not None
        job = one.metadata.labels.get(JOB, "")
        if new is None:
            self._pods[job].pop(one.metadata.name, None)
        else:
            self._pods[job][one.metadata.name] = new
            if place := _place(new):
                self.places[job] = place
        self._changed.add(job)


def _place(pod: OwnPod) -> tuple[str, tuple[str, ...]] | None:
    text = pod.metadata.annotations.get(RECORD)
    if text is None:
        return None
    try:
        record = decode_record(text)
    except InputError:
        return None
    return record.node, tuple(share.gpu for held in record.containers for share in held.gpus)


def _deleted(view: JobView) -> JobView:
    """Return the view of a job whose Job object was deleted."""
    if view.state in ENDED:
        return view
    return msgspec.structs.replace(view, state="lost", ended=time.time(), error="its Job was deleted")


async def cancel(client: Client, namespace: str, names: Iterable[str]) -> None:
    """Cancel those of the jobs that have not ended; do not wait for their pods."""

    async def one(name: str) -> None:
        try:
            await jobs.cancel(client, namespace, name, wait=False)
        except CotenantError:
            return  # it has ended or is gone

    await asyncio.gather(*map(one, names))


async def delete(client: Client, namespace: str, run: str) -> None:
    """Delete all Jobs of a run, and return when their pods are gone; CotenantError if that takes too long."""
    which = Selection(namespace=namespace, labels=f"{selector(JOB)},{RUN}={run}")

    async def one(job: Job) -> None:
        try:
            about = job.metadata
            await client.delete(JOBS, about.name, namespace=namespace, uid=about.uid, cascade="Background")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    await asyncio.gather(*map(one, (await listed(client, JOBS, which))[0]))
    until = time.monotonic() + GONE_S
    while (await listed(client, OWN_PODS, which))[0]:
        if time.monotonic() > until:
            raise CotenantError(
                f"pods of deleted jobs have not ended after {GONE_S:g} s: "
                f"`kubectl get pods -n {namespace} -l {RUN}={run}` lists them"
            )
        await asyncio.sleep(EVERY_S)
