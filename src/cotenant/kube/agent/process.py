# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent of one node as a process: it publishes the GPUs, watches the pods, and serves kubelet and jobs.

Nothing here decides where pods go, and a running pod needs no agent: a restart of the agent disturbs no pod.
"""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from cotenant import __version__
from cotenant.core.model import Machine
from cotenant.core.units import MIB_BYTES, MiB, format_memory, parse_memory
from cotenant.errors import CotenantError, DeviceError, InputError
from cotenant.kube.agent.allocating import HostPlaces
from cotenant.kube.agent.grants import PodGrants
from cotenant.kube.agent.jobs import Jobs
from cotenant.kube.agent.latency import Servers, Windows
from cotenant.kube.agent.members import SliceMembers
from cotenant.kube.agent.metrics import AgentMetrics
from cotenant.kube.agent.mps import NodeMps, Offers
from cotenant.kube.agent.orphans import NodePods, Timing
from cotenant.kube.agent.plugin import Plugins, count_resources
from cotenant.kube.agent.pod_usage import PodMemory, beyond_assignment, memory_of_pods
from cotenant.kube.agent.podresources import Drift, PodKey, drift
from cotenant.kube.agent.profiles import OwnProfiles, WritePace
from cotenant.kube.agent.publishing import PATCHES_S, OwnNode, take_back
from cotenant.kube.agent.regions import is_bounded, mount_regions
from cotenant.kube.agent.reporting import (
    USE_S,
    UsageReport,
    annotations_for,
    host_memory_note,
    scaling_note,
    shared_machine,
)
from cotenant.kube.agent.totals import NodeTotals
from cotenant.kube.agent.training import Training
from cotenant.kube.api.access import Access, find_access
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.metrics import count_request
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Pace
from cotenant.kube.codec.agent_report import REPORT, nvidia_driver, report_for
from cotenant.kube.codec.assignment import Record, valid_record
from cotenant.kube.codec.inventory import AWAY, CLOSED, GRANTS, ORPHANS, SERVERS, USED, ClosedGpu, closed_for
from cotenant.kube.settings import KubeSettings, MetricsPart, read_settings
from cotenant.node.agent import JobEvent
from cotenant.node.devices.backend import Backend, GpuUsage
from cotenant.node.devices.finding import find_gpus
from cotenant.node.devices.nvml import NvmlBackend
from cotenant.node.devices.simulated import SimulatedBackend
from cotenant.node.devices.vendors import Vendor, vendor_of_type
from cotenant.node.preload import find_library
from cotenant.wire.text import counted

NOT_WATCHED = "kubelet and the agent's device plugin have not found each other"
LEAVING = "the agent was told to end"
LONGEST_FAULT = 500
"""Characters of the sentence about a fault."""
RECORDS = "pods"
"""Folder of the records of pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What an agent is started with."""

    node: str
    settings: Path | None = None
    kubeconfig: Path | None = None
    """None: that of the environment, or of the pod that the agent runs in."""
    vendor: str | None = None
    """Whose GPUs are handed out; None: those of the first vendor in the table whose driver answers."""
    simulate: int | None = None
    """Number of GPUs to simulate instead of real ones."""
    gpu_memory: str | None = None
    """Memory of each simulated GPU, such as 16GiB."""
    gpu_type: str | None = None
    """Type of the simulated GPUs. Its name also says whose GPUs they stand for: MLU370 is Cambricon's."""
    strict: bool = False
    mps: bool = False
    """Whether pods may be clients of MPS, whose control daemons the MPS supervisor of the node starts."""
    remove: bool = False
    """Remove what an agent has written on this node, and end."""
    mount_regions: bool = False
    """Mount the file system for usage regions on this node, and end."""
    host: HostPlaces = HostPlaces()  # noqa: RUF009 -- frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Times in seconds."""

    looks_s: float = 2.0
    """Between two looks at the GPUs and at their processes."""
    use_s: float = USE_S
    """Between two looks at how much memory is in use."""
    hung_s: float = 15.0
    """If a driver has not answered for so long, no GPU counts as healthy."""
    compare_s: float = 60.0
    """Between two comparisons of kubelet's list with the records."""
    retry_s: float = 10.0
    """Between two searches for GPUs, while there are none."""
    leave_s: float = 6.0
    """At most, until the API server has taken that the agent leaves."""
    started_s: float = 2.0
    """After that, for kubelet to start pods that are already bound."""
    patches_s: float = PATCHES_S
    observe_s: float | None = None
    """How long pods are measured before their speeds count; None: as on one machine."""
    profiles: WritePace = WritePace()  # noqa: RUF009 -- frozen
    pace: Pace = Pace()  # noqa: RUF009 -- frozen
    orphans: Timing = Timing()  # noqa: RUF009 -- frozen
    windows: Windows = Windows()  # noqa: RUF009 -- frozen


def serve(options: AgentOptions) -> None:
    """Runs the agent of a node until SIGTERM or SIGINT; InputError if the options are wrong."""
    if options.mount_regions:
        made = mount_regions(options.host.regions.seen)
        to_stderr(f"agent: {options.host.regions.seen}: {'mounted' if made else 'is mounted already'}")
        return
    settings = read_settings(options.settings, check_queue=False)
    access = find_access(os.environ, options.kubeconfig)
    _checked_memory(options)
    if options.remove:
        asyncio.run(_remove(options, access))
    else:
        asyncio.run(_until_signalled(Agent(options, settings, access), settings.metrics))


async def _remove(options: AgentOptions, access: Access) -> None:
    client = Client(access)
    try:
        await take_back(client, options.node)
    finally:
        await client.close()


async def _until_signalled(agent: "Agent", metrics: MetricsPart) -> None:
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    task, waiting = asyncio.ensure_future(agent.run()), asyncio.ensure_future(signalled.wait())
    served = asyncio.ensure_future(agent.metrics.serve(metrics, agent.error_log, signalled))
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        await agent.leave()
        task.cancel()
    waiting.cancel()
    signalled.set()
    await served
    try:
        await task
    except asyncio.CancelledError:
        to_stderr("agent: ended as told; pods on this node go on")
    except ExceptionGroup as group:
        raise _first(group) from None


def _first(error: Exception) -> Exception:
    """The first error of a group: a user can act on one line."""
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


class Agent:
    """The agent of one node, in one event loop."""

    def __init__(
        self,
        options: AgentOptions,
        settings: KubeSettings,
        access: Access,
        *,
        say: Callable[[str], object] = to_stderr,
        intervals: Intervals = Intervals(),  # noqa: B008 -- frozen
        find: Callable[[AgentOptions], Backend] | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self.error_log, self._proc, self._driver = ErrorLog(say), proc, nvidia_driver(proc)
        self._options, self._settings, self._codec = options, settings, settings.codec()
        self._say, self._intervals, self._find = say, intervals, find or find_gpus_of
        self._machine = Machine(name=options.node, gpus=())
        self._look: asyncio.Future[Machine] | None = None
        self._usage = UsageReport(lambda text: self._node.want({USED: text}), intervals.use_s)
        self._changed = asyncio.Event()
        """Something that is published may have changed: the GPUs, a pod, or whether kubelet watches."""
        self._grants: PodGrants | None = None
        """None: the GPUs were not found yet."""
        self._leaving = False
        self._drifting = 0
        """Pods with another number of devices than their assignment says, at the last look."""
        self._client = Client(access, agent="cotenant-agent")
        self._node = OwnNode(
            self._client,
            options.node,
            pace=intervals.pace,
            report=self._reporter("node"),
            patches_s=intervals.patches_s,
        )
        self._pods = NodePods(
            self._client,
            options.node,
            options.host.lasting.seen / RECORDS,
            publish=lambda text: self._node.want({ORPHANS: text}),
            changed=self._pods_changed,
            report=self._reporter("pods"),
            pace=intervals.pace,
            timing=intervals.orphans,
            proc=proc,
        )
        self._profiles = OwnProfiles(
            self._client,
            options.node,
            lambda: self._node.uid,
            report=self._reporter("profiles"),
            pace=intervals.profiles,
        )
        self.training = Training(
            self._pods.pods,
            lambda: self._machine,
            self._profiles,
            lambda job, message: self.jobs.server.send(job, message),
            report=self._reporter("training"),
            observe_s=intervals.observe_s,
        )
        self.servers = Servers(self._pods.pods, self._publish_servers, intervals.windows)
        self._members: SliceMembers | None = None
        self._gpus_of = Vendor.SIMULATED
        """Whose GPUs the node has, as soon as they are found."""
        self.metrics = AgentMetrics(
            options.node,
            self._codec,
            machine=lambda: self._machine,
            vendor=lambda: self._gpus_of,
            usage=lambda: self._usage.latest,
            pods=self._pods.pods,
            slices=lambda: {} if self._members is None else self._members.slices(),
            regions=options.host.regions.seen,
            training=self.training,
            servers=self.servers,
            errors=self.error_log.counts,
            drifting=lambda: self._drifting,
            hami=settings.metrics.hami,
            proc=proc,
        )
        self._client.answered.subscribe(partial(count_request, self.metrics.counts))
        self.mps: NodeMps | None = None
        self._offers: Offers | None = None
        self.jobs = Jobs(options.host.agent.seen, self._pods.known, self._handle, proc)

    async def run(self) -> None:
        """Runs until cancelled; what was written on the node stays."""
        try:
            (self._options.host.lasting.seen / RECORDS).mkdir(mode=0o700, parents=True, exist_ok=True)
            await self.jobs.start()
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be made: {error.strerror}") from None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._node.run())
                tasks.create_task(self._pods.run())
                tasks.create_task(self._serve_gpus())
                tasks.create_task(self.training.run())
                tasks.create_task(self._profiles.run())
                tasks.create_task(self.servers.run())
        finally:
            await self.jobs.close()
            await self._client.close()

    async def leave(self) -> None:
        """Publishes that the agent leaves while it still answers kubelet, so that pods bound just now still start."""
        self._leaving = True
        self._node.want({AWAY: LEAVING})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._intervals.leave_s):
                await self._node.is_as_wanted()
                await asyncio.sleep(self._intervals.started_s)

    def _pods_changed(self) -> None:
        self._changed.set()
        self.training.pods_changed()
        self.servers.pods_changed()
        if self._grants is not None:
            self._grants.pods_changed()

    def _handle(self, event: JobEvent) -> None:
        self.training.handle(event)
        self.servers.handle(event)
        self.metrics.handle(event)

    def _publish_servers(self, text: str | None) -> None:
        self._node.want({SERVERS: text})

    def _reporter(self, kind: str) -> Callable[[str], object]:
        return lambda text: self.error_log.report(kind, text)

    # The GPUs

    async def _serve_gpus(self) -> None:
        backend = await self._found()
        self._node.want({REPORT: report_for(__version__, self._driver)})
        try:
            vendor = self._vendor_of(backend)
            self._prepare_ladder(backend)
            found = await asyncio.to_thread(backend.machine)
            self._machine = self._shared(found, backend)
            scaling = scaling_note(found, self._options.node, self._settings, vendor)
            if scaling is not None:
                self._say(f"agent: {scaling}")
            plugins = Plugins(
                lambda: self._machine,
                vendor,
                count_resources(self._codec, vendor),
                self._options.host,
                self._pods.pods,
                self.error_log,
                strict=self._options.strict,
                mps=self.mps,
                on_watch_change=self._changed.set,
            )
            self._gpus_of = vendor
            members = self._members = SliceMembers(self._options.host, self._pods.pods, self.error_log, self._proc)
            grants = self._grants = PodGrants(
                self._options.host,
                self._pods.pods,
                lambda: self._machine,
                lambda: self._usage.latest,
                plugins.listed,
                lambda text: self._node.want({GRANTS: text}),
                self.error_log,
                self._proc,
            )
            if not is_bounded(self._options.host.regions.seen):
                self._say(
                    f"agent: {self._options.host.regions.seen} is no file system of its own, so a tenant can fill"
                    " the one that it is on; `cotenant kube agent --mount-regions` mounts it"
                )
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_looking(backend, plugins, members))
                tasks.create_task(self._keep_published(plugins, vendor))
                tasks.create_task(plugins.run())
                if vendor.row.preload:
                    grants.pods_changed()
                    tasks.create_task(grants.run())
                tasks.create_task(self._compare(plugins))
                tasks.create_task(self._say_when_published(backend))
                if self.mps is not None:
                    self.mps.follow(self._machine)
                    tasks.create_task(self._run_mps(self.mps))
        finally:
            backend.close()

    def _prepare_ladder(self, backend: Backend) -> None:
        """NVIDIA GPUs have an isolation ladder."""
        if not isinstance(backend, NvmlBackend):
            return
        if self._options.mps:
            self.mps = NodeMps(
                self._options.host.mps,
                self._pods.pods,
                lambda: self._usage.latest,
                self._changed.set,
                self._reporter("MPS"),
                self._proc,
            )
        preload = find_library() is not None
        self._offers = Offers(backend.modes, preload=preload, mps=lambda: self.mps is not None and self.mps.installed)

    def _faulty(self) -> dict[str, ClosedGpu]:
        """Why GPUs of the inventory are not healthy."""
        faults = self._usage.faults
        uuids = (gpu.uuid for gpu in self._machine.gpus if not gpu.healthy)
        return {uuid: ClosedGpu(why=faults[uuid][:LONGEST_FAULT]) for uuid in uuids if uuid in faults}

    async def _run_mps(self, mps: NodeMps) -> NoReturn:
        """Runs when all pods of the node are known: before, their control daemons would seem to be of no use."""
        await self._pods.looked.wait()
        await mps.run()

    async def _found(self) -> Backend:
        """The GPUs, as soon as their driver answers: the agent may start before the driver."""
        while True:
            try:
                return await asyncio.to_thread(self._find, self._options)
            except DeviceError as error:
                self._node.want({REPORT: report_for(__version__, self._driver, str(error))})
                self.error_log.report("GPUs", f"{error}; trying again every {self._intervals.retry_s:.0f} s")
            await asyncio.sleep(self._intervals.retry_s)

    def _vendor_of(self, backend: Backend) -> Vendor:
        """Whose GPUs the cluster sees; simulated ones stand for those of a vendor."""
        vendor = vendor_of_type(self._options.gpu_type) if backend.vendor is Vendor.SIMULATED else backend.vendor
        if self._options.strict and vendor.row.cdi_kind is None:
            raise InputError(f"strict mode hands GPUs out by CDI, and {vendor.row.title} GPUs have no CDI devices")
        return vendor

    def _shared(self, found: Machine, backend: Backend) -> Machine:
        simulated = backend.vendor is Vendor.SIMULATED
        if simulated and self._options.gpu_type is not None:
            found = replace(found, gpus=tuple(replace(gpu, type=self._options.gpu_type) for gpu in found.gpus))
        vendor = self._vendor_of(backend)
        machine = shared_machine(found, self._options.node, self._settings, vendor, simulated=simulated)
        return machine if self._offers is None else self._offers.of_machine(machine)

    async def _keep_looking(self, backend: Backend, plugins: Plugins, members: SliceMembers) -> NoReturn:
        while True:
            await asyncio.sleep(self._intervals.looks_s)
            machine = await self._looked(backend)
            self._usage.publish(machine, lambda usage: beyond_assignment(self._memory_of_pods(usage)))
            if self.training.is_measuring:
                self.training.set_memory(self._memory_by_pod())
            if backend.vendor.row.preload:
                members.update(self._usage.latest)
            if machine != self._machine:
                self._machine = machine
                if self.mps is not None:
                    self.mps.follow(machine)
                self._changed.set()
                plugins.changed()

    async def _keep_published(self, plugins: Plugins, vendor: Vendor) -> NoReturn:
        """Publishes after each change, of pods too: kubelet must know of larger totals before the next pod is there."""
        # The requests of pods are part of the totals, and a scheduler that has restarted needs the orphans first.
        await self._pods.looked.wait()
        counting = NodeTotals(vendor, self._codec)
        while True:
            self._changed.clear()
            totals = counting.of(self._machine, self._pods.pods())
            away = LEAVING if self._leaving else None if plugins.is_watched() else NOT_WATCHED
            closed = {} if self.mps is None else self.mps.published()
            told = annotations_for(_unhealthy(self._machine, closed), vendor, self._codec)
            self._node.want({**told, AWAY: away, CLOSED: closed_for({**closed, **self._faulty()})}, totals)
            await self._changed.wait()

    async def _looked(self, backend: Backend) -> Machine:
        """The machine with its present health; if the driver hangs, no GPU is healthy."""
        look = self._look or asyncio.ensure_future(asyncio.to_thread(self._usage.look, backend))
        done, _ = await asyncio.wait({look}, timeout=self._intervals.hung_s)
        self._look = None if done else look  # a driver that hangs must not cost a thread for each look
        if not done:
            self.error_log.report("GPUs", f"their driver has not answered for {self._intervals.hung_s:.0f} s")
            return _unhealthy(self._machine)
        try:
            return self._shared(look.result(), backend)
        except CotenantError as error:
            self.error_log.report("GPUs", str(error))
            return _unhealthy(self._machine)

    async def _say_when_published(self, backend: Backend) -> None:
        host = MiB(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB_BYTES)
        for note in (*backend.notes, host_memory_note(self._machine, host)):
            if note is not None:
                self._say(f"agent: {note}")
        await self._node.is_as_wanted()
        memory = MiB(sum(gpu.memory_capacity for gpu in self._machine.gpus))
        count = len(self._machine.gpus)
        gpus = counted(count, "GPU")
        self._say(f"agent: node {self._options.node}: {gpus}, {format_memory(memory)}, published")

    # Kubelet's list of devices

    async def _compare(self, plugins: Plugins) -> NoReturn:
        """Reports drift that is seen twice: kubelet and the API server report a pod at different times."""
        before: tuple[Drift, ...] = ()
        while True:
            self._drifting = len(before)
            self._report_memory_beyond()
            await asyncio.sleep(self._intervals.compare_s)
            try:
                listed = await plugins.listed()
            except CotenantError as error:
                self.error_log.report("kubelet", str(error))
                continue
            records = _running_records(self._pods.pods())
            recorded = {key: record for key, record in records.items() if record is not None}
            found = tuple(one for one in drift(recorded, listed) if one.pod in records)
            for one in found:
                if one in before:
                    counted = f"{one.listed} devices from kubelet, {one.recorded} GPUs in its record"
                    self.error_log.report("drift", f"pod {'/'.join(one.pod)}: {counted}")
            before = found

    def _memory_by_pod(self) -> dict[str, int]:
        """The MiB that each pod uses, by UID. A pod whose processes the driver does not list uses an unknown amount."""
        used: Counter[str] = Counter()
        for one in self._memory_of_pods(self._usage.latest):
            used[one.uid] += one.used_mib
        return {uid: mib for uid, mib in used.items() if mib}

    def _memory_of_pods(self, usage: Sequence[GpuUsage]) -> list[PodMemory]:
        return memory_of_pods(usage, self._pods.pods(), self._proc)

    def _report_memory_beyond(self) -> None:
        for one in self._memory_of_pods(self._usage.latest):
            if one.is_beyond:
                self.error_log.report("memory beyond the assignment", str(one))


def find_gpus_of(options: AgentOptions) -> Backend:
    """Simulated GPUs only if they were requested: a node whose driver failed must not seem to have other GPUs."""
    if options.simulate is not None:
        return SimulatedBackend(options.simulate, memory=_checked_memory(options))
    return find_gpus(None if options.vendor is None else Vendor(options.vendor))


def _checked_memory(options: AgentOptions) -> MiB | None:
    try:
        memory = None if options.gpu_memory is None else parse_memory(options.gpu_memory)
    except ValueError as error:
        raise InputError(f"GPU memory: {error}") from None
    if options.simulate is None and (memory is not None or options.gpu_type is not None):
        raise InputError("GPU memory and GPU type describe simulated GPUs: give the number of GPUs to simulate")
    return memory


def _unhealthy(machine: Machine, which: Collection[str] | None = None) -> Machine:
    """The machine with these GPUs (default: all) not healthy."""
    if which is not None and not which:
        return machine
    return replace(
        machine,
        gpus=tuple(replace(gpu, healthy=False) if which is None or gpu.uuid in which else gpu for gpu in machine.gpus),
    )


def _running_records(pods: Collection[Pod]) -> dict[PodKey, Record | None]:
    """The records of running pods; kubelet may not have given devices to the others yet."""
    running = [pod for pod in pods if pod.status.phase == "Running"]
    return {(pod.metadata.namespace, pod.metadata.name): valid_record(pod) for pod in running}
