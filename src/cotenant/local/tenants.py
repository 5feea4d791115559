# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tenants of this machine: jobs that hold a slot, and the cluster value that the core decides on."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cotenant.core.cluster import Cluster
from cotenant.core.footprint import memory_on
from cotenant.core.model import Demand, Gpus, Job, Machine, Placement, Slot
from cotenant.core.queueing.backfill import Ends
from cotenant.core.units import MiB, MilliGpu, Seconds
from cotenant.local.run_files import read_json
from cotenant.local.runs import Runs
from cotenant.node.devices.backend import Running
from cotenant.signals import Signal
from cotenant.wire.job_requests import JobRequest, command_digest
from cotenant.wire.profile import WorkloadId, workload_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """One run of a job on its GPUs."""

    placement: Placement
    request: JobRequest
    attempt: int = 1
    gpu_type: str | None = None
    """of its first GPU; None: it uses no GPU"""
    memory: MiB | None = None
    """its limit on each GPU; None: not limited"""
    crowding: float | None = None
    """waiting jobs for each GPU in the pass that placed it; None: not judged by the sharing gate, or found running"""
    since: float = field(default_factory=time.monotonic)
    """when it was placed, in seconds of the monotonic clock"""
    started: float = field(default_factory=time.time)
    """when it was placed, in seconds since 1970"""

    @property
    def workload(self) -> WorkloadId:
        return workload_of(self.request)

    @property
    def digest(self) -> str:
        return command_digest(self.request)

    @property
    def compute(self) -> MilliGpu:
        return self.placement.job.demand.compute

    @property
    def id(self) -> str:
        return self.placement.job.id

    @property
    def gpus(self) -> Gpus:
        return self.placement.slot.gpus


UNMANAGED = "unmanaged-"
"""begins the ID of the stand-in for processes without a job, which ends with the index of the GPU"""
STAND_IN_PRIORITY = 1_000_000_000


class Tenants:
    """The placed jobs. `cluster` and `placed` always agree, apart from stand-ins for processes without a job: both
    change in `add` and `remove`, before any signal."""

    def __init__(self, machine: Machine, runs: Runs) -> None:
        self.cluster = Cluster.of([machine])
        self.placed: dict[str, PlacedJob] = {}
        self.ends = Ends()
        """when they are expected to end, by the clock of the journal"""
        self.added: Signal[[PlacedJob]] = Signal()
        self.removed: Signal[[str]] = Signal()
        """sent with the job's id"""
        self._runs = runs
        self._stand_ins: list[Placement] = []

    def add(
        self,
        placement: Placement,
        request: JobRequest,
        attempt: int,
        crowding: float | None = None,
        started: float | None = None,
    ) -> PlacedJob:
        """`started` is in seconds since 1970; None: it starts now."""
        moment = time.time() if started is None else started
        self.ends.add((placement,), Seconds(moment))
        gpus = placement.slot.gpus
        self.cluster = self.cluster.place(placement)
        first = self.cluster.at(0).machine.gpus[gpus[0]] if gpus else None
        job = self.placed[placement.job.id] = PlacedJob(
            placement=placement,
            request=request,
            attempt=attempt,
            gpu_type=None if first is None else first.type,
            memory=self._memory(placement, request),
            crowding=crowding,
            started=moment,
        )
        self.added.send(job)
        return job

    def change(self, job: str, changed: Job, request: JobRequest) -> PlacedJob:
        """A job that holds a slot has another account, priority or time limit now; it keeps its slot."""
        before = self.placed[job]
        placement = replace(before.placement, job=changed)
        self.ends.remove(job)
        self.ends.add((placement,), Seconds(before.started))
        self.cluster = self.cluster.finish(before.placement).place(placement)
        memory = self._memory(placement, request)
        self.placed[job] = replace(before, placement=placement, request=request, memory=memory)
        return self.placed[job]

    def _memory(self, placement: Placement, request: JobRequest) -> MiB | None:
        """Its limit on each GPU. A job that named no memory owns that of its GPUs, so there is nothing to limit."""
        if not placement.slot.gpus or request.memory is None:
            return None
        return memory_on(placement.job.demand, self.cluster.at(0).machine.gpus[placement.slot.gpus[0]]) or None

    def remove(self, job: str) -> None:
        placed = self.placed.pop(job, None)
        if placed is not None:
            self.ends.remove(job)
            self.cluster = self.cluster.finish(placed.placement)
            self.removed.send(job)

    def set_unmanaged(self, memory: Mapping[int, MiB]) -> bool:
        """Counts memory that processes without a job use, by GPU; whether that is more or less than before.

        Each such GPU has a stand-in among its tenants, which no policy can evict. Memory that is promised to jobs
        cannot be taken from them, so the stand-in gets what is left at most.
        """
        if not memory and not self._stand_ins:
            return False
        cluster = self.cluster
        for placement in self._stand_ins:
            cluster = cluster.finish(placement)
        stand_ins, free = [], cluster.at(0).memory
        for gpu, used in memory.items():
            if gpu < len(free) and (taken := min(used, free[gpu])) > 0:
                demand = Demand(memory=MiB(taken), compute=MilliGpu(0), priority=STAND_IN_PRIORITY)
                slot = Slot(cluster.at(0).name, (gpu,))
                stand_ins.append(Placement(Job(id=f"{UNMANAGED}{gpu}", demand=demand), slot))
        if stand_ins == self._stand_ins:
            return False
        self._stand_ins = stand_ins
        for placement in stand_ins:
            cluster = cluster.place(placement)
        self.cluster = cluster
        return True

    def replace_machine(self, machine: Machine) -> None:
        """The health or the cordons of the GPUs changed; the tenants stay."""
        self.cluster = self.cluster.replace(machine)

    def running(self, baseline: MiB) -> list[Running]:
        """The tenants whose supervisor is known, so that usage can be attributed to their processes."""
        return [
            Running(job=job, gpus=self.placed[job].gpus, supervisor=pid, baseline=baseline)
            for job, pid in self._runs.supervisors.items()
            if job in self.placed
        ]

    def supervisor_of(self, job: str) -> int | None:
        """The process ID of a tenant's supervisor, from which all processes of the job descend."""
        known = self._runs.supervisors.get(job)
        placed = self.placed.get(job)
        if known is None and placed is not None:
            # A job may connect to the agent before `Runs` has looked at its folder for the first time.
            intent = read_json(str(self._runs.folder(job, placed.attempt) / "intent"))
            known = None if intent is None else int(intent["pid"])
        return known
