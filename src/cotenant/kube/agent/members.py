# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tells the vGPU library in each container which processes on the GPUs are of the same container.

The driver names processes by their IDs on the host. The kernel says by their cgroups to which container they belong,
and by their mounts which slice that container has; no process in a container can change the one, or get at the slice of
another. Kubelet is not asked: it does not list plain init containers, and its list names pods that may be younger than
their devices.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cotenant.kube.agent.allocating import HostPlaces
from cotenant.kube.agent.jobs import PROC, PROCESSES_NAME, container_of, pod_of, slice_of
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.paths import PROCESSES
from cotenant.node.company import SliceProcess, identify, write_list
from cotenant.node.devices.backend import GpuUsage


@dataclass(frozen=True, slots=True)
class _Place:
    """The folder that a container has mounted. A slice that is made anew has the same name and another inode."""

    folder: Path
    inode: int
    pod: str
    """UID."""

    def is_there(self) -> bool:
        return _inode(self.folder) == self.inode


class SliceMembers:
    """Writes the list of processes of each container with GPUs, if it has changed."""

    def __init__(
        self, host: HostPlaces, pods: Callable[[], Collection[Pod]], error_log: ErrorLog, proc: Path = PROC
    ) -> None:
        self._slices, self._pods, self._error_log, self._proc = host.slices.seen, pods, error_log, proc
        self._places: dict[str, _Place] = {}
        """By the container's ID."""

    def update(self, usage: Iterable[GpuUsage]) -> None:
        """Writes the lists after a look at the GPUs."""
        members = self._members(usage)
        self._places = {container: place for container, place in self._places.items() if place.is_there()}
        for container in members.keys() - self._places.keys():
            found = (self._place_of(process.host_pid) for process in members[container])
            if (place := next((one for one in found if one is not None), None)) is not None:
                self._places[container] = place
        by_folder: dict[Path, list[SliceProcess]] = {}
        for container, place in self._places.items():  # containers that share a ResourceClaim have one slice
            by_folder.setdefault(place.folder, []).extend(members.get(container, ()))
        for folder, processes in by_folder.items():
            try:
                write_list(folder / PROCESSES.name, processes)
            except OSError as error:
                self._error_log.report("processes", f"{error.filename}: {error.strerror}")

    def slices(self) -> dict[str, list[str]]:
        """The names of the slices that are in use, by the UID of the pod."""
        found: dict[str, list[str]] = {}
        for place in self._places.values():
            found.setdefault(place.pod, []).append(place.folder.parent.name)
        return found

    def _members(self, usage: Iterable[GpuUsage]) -> dict[str, list[SliceProcess]]:
        pids = {process.pid for process in chain.from_iterable(gpu.processes or () for gpu in usage)}
        known = {pod.metadata.uid for pod in self._pods()} if pids else set()
        members: dict[str, list[SliceProcess]] = {}
        for pid in pids:
            container, process = container_of(pid, known, self._proc), identify(pid, self._proc)
            if container is not None and process is not None:
                members.setdefault(container, []).append(process)
        return members

    def _place_of(self, pid: int) -> _Place | None:
        """The folder that a process has mounted for the list; None if it is none of ours, or was removed."""
        name = slice_of(pid, self._slices, self._proc)
        if name is None:
            return None
        folder = self._slices / name / PROCESSES_NAME
        inode, pod = _inode(folder), pod_of(pid, {one.metadata.uid for one in self._pods()}, self._proc)
        # The mount is read again: if its folder is there now, the inode is the folder's, or that of an older one.
        is_there = slice_of(pid, self._slices, self._proc) == name
        return _Place(folder, inode, pod) if inode is not None and pod and is_there else None


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None
