# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics of the daemon: its decisions and queue, the GPUs of its machine, and its jobs."""

import asyncio
import time
from collections.abc import Iterable
from itertools import islice
from socket import gethostname

from cotenant.core.cluster import Node
from cotenant.core.footprint import compute_on, memory_limit_on, memory_on
from cotenant.core.model import Gpu, Job, Machine
from cotenant.core.placement.ranking import Ranker
from cotenant.core.units import MIB_BYTES, WHOLE_GPU
from cotenant.local.devices import Devices
from cotenant.local.job_queue import JobQueue
from cotenant.local.job_slices import JobSlices
from cotenant.local.tenants import PlacedJob, Tenants
from cotenant.metrics.counts import Counts
from cotenant.metrics.figures import NodeFigures, TenantFigures
from cotenant.metrics.page import Page
from cotenant.metrics.table import DECISIONS, OLDEST, QUEUED, STEPS, WAITS, Part
from cotenant.node.devices.vendors import Vendor
from cotenant.node.figures import Assigned, Collector, Look, Occupant
from cotenant.node.interference import InterferenceMonitor
from cotenant.node.shares import Shares
from cotenant.node.slices import SliceState, read_slice
from cotenant.node.step_totals import StepTotals
from cotenant.node.tuning import Tuner

PASS = "pass"
MOST_KINDS = 10
"""Kinds of waiting jobs whose reasons are counted after a pass."""


class DaemonMetrics:
    """Counts what the engine decides, and reads the rest from its parts when the page is scraped."""

    def __init__(
        self,
        vendor: Vendor,
        devices: Devices,
        tenants: Tenants,
        queue: JobQueue,
        tuner: Tuner,
        interference: InterferenceMonitor,
        slices: JobSlices | None,
        shares: Shares,
    ) -> None:
        self._vendor, self._devices, self._tenants, self._queue = vendor, devices, tenants, queue
        self._tuner, self._interference, self._shares = tuner, interference, shares
        self._slices = None if slices is None or slices.library is None else slices
        self._collector, self._node = Collector(), gethostname()
        self.steps = StepTotals()
        self.counts = Counts(Part.DAEMON)
        self.counts.add(DECISIONS, PASS, "placed", "", by=0)
        self.page = Page(self.counts, refresh=self._refresh, node=self.figures)

    # Decisions

    def placed(self, job: Job) -> None:
        """A job starts."""
        self.counts.add(DECISIONS, PASS, "placed", "")
        self.counts.observe(WAITS, time.time() - job.submitted)

    def passed(self, began: float, ranker: Ranker) -> None:
        """A pass has ended that began at this time of `time.perf_counter`; counts why the first jobs still wait."""
        self.counts.observe(STEPS, time.perf_counter() - began, PASS)
        cluster = self._tenants.cluster
        for group in islice(self._queue.ordered.groups(), MOST_KINDS):
            demand = group[0][1].demand
            reasons = ranker.reasons(demand, cluster, cluster.names)
            check = next((reason.check for reason in reasons.values()), "waits")
            self.counts.add(DECISIONS, PASS, "refused", check)

    def _refresh(self) -> None:
        submitted = [job.submitted for job in self._queue.jobs.values()]
        self.counts.set(QUEUED, len(submitted), "waiting")
        self.counts.set(OLDEST, max(0.0, time.time() - min(submitted)) if submitted else 0.0)

    # The machine

    async def figures(self) -> NodeFigures:
        """The GPUs and jobs now; the usage regions are read in a thread."""
        machine, tenants = self._devices.machine, self._tenants
        look = Look(
            machine=machine,
            vendor=str(self._vendor),
            usage=tuple(self._devices.usage.values()),
            occupants=[self._occupant(job, machine) for job in tenants.placed.values() if job.gpus],
            allocated=_allocated(machine, tenants.cluster.at(0)),
            owner_of=lambda process: process.job,
        )
        gpus, jobs = await asyncio.to_thread(self._collector.collect, look)
        return NodeFigures(node=self._node, gpus=gpus, tenants=jobs)

    def _occupant(self, job: PlacedJob, machine: Machine) -> Occupant:
        total, request, tuner = self.steps.of(job.id), job.request, self._tuner
        rung = job.placement.job.demand.rung
        known = TenantFigures(
            name=job.id,
            rung=rung or "",
            speed=self._interference.speed(job.id),
            predicted_speed=self._interference.predicted(job.id),
            least_speed=request.floor,
            batch=tuner.batch(job.id) or request.batch,
            default_batch=self._interference.default_batch(job.id) or request.batch,
            tuner=tuner.state(job.id),
            batch_changes=tuner.changes(job.id),
            steps=total.steps,
            samples=total.samples,
            latency_objective_s=request.latency_s,
            latency_missed=self._interference.violations(job.id),
        )
        gpus = {machine.gpus[index].uuid: machine.gpus[index] for index in job.gpus if index < len(machine.gpus)}
        return Occupant(
            key=job.id,
            known=known,
            assigned={uuid: _assigned(job, gpu) for uuid, gpu in gpus.items()},
            reported_busy_s=total.busy_s,
            read_throttled_s=lambda: self._shares.throttled_s(job.id),
            read_slices=lambda: self._read_slices(job.id),
        )

    def _read_slices(self, job: str) -> Iterable[SliceState]:
        seen = None if self._slices is None else read_slice(self._slices.folder(job))
        return () if seen is None else (seen,)


def _assigned(job: PlacedJob, gpu: Gpu) -> Assigned:
    demand = job.placement.job.demand
    compute = compute_on(demand, gpu) / WHOLE_GPU or None
    if job.memory is None:
        return Assigned(compute=compute)
    return Assigned(MIB_BYTES * memory_on(demand, gpu), compute, MIB_BYTES * memory_limit_on(demand, gpu))


def _allocated(machine: Machine, node: Node) -> dict[str, Assigned]:
    return {
        gpu.uuid: Assigned(
            MIB_BYTES * (gpu.memory_capacity - node.memory[index]),
            (gpu.compute_capacity - node.compute[index]) / WHOLE_GPU,
        )
        for index, gpu in enumerate(machine.gpus)
    }
