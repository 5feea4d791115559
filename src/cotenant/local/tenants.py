# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who runs where on this machine, and everyone who must hear when somebody comes or goes."""

import time
from typing import Any

import msgspec

from cotenant.core.cluster import Cluster
from cotenant.core.footprint import memory_on
from cotenant.core.model import Machine, Placement
from cotenant.core.units import MiB
from cotenant.local.events import complain
from cotenant.local.interference import Neighbours
from cotenant.local.runs import Runs
from cotenant.local.tuner import TuningLoop
from cotenant.node.devices.backend import Running
from cotenant.node.shares import Shares
from cotenant.wire.local import JobRequest


class Seats:
    """The cluster as it is now."""

    def __init__(
        self, machine: Machine, runs: Runs, shares: Shares, tuning: TuningLoop, neighbours: Neighbours
    ) -> None:
        self.cluster = Cluster.of([machine])
        self.placed: dict[str, Placement] = {}
        self._runs, self._shares, self._tuning, self._neighbours = runs, shares, tuning, neighbours

    def take(self, placement: Placement, request: JobRequest, crowding: float | None = None) -> None:
        """With the crowding of the pass that placed it; None: it was found there."""
        job, gpus = placement.job, placement.slot.gpus
        self.cluster = self.cluster.place(placement)
        self.placed[job.id] = placement
        first = self.cluster.at(0).machine.gpus[gpus[0]] if gpus else None
        memory = memory_on(job.demand, first) if first is not None else MiB(0)
        self._tuning.seat(job.id, gpus, request, memory or None)
        if first is not None:
            self._neighbours.seat(placement, request, first.type, crowding, time.monotonic())

    def leave(self, job: str) -> None:
        placement = self.placed.pop(job, None)
        if placement is not None:
            self.cluster = self.cluster.finish(placement)
            self._shares.remove(job)
            self._keep_history(job)
            self._neighbours.unseat(job, time.monotonic())
            self._tuning.unseat(job)

    def change(self, machine: Machine) -> None:
        """Cards have changed under those who sit on them."""
        self.cluster = self.cluster.replace(machine)

    def running(self, baseline: MiB) -> list[Running]:
        """Those whose processes can be told apart by now."""
        return [
            Running(job=job, gpus=self.placed[job].slot.gpus, supervisor=pid, baseline=baseline)
            for job, pid in self._runs.supervisors.items()
            if job in self.placed
        ]

    def history(self, job: str) -> tuple[dict[str, Any], ...]:
        """What tuning has tried for a job, also after it has left."""
        path = self._runs.of_job(job) / "tuning.json"
        kept = msgspec.json.decode(path.read_bytes(), type=tuple[dict[str, Any], ...]) if path.exists() else ()
        return tuple(self._tuning.history(job)) or kept

    def _keep_history(self, job: str) -> None:
        """Beside its logs: for people, so losing it to a crash or a full disk is no harm."""
        history = self._tuning.history(job)
        if history:
            try:
                (self._runs.of_job(job) / "tuning.json").write_bytes(msgspec.json.encode(history))
            except OSError as error:
                complain(f"the tuning history of {job} is lost: {error}")
