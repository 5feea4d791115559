# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics of a node: its GPUs, and each pod on them as the driver, the usage regions and its program report it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cotenant.core.model import Machine
from cotenant.core.units import MIB_BYTES, WHOLE_GPU
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.jobs import pod_of
from cotenant.kube.agent.latency import Servers
from cotenant.kube.agent.training import Training
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.metrics import metrics_route
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.api.server import Listener, application, health_routes, listen, serve_all
from cotenant.kube.codec.annotations import rung_of
from cotenant.kube.codec.assignment import Record, staying, valid_record
from cotenant.kube.codec.request import container_names
from cotenant.kube.codec.settings import Settings
from cotenant.kube.settings import MetricsPart
from cotenant.metrics.counts import Counts
from cotenant.metrics.figures import NodeFigures, TenantFigures
from cotenant.metrics.page import Page
from cotenant.metrics.table import Part
from cotenant.node.agent import JobEvent
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.devices.vendors import Vendor
from cotenant.node.figures import Assigned, Collector, Look, Occupant
from cotenant.node.limits import Limits
from cotenant.node.region import read_region
from cotenant.node.slices import SliceState
from cotenant.node.step_totals import StepTotals


class AgentMetrics:
    """Reads everything from the parts of the agent when the page is scraped."""

    def __init__(
        self,
        node: str,
        settings: Settings,
        machine: Callable[[], Machine],
        vendor: Callable[[], Vendor],
        usage: Callable[[], Sequence[GpuUsage]],
        pods: Callable[[], Iterable[Pod]],
        slices: Callable[[], Mapping[str, Sequence[str]]],
        regions: Path,
        training: Training,
        servers: Servers,
        errors: Mapping[str, int],
        drifting: Callable[[], int],
        *,
        hami: bool = False,
        proc: Path = Path("/proc"),
    ) -> None:
        """`slices` are the names of slices by the UID of their pod; `regions` is the folder of their usage regions."""
        self._name, self._settings, self._machine, self._vendor = node, settings, machine, vendor
        self._usage, self._pods, self._slices, self._regions = usage, pods, slices, regions
        self._training, self._servers, self._errors, self._drifting = training, servers, errors, drifting
        self._proc, self._collector, self._steps = proc, Collector(proc), StepTotals()
        self.counts = Counts(Part.AGENT)
        self.page = Page(self.counts, node=self.figures, hami=hami)

    def handle(self, event: JobEvent) -> None:
        """A message of a pod."""
        self._steps.handle(event)

    async def serve(self, part: MetricsPart, error_log: ErrorLog, stop: asyncio.Event) -> None:
        """Serves the page, if it is enabled. An agent whose port is in use still serves kubelet and pods."""
        if not part.port:
            return
        try:
            bound = listen(part.address, part.port)
        except CotenantError as error:
            error_log.report("metrics", f"{error}; the settings metrics.address and metrics.port name another")
            return
        routes = {**metrics_route(self.page), **health_routes()}
        await serve_all([Listener(bound, application(routes, error_log))], stop)

    async def figures(self) -> NodeFigures:
        """The GPUs and pods now; files are read in a thread."""
        machine = self._machine()
        here = {gpu.uuid for gpu in machine.gpus}
        held = [(pod, record) for pod in self._pods() if not has_ended(pod) and (record := valid_record(pod))]
        uids = frozenset(pod.metadata.uid for pod, _ in held)
        self._steps.retain(uids)
        slices = self._slices()
        occupants = [
            one
            for pod, record in held
            if (one := self._occupant(pod, record, here, slices.get(pod.metadata.uid, ()))).assigned
        ]
        look = Look(
            machine=machine,
            vendor=str(self._vendor()),
            usage=self._usage(),
            occupants=occupants,
            allocated=_sums(occupants),
            owner_of=lambda process: pod_of(process.pid, uids, self._proc),
        )
        gpus, pods = await asyncio.to_thread(self._collector.collect, look)
        return NodeFigures(
            node=self._name,
            gpus=gpus,
            tenants=pods,
            kubelet_drift_pods=self._drifting(),
            errors=dict(self._errors),
        )

    def _occupant(self, pod: Pod, record: Record, here: set[str], slices: Sequence[str]) -> Occupant:
        uid, total = pod.metadata.uid, self._steps.of(pod.metadata.uid)
        known = TenantFigures(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            container=_container(pod, record),
            rung=rung_of(pod, record, self._vendor(), self._settings) or "",
            steps=total.steps,
            samples=total.samples,
        )
        known = self._servers.shown(uid, self._training.shown(uid, known))
        return Occupant(
            key=uid,
            known=known,
            assigned={uuid: one for uuid, one in _assigned(record).items() if uuid in here},
            reported_busy_s=total.busy_s,
            read_slices=lambda: [_read(self._regions / name) for name in slices],
        )


def _read(region: Path) -> SliceState:
    """A slice of a container. Its limits are in the pod's record, which the tenant cannot change."""
    try:
        return SliceState(region.name, Limits(), read_region(region))
    except (OSError, InputError):  # it was removed just now, or its tenant has damaged it
        return SliceState(region.name, Limits(), None)


def _container(pod: Pod, record: Record) -> str:
    """The name of the first container with GPUs that stays."""
    names = container_names(pod)
    return next((names[held.number] for held in staying(record) if held.number < len(names)), "")


def _assigned(record: Record) -> dict[str, Assigned]:
    memory, limits, compute = Counter[str](), Counter[str](), Counter[str]()
    for held in record.containers:
        for share in held.gpus:
            memory[share.gpu] += share.memory
            limits[share.gpu] += max(share.memory, share.memory_limit)
            compute[share.gpu] += share.compute or share.most
    return {
        gpu: Assigned(
            MIB_BYTES * memory[gpu] or None, compute[gpu] / WHOLE_GPU or None, MIB_BYTES * limits[gpu] or None
        )
        for gpu in memory
    }


def _sums(occupants: Iterable[Occupant]) -> dict[str, Assigned]:
    sums: dict[str, Assigned] = {}
    for one in occupants:
        for gpu, part in one.assigned.items():
            so_far = sums.get(gpu, Assigned(0, 0.0))
            sums[gpu] = Assigned(
                (so_far.memory_bytes or 0) + (part.memory_bytes or 0), (so_far.compute or 0.0) + (part.compute or 0.0)
            )
    return sums
