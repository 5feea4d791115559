# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tells the vGPU library in each container which processes on the GPUs are of the same container.

The driver names processes by their IDs on the host, and the kernel says by their cgroups to which container they
belong; no process in a container can change either. Kubelet says which devices, so which slice, a container has. It
does not list plain init containers: they get no list, and their library counts every other busy process as a tenant.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import chain
from pathlib import Path

from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import PROCESSES_NAME, HostPlaces, slice_name
from cotenant.kube.agent.jobs import PROC, container_of
from cotenant.kube.agent.podresources import Listed
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.paths import PROCESSES
from cotenant.node.company import SliceProcess, identify, write_list
from cotenant.node.devices.backend import GpuUsage

Slices = dict[str, str]
"""The slice of each container, by the container's ID."""


class SliceMembers:
    """Writes the list of processes of each container with GPUs, if it has changed."""

    def __init__(
        self,
        host: HostPlaces,
        pods: Callable[[], Collection[Pod]],
        listed: Callable[[], Awaitable[Iterable[Listed]]],
        error_log: ErrorLog,
        proc: Path = PROC,
    ) -> None:
        self._host, self._pods, self._listed, self._error_log, self._proc = host, pods, listed, error_log, proc
        self._slices: Slices = {}

    async def update(self, usage: Iterable[GpuUsage]) -> None:
        """Writes the lists after a look at the GPUs."""
        members = self._members(usage)
        if not self._slices.keys() >= members.keys():  # a container has come
            try:
                self._slices = slices_of(self._pods(), await self._listed())
            except CotenantError as error:
                self._error_log.report("kubelet", str(error))
        for container, name in self._slices.items():
            folder = self._host.slices.seen / name / PROCESSES_NAME
            if not folder.is_dir():  # the container is gone, or was started before agents made lists
                continue
            try:
                write_list(folder / PROCESSES.name, members.get(container, ()))
            except OSError as error:
                self._error_log.report("processes", f"{error.filename}: {error.strerror}")

    def _members(self, usage: Iterable[GpuUsage]) -> dict[str, list[SliceProcess]]:
        pids = {process.pid for process in chain.from_iterable(gpu.processes or () for gpu in usage)}
        known = {pod.metadata.uid for pod in self._pods()} if pids else set()
        members: dict[str, list[SliceProcess]] = {}
        for pid in pids:
            container, process = container_of(pid, known, self._proc), identify(pid, self._proc)
            if container is not None and process is not None:
                members.setdefault(container, []).append(process)
        return members


def slices_of(pods: Iterable[Pod], listed: Iterable[Listed]) -> Slices:
    """The slice of each container that kubelet lists with devices."""
    names = {(one.namespace, one.pod, one.container): slice_name(one.resource, one.devices) for one in listed}
    found: Slices = {}
    for pod in pods:
        for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
            name = names.get((pod.metadata.namespace, pod.metadata.name, status.name))
            container = status.container_id.rpartition("//")[2]
            if name is not None and container:
                found[container] = name
    return found
