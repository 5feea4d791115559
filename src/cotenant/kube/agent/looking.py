# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node as its agent sees them: found as soon as their driver answers, looked at in a thread because the
driver may hang, and shared as the settings say."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

from cotenant.core.model import Machine
from cotenant.errors import CotenantError, DeviceError, InputError
from cotenant.kube.agent.options import AgentOptions, Intervals, checked_memory
from cotenant.kube.agent.reporting import UsageReport, shared_machine
from cotenant.kube.agent.simulating import AUTO, Simulation
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.settings import KubeSettings
from cotenant.node.devices.backend import Backend, NoDriverError
from cotenant.node.devices.finding import DEFAULT_SIMULATED
from cotenant.node.devices.nvml import NvmlBackend
from cotenant.node.devices.simulated import SimulatedBackend
from cotenant.node.devices.vendors import Vendor, vendor_of_type
from cotenant.node.offers import Offers
from cotenant.node.preload import find_library


class NodeGpus:
    """What the driver says, as the cluster may see it."""

    def __init__(
        self,
        options: AgentOptions,
        settings: KubeSettings,
        usage: UsageReport,
        error_log: ErrorLog,
        intervals: Intervals,
        find: Callable[[AgentOptions], Backend],
        simulation: Simulation,
    ) -> None:
        self._simulation = simulation
        self._options, self._settings, self._usage = options, settings, usage
        self._error_log, self._intervals, self._find = error_log, intervals, find
        self._offers: Offers | None = None
        self._look: asyncio.Future[Machine] | None = None

    async def found(self, failed: Callable[[str], object]) -> Backend:
        """The GPUs, as soon as their driver answers: the agent may start before the driver."""
        while True:
            try:
                return await asyncio.to_thread(self._find, self._options)
            except DeviceError as error:
                if isinstance(error, NoDriverError) and await self._may_simulate():
                    return SimulatedBackend(DEFAULT_SIMULATED, memory=checked_memory(self._options))
                failed(str(error))
                self._error_log.report("GPUs", f"{error}; trying again every {self._intervals.retry_s:.0f} s")
            await asyncio.sleep(self._intervals.retry_s)

    async def _may_simulate(self) -> bool:
        if self._options.simulate != AUTO:
            return False
        reason = await self._simulation.obstacle()
        if reason is not None:
            self._error_log.report("simulated GPUs", f"none: {reason}")
        return reason is None

    def vendor_of(self, backend: Backend) -> Vendor:
        """Whose GPUs the cluster sees; simulated ones stand for those of a vendor."""
        vendor = vendor_of_type(self._options.gpu_type) if backend.vendor is Vendor.SIMULATED else backend.vendor
        if self._options.strict and vendor.row.cdi_kind is None:
            raise InputError(f"strict mode hands GPUs out by CDI, and {vendor.row.title} GPUs have no CDI devices")
        return vendor

    def prepare_ladder(self, backend: Backend, has_mps: Callable[[], bool]) -> None:
        """NVIDIA GPUs have an isolation ladder."""
        if isinstance(backend, NvmlBackend):
            self._offers = Offers(backend.modes, preload=find_library() is not None, mps=has_mps)

    def shared(self, found: Machine, backend: Backend) -> Machine:
        """The GPUs that the node hands out, of those that were found."""
        simulated = backend.vendor is Vendor.SIMULATED
        if simulated and self._options.gpu_type is not None:
            found = replace(found, gpus=tuple(replace(gpu, type=self._options.gpu_type) for gpu in found.gpus))
        vendor = self.vendor_of(backend)
        machine = shared_machine(found, self._options.node, self._settings, vendor, simulated=simulated)
        return machine if self._offers is None else _with_offers(machine, self._offers)

    async def looked(self, backend: Backend, before: Machine) -> Machine:
        """The machine with its present health; if the driver hangs, no GPU is healthy."""
        look = self._look or asyncio.ensure_future(asyncio.to_thread(self._usage.look, backend))
        done, _ = await asyncio.wait({look}, timeout=self._intervals.hung_s)
        self._look = None if done else look  # a driver that hangs must not cost a thread for each look
        if not done:
            self._error_log.report("GPUs", f"their driver has not answered for {self._intervals.hung_s:.0f} s")
            return unhealthy(before)
        try:
            return self.shared(look.result(), backend)
        except CotenantError as error:
            self._error_log.report("GPUs", str(error))
            return unhealthy(before)


def _with_offers(machine: Machine, offers: Offers) -> Machine:
    """What the settings reserve a GPU for is in the offer that it has already."""
    only = [None if gpu.offer is None else gpu.offer.only for gpu in machine.gpus]
    gpus = (replace(gpu, offer=offers.of(gpu, rung)) for gpu, rung in zip(machine.gpus, only, strict=True))
    return replace(machine, gpus=tuple(gpus))


def unhealthy(machine: Machine, which: Collection[str] | None = None) -> Machine:
    """The machine with these GPUs (default: all) not healthy."""
    if which is not None and not which:
        return machine
    return replace(
        machine,
        gpus=tuple(replace(gpu, healthy=False) if which is None or gpu.uuid in which else gpu for gpu in machine.gpus),
    )
