# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Turns a placement into a process: the run folder, the limits file or slice, the control group, the supervisor."""

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cotenant.core.isolation import Rung, uses_mps
from cotenant.core.model import Machine, Placement
from cotenant.core.units import MiB
from cotenant.errors import CotenantError, DeviceError
from cotenant.local import attempts
from cotenant.local.config import Resources
from cotenant.local.containers import in_container, name_of
from cotenant.local.isolation import JobIsolation
from cotenant.local.lifecycle import JobRecord, request_of
from cotenant.local.logins import Origin, login_environment
from cotenant.local.owners import Owner
from cotenant.local.run_files import Spec
from cotenant.local.terminals import terminal_path, with_terminal
from cotenant.node.devices.vendors import Vendor
from cotenant.node.launch import ISOLATION, Allowance, Launch, Slice, enforcement, host_enforcement, launch_for
from cotenant.node.limits import GpuLimit, limits_text, write_read_only
from cotenant.node.mps import Mps
from cotenant.node.shares import Means
from cotenant.node.slices import LIMITS
from cotenant.wire.job_requests import JobRequest

MOST_PROCESSES = 512
"""of one job"""
MOST_TASKS = 16_384
"""processes and threads in the cgroup of one job: a fork bomb that is faster than its supervisor ends here"""
OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""the limit of open files of a job: as the daemon was started with, before it raised its own"""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts jobs with the resources of this machine."""

    resources: Resources

    def starter(
        self, folder: Path, machine: Machine, placement: Placement, record: JobRecord, origin: Origin | None = None
    ) -> Callable[[], None]:
        """A function that starts a run; it may be called again after it failed, and from another thread."""
        request, resources = request_of(record), self.resources
        job, launch = placement.job.id, self._launch(machine, placement, request)
        owner = None if resources.runtime is None else record.owner

        def start() -> None:
            # A cancelled run executes nothing: it needs no limit, and must end even if the driver takes none.
            partition = None if attempts.is_cancelled(folder) else self._partition(launch, placement)
            if launch.cgroup is not None and launch.cgroup_cpu is not None:
                resources.shares.create(job, launch.cgroup_cpu)
            contain = self._contain(launch, job)
            spec = self._with_host_memory(supervision(launch, request, contain, partition), placement, contain)
            spec = spec if owner is None else run_as(owner, origin, spec, request, launch)
            spec = with_terminal(spec, request, terminal_path(resources, folder, job))
            attempts.prepare(folder, self._in_container(spec, request, launch, record))
            if resources.slices is None or not _has_slice(placement):
                self._limits_file(job).parent.mkdir(mode=0o711, exist_ok=True)
                write_read_only(self._limits_file(job), limits_text(launch.limits))
            else:
                resources.slices.make(job, launch.limits, None if owner is None else owner.uid)
            if uses_mps(placement.job.demand.rung) and not attempts.is_cancelled(folder):
                self._mps.ready(launch.limits.gpus[0].uuid)
            resources.launch(folder)

        return start

    def _in_container(self, spec: Spec, request: JobRequest, launch: Launch, record: JobRecord) -> Spec:
        """The specification with the command line of the runtime, if the job runs in a container."""
        resources = self.resources
        if request.container is None:
            return spec
        if resources.containers is None:  # it was removed since the submission
            raise DeviceError("--container: this machine has neither podman nor docker any more")
        name = name_of(record.id, record.attempts)
        uuids = (grant.uuid for grant in launch.grants)
        vendor, gid = resources.backend.vendor, None if spec.uid is None else record.gid
        return in_container(spec, request, resources.containers, name, vendor, uuids, gid)

    def _contain(self, launch: Launch, job: str) -> Path | None:
        """The cgroup that holds all processes of a job; with cgroup v2 a process can be in one only."""
        if launch.cgroup is not None and self.resources.shares.means is Means.CGROUP_V2:
            return launch.cgroup
        return self.resources.containment.create(job, MOST_TASKS)

    def _with_host_memory(self, spec: Spec, placement: Placement, contain: Path | None) -> Spec:
        """The specification with the limit of its host memory, and the cgroup that holds it."""
        job, memory = placement.job.id, placement.job.demand.host_memory
        if not memory:
            return spec
        group = self.resources.host_memory.limit(job, contain, memory)
        return spec._replace(host_memory_mib=memory, host_memory_cgroup=None if group is None else str(group))

    def _partition(self, launch: Launch, placement: Placement) -> Path | None:
        """The cgroup with the limit of the driver on the memory of a job; None: the driver does not hold it."""
        if placement.job.demand.rung is not Rung.DRIVER:
            return None
        limit = launch.limits.gpus[0]
        return self._isolation.held_by_driver().create(placement.job.id, MOST_TASKS, limit.uuid, limit.memory_bytes)

    def limits(self, machine: Machine, placement: Placement, request: JobRequest) -> Launch:
        """The limits that a job has with another request."""
        return self._launch(machine, placement, request)

    def change_limits(self, placement: Placement, launch: Launch) -> None:
        """Writes other limits of a job that runs. Its processes notice them within a moment."""
        resources, job = self.resources, placement.job.id
        if launch.cgroup is not None and launch.cgroup_cpu is not None:
            resources.shares.create(job, launch.cgroup_cpu)
        held = resources.slices is not None and _has_slice(placement)
        path = self._limits_file(job)
        if held and resources.slices is not None:
            path = resources.slices.folder(job) / LIMITS
        try:
            write_read_only(path, limits_text(launch.limits))
        except OSError as error:
            raise CotenantError(f"the limits of {job} cannot be written to {path}: {error.strerror}") from error

    def enforcement(self, machine: Machine, placement: Placement, request: JobRequest) -> tuple[str, ...]:
        """One sentence for each limit of a job: what enforces it, or that nothing does."""
        launch, resources = self._launch(machine, placement, request), self.resources
        sentences = enforcement(resources.backend.vendor, launch, resources.shares.means)
        sentences += host_enforcement(placement.job.demand, launch, resources.host_memory.means)
        if resources.isolation is not None and uses_mps(placement.job.demand.rung):
            sentences += resources.isolation.remarks(launch.limits.gpus[0].uuid)
        return tuple(sentences)

    def mps_limit(self, machine: Machine, placement: Placement, request: JobRequest) -> GpuLimit | None:
        """The limit of a job that is a client of MPS on its one GPU; None: it is not one."""
        if not uses_mps(placement.job.demand.rung):
            return None
        return _limit_by_mps(self._launch(machine, placement, request), placement)

    @property
    def baseline(self) -> MiB:
        """Host memory of each job that a real GPU would not count."""
        return Allowance().baseline if self.resources.backend.vendor is Vendor.SIMULATED else MiB(0)

    def _launch(self, machine: Machine, placement: Placement, request: JobRequest) -> Launch:
        resources, rung = self.resources, placement.job.demand.rung
        launch = launch_for(
            machine,
            placement.slot,
            placement.job.demand,
            job=placement.job.id,
            paths=resources.paths,
            slice_=self._slice(placement, request),
            vendor=resources.backend.vendor,
            cores=resources.backend.cores(placement.slot.gpus),
            shares=resources.shares,
            batch=request.batch,
        )
        if rung is None:
            return launch
        more = {ISOLATION: str(rung)}
        if uses_mps(rung):
            more |= self._mps.variables(_limit_by_mps(launch, placement))
        return replace(launch, env={**launch.env, **more})

    @property
    def _isolation(self) -> JobIsolation:
        assert self.resources.isolation is not None  # it has granted the rung
        return self.resources.isolation

    @property
    def _mps(self) -> Mps:
        return self._isolation.mps

    def _slice(self, placement: Placement, request: JobRequest) -> Slice:
        slices, job = self.resources.slices, placement.job.id
        if slices is None or not _has_slice(placement):
            return Slice(limits=self._limits_file(job))
        return slices.paths(job, request.env.get("LD_PRELOAD"))

    def _limits_file(self, job: str) -> Path:
        """Of a job without a slice; the state folder of a daemon for all users is closed to its jobs."""
        runtime = self.resources.runtime
        return self.resources.jobs / job / "limits" if runtime is None else runtime / "limits" / job

    def forget(self, job: str) -> None:
        """A job has ended."""
        if self.resources.runtime is not None:
            self._limits_file(job).unlink(missing_ok=True)
            terminal_path(self.resources, Path(), job).unlink(missing_ok=True)  # if its supervisor was killed


def run_as(owner: Owner, origin: Origin | None, spec: Spec, request: JobRequest, launch: Launch) -> Spec:
    """The specification of a run under the user ID, umask, limits and login environment of its owner."""
    return spec._replace(
        uid=owner.uid,
        user=owner.user,
        env={**login_environment(owner), **_wished(request), **launch.env},
        umask=None if origin is None else origin.umask,
        limits={} if origin is None else {name: list(both) for name, both in origin.limits.items()},
        open_files=spec.open_files if origin is None else None,
    )


def _wished(request: JobRequest) -> dict[str, str]:
    """The variables that a user may set: only the daemon says what isolation a job has."""
    return {name: value for name, value in request.env.items() if name != ISOLATION}


def _has_slice(placement: Placement) -> bool:
    """Whether the vGPU library is preloaded into the job."""
    return placement.job.demand.rung in (None, Rung.PRELOAD)


def _limit_by_mps(launch: Launch, placement: Placement) -> GpuLimit:
    """What MPS holds a job to: if the driver holds its memory, only its compute."""
    limit = launch.limits.gpus[0]
    return limit._replace(memory_bytes=None) if placement.job.demand.rung is Rung.DRIVER else limit


def supervision(
    launch: Launch, request: JobRequest, contain: Path | None = None, partition: Path | None = None
) -> Spec:
    """The specification that the supervisor of a job reads."""
    base = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return Spec(
        argv=list(request.command),
        cwd=request.cwd,
        env={**base, **_wished(request), **launch.env},
        cpus=None if launch.cpus is None else list(launch.cpus),
        rlimit_data_mib=launch.rlimit_data_mib,
        memory_mib=launch.memory_mib,
        memory_baseline_mib=launch.memory_baseline_mib,
        share_percent=launch.share_percent,
        cgroup=None if launch.cgroup is None else str(launch.cgroup),
        contain=None if contain is None else str(contain),
        partition=None if partition is None else str(partition),
        grace_s=request.grace_s,
        time_s=request.time_s,
        warn_s=request.warn_s,
        max_processes=MOST_PROCESSES,
        open_files=OPEN_FILES,
    )
