# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent of one node: all its parts. It publishes the GPUs, watches the pods, and serves kubelet and jobs.

Nothing here decides where pods go, and a running pod needs no agent: a restart of the agent disturbs no pod.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from cotenant import __version__
from cotenant.core.model import Machine
from cotenant.core.units import MIB_BYTES, MiB, format_memory
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.claim_reporting import ClaimReporting, PublishedGpus
from cotenant.kube.agent.comparing import Comparison
from cotenant.kube.agent.grants import PodGrants
from cotenant.kube.agent.jobs import Jobs
from cotenant.kube.agent.latency import Servers
from cotenant.kube.agent.looking import NodeGpus, unhealthy
from cotenant.kube.agent.members import SliceMembers
from cotenant.kube.agent.metrics import AgentMetrics
from cotenant.kube.agent.mps import NodeMps
from cotenant.kube.agent.options import AgentOptions, Intervals, find_gpus_of
from cotenant.kube.agent.orphans import NodePods
from cotenant.kube.agent.plugin import Plugins, count_resources
from cotenant.kube.agent.pod_usage import beyond_assignment
from cotenant.kube.agent.profiles import OwnProfiles
from cotenant.kube.agent.publishing import OwnNode
from cotenant.kube.agent.regions import is_bounded
from cotenant.kube.agent.reporting import (
    UsageReport,
    annotations_for,
    host_memory_note,
    scaling_note,
)
from cotenant.kube.agent.simulating import AUTO, Simulation
from cotenant.kube.agent.totals import NodeTotals
from cotenant.kube.agent.training import Training
from cotenant.kube.api.access import Access
from cotenant.kube.api.claims import CLAIMS
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.metrics import count_request
from cotenant.kube.codec.agent_report import REPORT, nvidia_driver, report_for
from cotenant.kube.codec.inventory import (
    AWAY,
    CLAIMS_AWAY,
    CLOSED,
    GRANTS,
    ORPHANS,
    SERVERS,
    USED,
    ClosedGpu,
    closed_for,
)
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.codec.withdrawing import take_back
from cotenant.kube.settings import KubeSettings
from cotenant.node.agent import JobEvent
from cotenant.node.devices.backend import Backend
from cotenant.node.devices.nvml import NvmlBackend
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.text import counted

NOT_WATCHED = "kubelet and the agent's device plugin have not found each other"
LEAVING = "the agent was told to end"
LONGEST_FAULT = 500
"""Characters of the sentence about a fault."""
RECORDS = "pods"
"""Folder of the records of pods."""


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
        self._say, self._intervals = say, intervals
        self._machine = Machine(name=options.node, gpus=())
        self._usage = UsageReport(lambda text: self._node.want({USED: text}), intervals.use_s)
        self._client = Client(access, agent="cotenant-agent")
        self._simulation = Simulation(self._client, options.node)
        self._gpus = NodeGpus(
            options, settings, self._usage, self.error_log, intervals, find or find_gpus_of, self._simulation
        )
        self._changed = asyncio.Event()
        """Something that is published may have changed: the GPUs, a pod, or whether kubelet watches."""
        self._grants: PodGrants | None = None
        """None: the GPUs were not found yet."""
        self._plugins: Plugins | None = None
        self._claims: ClaimReporting | None = None
        """None: claims are not enabled, or the GPUs were not found yet."""
        self._leaving = False
        self._node = OwnNode(
            self._client,
            options.node,
            pace=intervals.pace,
            report=self._reporter("node"),
            patches_s=intervals.patches_s,
        )
        self._pods = self._make_pods()
        self._comparison = Comparison(
            self._pods.pods, lambda: self._usage.latest, self.error_log, intervals.compare_s, proc
        )
        self._profiles = OwnProfiles(
            self._client,
            options.node,
            lambda: self._node.uid,
            report=self._reporter("profiles"),
            pace=intervals.profiles,
        )
        self.training = self._make_training()
        self.servers = Servers(self._pods.pods, self._publish_servers, intervals.windows)
        self._members: SliceMembers | None = None
        self._gpus_of = Vendor.SIMULATED
        """Whose GPUs the node has, as soon as they are found."""
        self.metrics = self._make_metrics()
        self._client.answered.subscribe(partial(count_request, self.metrics.counts))
        self.mps: NodeMps | None = None
        self.jobs = Jobs(options.host.agent.seen, self._pods.known, self._handle, proc)

    def _make_pods(self) -> NodePods:
        return NodePods(
            self._client,
            self._options.node,
            self._options.host.lasting.seen / RECORDS,
            publish=lambda text: self._node.want({ORPHANS: text}),
            changed=self._pods_changed,
            report=self._reporter("pods"),
            pace=self._intervals.pace,
            timing=self._intervals.orphans,
            proc=self._proc,
        )

    def _make_training(self) -> Training:
        return Training(
            self._pods.pods,
            lambda: self._machine,
            self._profiles,
            lambda job, message: self.jobs.server.send(job, message),
            report=self._reporter("training"),
            observe_s=self._intervals.observe_s,
        )

    def _make_metrics(self) -> AgentMetrics:
        return AgentMetrics(
            self._options.node,
            self._codec,
            machine=lambda: self._machine,
            vendor=lambda: self._gpus_of,
            usage=lambda: self._usage.latest,
            pods=self._pods.pods,
            slices=lambda: {} if self._members is None else self._members.slices(),
            regions=self._options.host.regions.seen,
            training=self.training,
            servers=self.servers,
            errors=self.error_log.counts,
            drifting=lambda: self._comparison.drifting,
            hami=self._settings.metrics.hami,
            proc=self._proc,
        )

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
        if self._plugins is not None:
            self._plugins.pods_changed()

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
        backend = await self._gpus.found(
            lambda why: self._node.want({REPORT: report_for(__version__, self._driver, why)})
        )
        self._node.want({REPORT: report_for(__version__, self._driver)})
        try:
            vendor = self._gpus.vendor_of(backend)
            self._prepare_mps(backend)
            self._gpus.prepare_ladder(backend, lambda: self.mps is not None and self.mps.installed)
            found = await asyncio.to_thread(backend.machine)
            self._machine = self._gpus.shared(found, backend)
            scaling = scaling_note(found, self._options.node, self._settings, vendor)
            if scaling is not None:
                self._say(f"agent: {scaling}")
            plugins = self._plugins = self._make_plugins(vendor)
            self._gpus_of = vendor
            members = self._members = SliceMembers(self._options.host, self._pods.pods, self.error_log, self._proc)
            grants = self._grants = self._make_grants(plugins)
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
                tasks.create_task(self._comparison.run(plugins.listed))
                tasks.create_task(self._say_when_published(backend))
                if self._settings.claims.enabled:
                    claims = self._claims = self._make_claims(vendor)
                    tasks.create_task(claims.run())
                if self._options.simulate == AUTO and backend.vendor is Vendor.SIMULATED:
                    self._say("agent: SIMULATES GPUs, because no node of the cluster has any")
                    tasks.create_task(self._end_simulation())
                if self.mps is not None:
                    self.mps.follow(self._machine)
                    tasks.create_task(self._run_mps(self.mps))
        finally:
            backend.close()

    def _make_plugins(self, vendor: Vendor) -> Plugins:
        return Plugins(
            lambda: self._machine,
            vendor,
            count_resources(self._codec, vendor),
            self._options.host,
            self._pods.pods,
            self.error_log,
            strict=self._options.strict,
            by_cdi=self._options.mps and vendor.row.cdi_kind is not None,
            mps=self.mps,
            claims=self._settings.claims.enabled,
            devices=not (self._settings.claims.only and vendor is VGPU.vendor),
            faults=lambda: self._usage.faults,
            read_claim=lambda namespace, name: self._client.get(CLAIMS, name, namespace=namespace),
            on_watch_change=self._changed.set,
        )

    def _make_grants(self, plugins: Plugins) -> PodGrants:
        return PodGrants(
            self._options.host,
            self._pods.pods,
            lambda: self._machine,
            lambda: self._usage.latest,
            plugins.listed,
            lambda text: self._node.want({GRANTS: text}),
            self.error_log,
            self._proc,
        )

    def _make_claims(self, vendor: Vendor) -> ClaimReporting:
        gpus = PublishedGpus(
            vendor=vendor,
            driver=self._driver,
            machine=lambda: unhealthy(self._machine, {} if self.mps is None else self.mps.published()),
            absent=lambda: self._usage.absent,
        )
        return ClaimReporting(
            self._client,
            self._node,
            gpus,
            self.error_log,
            say=self._say,
            pace=self._intervals.pace,
            least_s=self._intervals.patches_s,
        )

    async def _end_simulation(self) -> NoReturn:
        """Ends the agent as soon as the cluster has real GPUs: then no pod may get simulated ones."""
        while (reason := await self._simulation.obstacle()) is None:
            await asyncio.sleep(self._intervals.retry_s)
        await take_back(self._client, self._options.node)
        raise CotenantError(f"the simulated GPUs of this node end: {reason}")

    def _prepare_mps(self, backend: Backend) -> None:
        if self._options.mps and isinstance(backend, NvmlBackend):
            self.mps = NodeMps(
                self._options.host.mps,
                self._pods.pods,
                lambda: self._usage.latest,
                self._changed.set,
                self._reporter("MPS"),
                self._proc,
            )

    def _faulty(self) -> dict[str, ClosedGpu]:
        """Why GPUs of the inventory are not healthy."""
        faults = self._usage.faults
        uuids = (gpu.uuid for gpu in self._machine.gpus if not gpu.healthy)
        return {uuid: ClosedGpu(why=faults[uuid][:LONGEST_FAULT]) for uuid in uuids if uuid in faults}

    async def _run_mps(self, mps: NodeMps) -> NoReturn:
        """Runs when all pods of the node are known: before, their control daemons would seem to be of no use."""
        await self._pods.looked.wait()
        await mps.run()

    async def _keep_looking(self, backend: Backend, plugins: Plugins, members: SliceMembers) -> NoReturn:
        while True:
            await asyncio.sleep(self._intervals.looks_s)
            if self._claims is not None:
                self._claims.report(plugins.claims_problem())
            machine = await self._gpus.looked(backend, self._machine)
            self._usage.publish(machine, lambda usage: beyond_assignment(self._comparison.memory_of_pods(usage)))
            if self.training.is_measuring:
                self.training.set_memory(self._comparison.memory_by_pod())
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
            totals = counting.of(self._machine, self._pods.pods()) if plugins.hands_out_devices else {}
            claims_away = plugins.claims_away()
            away = LEAVING if self._leaving else None if plugins.is_watched() else NOT_WATCHED
            if not plugins.hands_out_devices:
                away = away or claims_away
            closed = {} if self.mps is None else self.mps.published()
            told = annotations_for(unhealthy(self._machine, closed), vendor, self._codec)
            told |= {AWAY: away, CLAIMS_AWAY: claims_away, CLOSED: closed_for({**closed, **self._faulty()})}
            self._node.want(told, totals)
            await self._changed.wait()

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
