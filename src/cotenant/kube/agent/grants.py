# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods whose limits are above their requests: grants the memory and compute of the node's GPUs to their containers.

The grants of a container are in a file beside its list of processes. Its folder belongs to root and is mounted
read-only, so the container cannot change them, and a change takes effect at its next allocation: what the downward API
brings takes up to a minute. The rounds are those of one machine (`node/grants.py`). All state is in the files: an agent
that starts again goes on with the grants that are in force.

A container that is not known to have a slice yet is granted nothing, and its first allocation waits.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from cotenant.core.footprint import NOTHING, claims
from cotenant.core.model import ContainerKind, Demand, Gpu, Machine
from cotenant.core.units import MIB_BYTES, WHOLE_GPU, MiB, MilliGpu
from cotenant.errors import CotenantError, InputError
from cotenant.kube.agent.allocating import HostPlaces, slice_name
from cotenant.kube.agent.claim_files import slice_of_claim
from cotenant.kube.agent.jobs import PROC, PROCESSES_NAME, pod_of, slice_of
from cotenant.kube.agent.podresources import Listed
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import Record, Share, tenant_for, valid_record
from cotenant.kube.codec.grants import MOST_ABOVE, GrantReport, Lack, grants_for, leaves_soon
from cotenant.kube.codec.paths import GRANTS
from cotenant.kube.codec.request import container_names
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.grants import POLL_S, Member, Round, Shortage, SliceFiles, grant, make_grants, margin_of
from cotenant.node.launch import is_throttled, of_device
from cotenant.node.limits import GpuLimit

LIST_S, LIST_SELDOM_S = 0.25, 2.0
"""Between two questions to kubelet, while a container has no slice that we know: at first, and after a while."""
SOON_S = 60.0
REPORT_S = 30.0
"""Between two reports of what is granted, unless a pod lacks something."""

Key = tuple[str, int]
"""UID of a pod and number of a container."""


class _Tenant(NamedTuple):
    """A container whose limits are above its requests."""

    key: Key
    pod: tuple[str, str]
    container: str
    shares: tuple[Share, ...]
    slice: str = ""
    """The name of its slice, if it has its GPUs by a ResourceClaim; kubelet lists that of another container."""


class PodGrants:
    """The grants of one node. `run` grants; the callables say what is known at the moment."""

    def __init__(
        self,
        host: HostPlaces,
        pods: Callable[[], Collection[Pod]],
        machine: Callable[[], Machine],
        usage: Callable[[], Sequence[GpuUsage]],
        listed: Callable[[], Awaitable[Sequence[Listed]]],
        publish: Callable[[str | None], object],
        error_log: ErrorLog,
        proc: Path = PROC,
    ) -> None:
        self._host, self._pods, self._machine, self._usage, self._proc = host, pods, machine, usage, proc
        self._listed, self._publish, self._error_log = listed, publish, error_log
        self._changed = asyncio.Event()
        self._records: dict[str, Record] = {}
        """Of all pods with GPUs that have not ended; what several pods have by one claim is in that of the oldest."""
        self._known: frozenset[str] = frozenset()
        """UIDs of these pods."""
        self._leaving: frozenset[str] = frozenset()
        self._tenants: tuple[_Tenant, ...] = ()
        self._slices: dict[Key, str] = {}
        """Names of the slices."""
        self._shortages: dict[str, Shortage] = {}
        self._held: tuple[Sequence[GpuUsage], Counter[tuple[str, str]], Counter[str]] = ((), Counter(), Counter())
        self._list_due = self._soon_until = self._report_due = 0.0
        self._reported: tuple[Lack, ...] = ()

    def pods_changed(self) -> None:
        """Pods have come, gone or changed."""
        self._changed.set()

    async def run(self) -> NoReturn:
        """Grants until cancelled; sleeps while no pod may use more than it requests."""
        while True:
            if self._changed.is_set():
                self._changed.clear()
                self._take_pods()
            if not self._tenants:
                await self._changed.wait()
                continue
            await self._find_slices()
            self.step()
            await asyncio.sleep(POLL_S)

    # What there is

    def _take_pods(self) -> None:
        pods = [pod for pod in self._pods() if not has_ended(pod)]
        known = list(_counted_once([(pod, record) for pod in pods if (record := valid_record(pod)) is not None]))
        self._known = frozenset(pod.metadata.uid for pod, _ in known)
        self._records = {pod.metadata.uid: record for pod, record in known if record.containers}
        self._leaving = frozenset(pod.metadata.uid for pod, _ in known if leaves_soon(pod))
        before = {one.key for one in self._tenants}
        self._tenants = tuple(one for pod, record in known for one in _tenants(pod, record))
        keys = {one.key for one in self._tenants}
        self._slices = {key: name for key, name in self._slices.items() if key in keys}
        self._slices |= {one.key: one.slice for one in self._tenants if one.slice}
        if keys - before:
            self._list_due, self._soon_until = 0.0, time.monotonic() + SOON_S
        if before and not keys:
            self._publish(None)
            self._reported = ()

    async def _find_slices(self) -> None:
        """Asks kubelet which slices the containers have that have none yet, as far as is known."""
        now = time.monotonic()
        if now < self._list_due or all(one.key in self._slices for one in self._tenants):
            return
        self._list_due = now + (LIST_S if now < self._soon_until else LIST_SELDOM_S)
        try:
            listed = await self._listed()
        except CotenantError as error:
            self._error_log.report("kubelet", str(error))
            return
        found = {(one.key, one.container): slice_name(one.resource, one.devices) for one in listed}
        for one in self._tenants:
            name = found.get((one.pod, one.container))
            if name is not None:  # a pod that is gone may have had the same devices
                self._slices = {key: its for key, its in self._slices.items() if its != name} | {one.key: name}

    # Rounds

    def step(self) -> None:
        """One round on each GPU that has a container with limits above its requests."""
        machine, now = self._machine(), time.monotonic()
        elastic = {share.gpu for one in self._tenants for share in one.shares}
        reports: dict[str, list[GrantReport]] = {}
        lacks = []
        for gpu in (one for one in machine.gpus if one.uuid in elastic):
            members = self._members(gpu, machine)
            leaving = {one.name for one in members if one.name.partition("/")[0] in self._leaving}
            capacity = max(sum(one.request for one in members), gpu.memory * MIB_BYTES - self._foreign(gpu.uuid))
            done = grant(gpu.uuid, capacity, margin_of(gpu.memory * MIB_BYTES), members, leaving)
            for one in members:
                if one.is_elastic:
                    uid, number = _key(one.name)
                    reports.setdefault(uid, []).append(_report(number, gpu.uuid, one, done))
            shortage = self._shortages.setdefault(gpu.uuid, Shortage())
            shortage.update(done, now)
            if shortage.is_due(now):
                lacks.append(_lack(gpu.uuid, members, done, leaving))
        self._report(reports, tuple(lacks), now)

    def _members(self, gpu: Gpu, machine: Machine) -> list[Member]:
        """The tenants of a GPU: each container that may use more than it requests, and of each pod all others together,
        which have what they request."""
        found, counted = [], Counter[str]()
        computed: Counter[str] = Counter()
        for one in self._tenants:
            for share in one.shares:
                if share.gpu == gpu.uuid:
                    member = self._member(one, share, gpu)
                    found.append(member)
                    counted[one.key[0]] += member.request
                    computed[one.key[0]] += member.compute
        index = machine.gpus.index(gpu)
        for uid, record in self._records.items():
            tenant = tenant_for(record, _NO_CONSTRAINTS, machine)
            claim = claims(tenant.demand, tenant.gpus, machine.gpus).get(index, NOTHING)
            request = (claim.memory - gpu.host_part(claim.memory)) * MIB_BYTES
            rest, compute = request - counted[uid], of_device(gpu, claim.compute) - computed[uid]
            if rest > 0 or compute > 0:
                share_left = MilliGpu(max(0, compute))
                found.append(Member(uid, _NO_FILES, max(0, rest), max(0, rest), share_left, share_left))
        return found

    def _member(self, one: _Tenant, share: Share, gpu: Gpu) -> Member:
        most = share.most_memory(gpu)
        compute = of_device(gpu, MilliGpu(share.compute))
        name = self._slices.get(one.key)
        files = _NO_FILES if name is None else self._files(name)
        member = Member(
            name="/".join(map(str, one.key)),
            files=files,
            request=(share.memory - gpu.host_part(MiB(share.memory))) * MIB_BYTES,
            limit=(most - gpu.host_part(most)) * MIB_BYTES,
            compute=compute,
            compute_limit=max(compute, of_device(gpu, MilliGpu(share.compute_limit))),
            held=0 if name is None else self._held_by(name, gpu.uuid),
        )
        least = compute or MilliGpu(share.most)  # beside a server with a latency objective
        first = GpuLimit(gpu.uuid, 0, least if is_throttled(least) else WHOLE_GPU)
        if member.limit > member.request:
            first = first._replace(request_bytes=member.request, most_bytes=member.limit)
        divided = member.compute_limit > member.compute
        return member._replace(started=name is not None and make_grants(files, first, keeps_compute=divided))

    def _files(self, name: str) -> SliceFiles:
        folder = self._host.slices.seen / name
        return SliceFiles(folder / PROCESSES_NAME / GRANTS.name, self._host.regions.seen / name, folder)

    # What the driver says

    def _look(self) -> None:
        """Which slice each process belongs to that the driver names, after each look at the GPUs."""
        usage = self._usage()
        if usage is self._held[0]:
            return
        held: Counter[tuple[str, str]] = Counter()
        foreign: Counter[str] = Counter()
        for gpu in usage:
            for process in gpu.processes or ():
                amount = (process.memory_mib or 0) * MIB_BYTES
                name = slice_of(process.pid, self._host.slices.seen, self._proc)
                if name is not None:
                    held[name, gpu.uuid] += amount
                elif pod_of(process.pid, self._known, self._proc) is None:
                    foreign[gpu.uuid] += amount
        self._held = usage, held, foreign

    def _held_by(self, name: str, uuid: str) -> int:
        self._look()
        return self._held[1][name, uuid]

    def _foreign(self, uuid: str) -> int:
        self._look()
        return self._held[2][uuid]

    # Reports

    def _report(self, reports: Mapping[str, Iterable[GrantReport]], lacks: tuple[Lack, ...], now: float) -> None:
        """Publishes what pods lack at once, and what they are granted seldom: each change of a node reaches all
        programs that watch nodes."""
        same = [(one.gpu, one.pod, list(one.above)) for one in lacks] == [
            (one.gpu, one.pod, list(one.above)) for one in self._reported
        ]
        if same and now < self._report_due:
            return
        self._report_due, self._reported = now + REPORT_S, lacks
        self._publish(grants_for(reports, lacks))


_NO_FILES = SliceFiles(Path("/nonexistent"), Path("/nonexistent"), Path("/nonexistent"))
_NO_CONSTRAINTS = Demand()


def _tenants(pod: Pod, record: Record) -> Iterable[_Tenant]:
    try:
        names = container_names(pod)
    except InputError:  # an annotation was changed since
        names = ()
    about = pod.metadata
    for held in {held.number: held for held in reversed(record.containers)}.values():
        shares = tuple(share for share in record.held_by(held.number) if share.is_elastic)
        if shares and held.number < len(names) and held.kind is not ContainerKind.INIT:
            name = slice_of_claim(held.claim) if held.claim else ""  # the first claim of a container brings its slice
            yield _Tenant((about.uid, held.number), (about.namespace, about.name), names[held.number], shares, name)


def _counted_once(pods: Sequence[tuple[Pod, Record]]) -> Iterator[tuple[Pod, Record]]:
    """Pods and their records, oldest first. What pods share by a claim is only in the first of their records, as its
    limits are those of the oldest pod (`claim_uses.py`)."""
    counted: set[str] = set()
    for pod, record in sorted(pods, key=lambda one: (one[0].metadata.creation_timestamp or "", one[0].metadata.uid)):
        own = tuple(held for held in record.containers if held.claim not in counted)
        counted |= {held.claim for held in own if held.claim}
        yield pod, record if len(own) == len(record.containers) else msgspec.structs.replace(record, containers=own)


def _key(name: str) -> Key:
    uid, _, number = name.partition("/")
    return uid, int(number or 0)


def _report(number: int, uuid: str, member: Member, done: Round) -> GrantReport:
    has = done.grants[member.name]
    return GrantReport(
        container=number,
        gpu=uuid,
        memory=has.granted // MIB_BYTES,
        used=has.used // MIB_BYTES,
        compute=has.compute if is_throttled(member.compute) else member.compute,
    )


def _lack(uuid: str, members: Iterable[Member], done: Round, leaving: Collection[str]) -> Lack:
    waiting, missing = max(done.waiting.items(), key=lambda item: (item[1], item[0]))
    above: Counter[str] = Counter()
    for one in members:
        more = done.grants[one.name].used - one.request
        if more > 0 and one.name not in leaving:
            above[_key(one.name)[0]] += -(-more // MIB_BYTES)
    furthest = dict(sorted(above.items(), key=lambda item: (-item[1], item[0]))[:MOST_ABOVE])
    return Lack(gpu=uuid, pod=_key(waiting)[0], missing=-(-missing // MIB_BYTES), above=furthest)
