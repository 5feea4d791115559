# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a node tells about ResourceClaims: its GPUs as ResourceSlices, and what is wrong with claims there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from cotenant import __version__
from cotenant.core.model import Machine
from cotenant.kube.agent.publishing import OwnNode
from cotenant.kube.agent.resource_slices import NodeDevices, OwnSlices
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.reflector import Pace
from cotenant.kube.codec.agent_report import REPORT, report_for
from cotenant.kube.codec.inventory import cordoned_gpus
from cotenant.node.devices.vendors import Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGpus:
    """The GPUs that slices state. The functions must return at once."""

    vendor: Vendor
    driver: str | None
    """Version of the GPUs' driver."""
    machine: Callable[[], Machine]
    """Those that are not healthy, for whatever reason, are marked."""
    absent: Callable[[], frozenset[str]]
    """UUIDs of GPUs that no longer exist."""


class ClaimReporting:
    """Publishes slices while `run` runs, and writes on the node what is wrong."""

    def __init__(
        self,
        client: Client,
        node: OwnNode,
        gpus: PublishedGpus,
        error_log: ErrorLog,
        *,
        say: Callable[[str], object],
        pace: Pace,
        least_s: float,
    ) -> None:
        self._node, self._gpus, self._error_log = node, gpus, error_log
        self._other_drivers: str | None = None
        """that drivers of others publish the same GPUs"""
        self._problem: str | None = None
        self._slices = OwnSlices(
            client,
            node.name,
            self._devices,
            report=lambda text: error_log.report("claims", text),
            say=say,
            shared=self._note_other_drivers,
            pace=pace,
            least_s=least_s,
        )

    async def run(self) -> NoReturn:
        """Runs until cancelled."""
        await self._slices.run()
        raise AssertionError("it runs until it is cancelled")

    def report(self, of_driver: str | None) -> None:
        """Writes what is wrong, if that has changed; `of_driver` is why kubelet has no claims prepared here."""
        problem = "; ".join(filter(None, (of_driver, self._other_drivers))) or None
        if problem != self._problem:
            self._problem = problem
            if problem is not None:
                self._error_log.report("claims", problem)
            self._node.want({REPORT: report_for(__version__, self._gpus.driver, claims=problem)})

    def _note_other_drivers(self, text: str | None) -> None:
        self._other_drivers = text

    def _devices(self) -> NodeDevices | None:
        """What slices say; None: the node is not known yet."""
        uid, cordoned, machine = self._node.uid, cordoned_gpus(self._node.annotations), self._gpus.machine()
        if uid is None:
            return None
        gpus = tuple(replace(gpu, cordoned=gpu.uuid in cordoned) for gpu in machine.gpus)
        return NodeDevices(
            machine=replace(machine, gpus=gpus),
            vendor=self._gpus.vendor,
            driver=self._gpus.driver,
            uid=uid,
            absent=self._gpus.absent(),
        )
