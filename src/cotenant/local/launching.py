# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""From a placement to a process: what the supervisor is told, the limits file, the group that holds its share."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.model import Machine, Placement
from cotenant.core.units import MiB
from cotenant.local import attempts
from cotenant.local.job_slices import JobSlices
from cotenant.local.supervisor import Spec
from cotenant.node.devices import Backend, Kind
from cotenant.node.launch import Allowance, Launch, Paths, Slice, enforcement, launch_for
from cotenant.node.limits import limits_text, write_read_only
from cotenant.node.shares import Shares
from cotenant.wire.local import JobRequest

MOST_PROCESSES = 512
"""of one job"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How jobs are started on this machine."""

    jobs: Path
    """holds a folder for each job"""
    backend: Backend
    paths: Paths
    shares: Shares
    slices: JobSlices | None = None
    """of real GPUs"""
    launch: Callable[[Path], None] = attempts.launch

    def starter(self, folder: Path, machine: Machine, placement: Placement, request: JobRequest) -> Callable[[], None]:
        """A function that starts a run for good; it may be called again after it failed, and in another thread."""
        job, launch = placement.job.id, self._launch(machine, placement, request)

        def start() -> None:
            attempts.prepare(folder, supervision(launch, request))
            if self.slices is None:
                write_read_only(self._limits_file(job), limits_text(launch.limits))
            else:
                self.slices.make(job, launch.limits)
            if launch.cgroup is not None and launch.cgroup_cpu is not None:
                self.shares.create(job, launch.cgroup_cpu)
            self.launch(folder)

        return start

    def enforcement(self, machine: Machine, placement: Placement, request: JobRequest) -> tuple[str, ...]:
        """Which limits hold for a job, and how."""
        return tuple(enforcement(self.backend.kind, self._launch(machine, placement, request), self.shares.means))

    @property
    def baseline(self) -> MiB:
        """Memory of each job that its devices do not count."""
        return Allowance().baseline if self.backend.kind is Kind.SIMULATED else MiB(0)

    def _launch(self, machine: Machine, placement: Placement, request: JobRequest) -> Launch:
        return launch_for(
            machine,
            placement.slot,
            placement.job.demand,
            job=placement.job.id,
            paths=self.paths,
            slice_=self._slice(placement.job.id, request),
            kind=self.backend.kind,
            cores=self.backend.cores(placement.slot.gpus),
            shares=self.shares,
            batch=request.batch,
        )

    def _slice(self, job: str, request: JobRequest) -> Slice:
        if self.slices is None:
            return Slice(limits=self._limits_file(job))
        return self.slices.paths(job, request.env.get("LD_PRELOAD"))

    def _limits_file(self, job: str) -> Path:
        return self.jobs / job / "limits"


def supervision(launch: Launch, request: JobRequest) -> Spec:
    """What the supervisor is told of a job."""
    base = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return Spec(
        argv=list(request.command),
        cwd=request.cwd,
        env={**base, **request.env, **launch.env},
        cpus=None if launch.cpus is None else list(launch.cpus),
        rlimit_data_mib=launch.rlimit_data_mib,
        memory_mib=launch.memory_mib,
        memory_baseline_mib=launch.memory_baseline_mib,
        share_percent=launch.share_percent,
        cgroup=None if launch.cgroup is None else str(launch.cgroup),
        grace_s=request.grace_s,
        max_processes=MOST_PROCESSES,
    )
