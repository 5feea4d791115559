# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A backend over a management library that is only polled: what such libraries have in common.

An adapter of a vendor implements `Library`, one short method for each query. This module keeps what is known of each
GPU between two polls: its identity, its health, and at which index the library lists it now.
"""

import ctypes
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from cotenant.core.links import LinkMatrix, link_matrix_of_pairs
from cotenant.core.model import Gpu, Gpus, Machine
from cotenant.core.units import MiB, MilliCpu, Seconds
from cotenant.errors import DeviceError
from cotenant.node.devices.backend import MACHINE, GpuUsage, NoDriverError, ProcessUsage, Running
from cotenant.node.devices.health import RECOVERY, Health
from cotenant.node.devices.processes import job_members, process_table
from cotenant.node.devices.vendors import Vendor

NOT_LISTED = "the driver does not answer for it"


class Identity(NamedTuple):
    """What never changes about a GPU."""

    type: str
    memory: MiB
    numa: int | None


UNKNOWN = Identity("unknown", MiB(0), None)


class Reading(NamedTuple):
    """What is used of a GPU; None if the library does not say."""

    used_mib: MiB | None
    utilisation: int | None
    """Percent."""
    processes: tuple[ProcessUsage, ...] | None


class Library(Protocol):
    """The queries to a vendor's library. A GPU that does not answer raises DeviceError, which makes it unhealthy."""

    @property
    def vendor(self) -> Vendor: ...

    def open(self) -> int:
        """Begins a session; the number of GPUs. DeviceError if there is no driver."""

    def close(self) -> None:
        """Ends the session, if there is one; never raises."""

    def uuid(self, index: int) -> str: ...

    def identity(self, index: int) -> Identity: ...

    def fault(self, index: int) -> str | None:
        """Why the GPU should take no jobs."""

    def reading(self, index: int) -> Reading: ...

    def links(self, indices: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        """(index, index, score) for each pair whose link the library knows."""


@dataclass(slots=True)
class _Gpu:
    """What is known of the GPU that was at one index when the session began."""

    place: int
    health: Health
    uuid: str | None = None
    """None: it has not answered yet."""
    identity: Identity = UNKNOWN
    index: int | None = None
    """Where the library lists it now; None: it does not."""

    @property
    def name(self) -> str:
        return self.uuid or f"GPU-unknown-{self.place}"


class PolledBackend:
    """The GPUs of one vendor; DeviceError if there is no driver or no GPU."""

    def __init__(
        self,
        library: Library,
        *,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = Path("/proc"),
        recovery: Seconds = RECOVERY,
    ) -> None:
        self.vendor = library.vendor
        self._library, self._clock, self._proc = library, clock, proc
        self._links: LinkMatrix | None = None
        self._linked: tuple[int | None, ...] = ()
        self._count = library.open()
        # A GPU that does not answer keeps its place: a process may be given its GPUs by index.
        self._gpus = [_Gpu(place, Health(recovery)) for place in range(self._count)]
        if not self._gpus:
            self.close()
            raise DeviceError(f"the {self.vendor.row.title} driver answers but lists no GPU")
        self._poll()

    @property
    def notes(self) -> tuple[str, ...]:
        counted = Counter(gpu.identity.type for gpu in self._gpus)
        models = ", ".join(f"{count} x {name}" for name, count in sorted(counted.items()))
        unenforced = self.vendor.row.unenforced()
        return f"{self.vendor.row.title} GPUs: {models}", *([] if unenforced is None else [unenforced])

    def machine(self) -> Machine:
        self._poll()
        return Machine(
            name=MACHINE,
            gpus=tuple(
                Gpu(
                    uuid=gpu.name,
                    type=gpu.identity.type,
                    memory=gpu.identity.memory,
                    numa=gpu.identity.numa,
                    healthy=gpu.health.healthy,
                )
                for gpu in self._gpus
            ),
            links=self._link_matrix(),
            cpu=MilliCpu(1000 * len(os.sched_getaffinity(0))),
        )

    def usage(self, jobs: Sequence[Running] = ()) -> list[GpuUsage]:
        members = job_members(jobs, process_table(self._proc)) if jobs else {}
        owners = {process.pid: job for job, tree in members.items() for process in tree}
        return [self._usage(gpu, owners) for gpu in self._gpus]

    def faults(self) -> dict[str, str]:
        return {gpu.name: gpu.health.reason for gpu in self._gpus if gpu.health.reason is not None}

    def absent(self) -> frozenset[str]:
        return frozenset()

    def cores(self, gpus: Gpus) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        self._library.close()

    def _poll(self) -> None:
        now = Seconds(self._clock())
        listed = self._listed()
        if not listed:
            # If no GPU answers, the driver may have been reloaded, which only a new session can see.
            self._library.close()
            try:
                self._count = self._library.open()
                listed = self._listed()
            except DeviceError:
                pass  # the next poll tries again
        for gpu in self._gpus:
            fault = self._examine(gpu, listed)
            if fault is None:
                gpu.health.answered(now)
            else:
                gpu.health.fault(fault, now)

    def _listed(self) -> dict[str, int]:
        """The index of each GPU that answers, by UUID."""
        found = {}
        for index in range(self._count):
            try:
                found[self._library.uuid(index)] = index
            except DeviceError:
                continue  # it shows as no longer listed
        return found

    def _examine(self, gpu: _Gpu, listed: Mapping[str, int]) -> str | None:
        """What is wrong with a GPU, None if nothing; reads what it is when it answers for the first time."""
        try:
            if gpu.uuid is None:
                uuid = next((uuid for uuid, index in listed.items() if index == gpu.place), None)
                if uuid is None or any(uuid == other.uuid for other in self._gpus):
                    return NOT_LISTED
                gpu.identity, gpu.uuid = self._library.identity(gpu.place), uuid
            # By UUID: if a GPU falls off the bus, the indices of the others may move.
            gpu.index = listed.get(gpu.uuid)
            return NOT_LISTED if gpu.index is None else self._library.fault(gpu.index)
        except DeviceError as error:
            return str(error)

    def _usage(self, gpu: _Gpu, owners: Mapping[int, str]) -> GpuUsage:
        reading = Reading(None, None, None)
        if gpu.index is not None:
            try:
                reading = self._library.reading(gpu.index)
            except DeviceError as error:
                gpu.health.fault(str(error), Seconds(self._clock()))
        processes = reading.processes
        if processes is not None:
            processes = tuple(one._replace(job=owners.get(one.pid)) for one in processes)
        return GpuUsage(uuid=gpu.name, used_mib=reading.used_mib, utilisation=reading.utilisation, processes=processes)

    def _link_matrix(self) -> LinkMatrix | None:
        now = tuple(gpu.index for gpu in self._gpus)
        if now != self._linked:
            places = {gpu.index: place for place, gpu in enumerate(self._gpus) if gpu.index is not None}
            try:
                pairs = [(places[a], places[b], score) for a, b, score in self._library.links(tuple(places))]
            except DeviceError:
                return self._links  # a GPU went away meanwhile; the next poll tries again
            self._links = link_matrix_of_pairs(len(self._gpus), pairs) if pairs else None
            self._linked = now
        return self._links


def load_shared_library(names: Sequence[str], title: str) -> ctypes.CDLL:
    """The first of these libraries that can be loaded; DeviceError if none can, NoDriverError if none is there."""
    reason = None
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            # A library that is there and cannot be loaded is a fault; one that is not there is the usual case.
            if "No such file" not in str(error):
                reason = reason or str(error)
    if reason is not None:
        raise DeviceError(f"no {title} driver answers ({reason})")
    raise NoDriverError(f"no {title} driver answers ({names[0]} is not installed)")
