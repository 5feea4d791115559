# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Grants the memory and compute of one GPU to slices that may use more than they request.

The limits file of such a slice has its grant, and its processes record what they use and want in the usage region. A
process announces an allocation first and reads its limits afterwards; this module lowers a grant first and reads the
use afterwards. So one of the two sees what the other did, and what is in force or in use never exceeds the GPU
(docs/decisions/0022-grants-are-lowered-before-use-is-read.md).
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cotenant.core.sharing.surplus import Holder, Share, divide, divide_compute, evictions, first_grant, needed, raises
from cotenant.core.units import MIB_BYTES, WHOLE_GPU, MilliGpu
from cotenant.errors import CotenantError
from cotenant.node.limits import GpuLimit, Limits, change_limits, limits_text, read_limits, write_read_only
from cotenant.node.monitor import CONTEXT_BYTES, gpu_uuids
from cotenant.node.slices import LIMITS, REGION, SliceState, read_files

POLL_S = 0.05
EVICT_AFTER_S = 0.3
"""for which tenants above their requests may free memory by themselves, after their growth is refused"""
MARGIN_PARTS, MOST_MARGIN = 16, 1024 * MIB_BYTES


def margin_of(capacity: int) -> int:
    """Bytes of a GPU that a tenant keeps above its use within its request, so that it seldom waits: what the driver
    takes for its contexts must fit, too."""
    return min(capacity // MARGIN_PARTS, MOST_MARGIN)


class SliceFiles(NamedTuple):
    """Where a slice has what this module reads and writes."""

    grants: Path
    """the file with its grants: the limits file, or a file of the same format that the limits name"""
    region: Path
    lock: Path
    """the folder that is locked while the grants are changed"""


def files_in(folder: Path) -> SliceFiles:
    """Those of a slice of this machine, which are in one folder."""
    return SliceFiles(folder / LIMITS, folder / REGION, folder)


class Member(NamedTuple):
    """A tenant of one GPU; memory in bytes."""

    name: str
    files: "SliceFiles"
    request: int
    limit: int
    compute: MilliGpu = MilliGpu(0)
    compute_limit: MilliGpu = MilliGpu(0)
    started: bool = True
    """False: its processes are started when what it needs first is free"""
    held: int = 0
    """bytes that the driver last reported for its processes"""

    @property
    def is_elastic(self) -> bool:
        return self.limit > self.request or self.compute_limit > self.compute


class Grant(NamedTuple):
    """What a tenant has of a GPU at present."""

    granted: int
    most: int
    used: int
    compute: MilliGpu


class Round(NamedTuple):
    """The result of one round on one GPU."""

    grants: Mapping[str, Grant]
    startable: tuple[str, ...]
    """tenants whose processes can be started now"""
    waiting: Mapping[str, int]
    """bytes that tenants need within their request and do not have yet"""
    evict: tuple[str, ...]
    """tenants that have to leave the GPU for them, unless memory is freed soon"""


class Shortage:
    """For how long a GPU has lacked what a tenant needs within its request."""

    def __init__(self) -> None:
        self._since: float | None = None

    def update(self, done: Round, now: float) -> bool:
        """Takes in the result of a round; True if the shortage has just begun."""
        if not done.waiting or not done.evict:
            self._since = None
            return False
        begins = self._since is None
        self._since = now if self._since is None else self._since
        return begins

    def is_due(self, now: float) -> bool:
        """Whether a tenant has to leave, because those above their requests have freed too little."""
        return self._since is not None and now - self._since >= EVICT_AFTER_S


class _Seen(NamedTuple):
    """A tenant as it is observed."""

    holder: Holder
    in_force: int


def grant(uuid: str, capacity: int, margin: int, members: Sequence[Member], leaving: Container[str] = ()) -> Round:
    """One round: observes the tenants of a GPU, lowers grants, observes again, raises grants.

    Tenants in `leaving` are being evicted: no other tenant is evicted for what they will free.
    """
    seen = {one.name: _observe(one, uuid, capacity, margin) for one in members}
    shares = divide(capacity, [one.holder for one in seen.values()], margin)
    in_force = {one.name: _lower(one, uuid, seen[one.name], shares[one.name]) for one in members}
    seen = {one.name: _Seen(_observe(one, uuid, capacity, margin).holder, in_force[one.name]) for one in members}
    holders = [one.holder for one in seen.values()]
    shares = divide(capacity, holders, margin)
    compute = divide_compute(WHOLE_GPU, [Holder(one.name, one.compute, one.compute_limit, 0) for one in members])
    raised = raises(capacity, holders, in_force, shares, margin)
    for one in members:
        share = Share(raised.get(one.name, in_force[one.name]), shares[one.name].most)
        in_force[one.name] = _write(one, uuid, share, MilliGpu(compute[one.name]), in_force[one.name])
    # A grant that could not be lowered counts as used: its slice may use it at any moment.
    staying = [
        one._replace(used=max(one.used, in_force[one.name])) if in_force[one.name] > shares[one.name].granted else one
        for one in holders
        if one.name not in leaving
    ]
    return Round(
        grants={
            one.name: Grant(
                in_force[one.name], shares[one.name].most, seen[one.name].holder.used, MilliGpu(compute[one.name])
            )
            for one in members
        },
        startable=tuple(
            one.name
            for one in members
            if not one.started and in_force[one.name] >= first_grant(seen[one.name].holder, margin)
        ),
        waiting={
            one.name: missing
            for one in holders
            if (missing := needed(one, margin) - max(in_force[one.name], one.used)) > 0
        },
        evict=tuple(evictions(capacity, staying, margin)),
    )


def make_grants(files: SliceFiles, first: GpuLimit, *, keeps_compute: bool) -> bool:
    """Makes the grants file of a slice whose limits name one, unless it has a line for this GPU that says the same of
    the request; what is in force there stays, and the compute if `keeps_compute`. False: the slice is being made or
    removed."""
    try:
        limits = _grants_in(files.grants)
        known = _limit(limits, first.uuid)
        line = first if known is None else known._replace(request_bytes=first.request_bytes)
        line = line if keeps_compute else line._replace(compute=first.compute)
        if line == known:
            return files.region.exists()
        others = tuple(one for one in limits.gpus if one.uuid != first.uuid)
        write_read_only(files.grants, limits_text(Limits(gpus=(*others, line))))
        return files.region.exists()
    except (OSError, CotenantError):
        return False


def _grants_in(file: Path) -> Limits:
    try:
        return read_limits(file)
    except FileNotFoundError:
        return Limits()


def _observe(member: Member, uuid: str, capacity: int, margin: int) -> _Seen:
    holder = Holder(member.name, member.request, member.limit, 0)
    if not holder.lends:
        used = member.request if member.started else 0
        return _Seen(holder._replace(used=used), used)
    state = read_files(member.name, member.files.grants, member.files.region)
    first = first_grant(holder, margin) if member.started else 0
    if state is None:
        return _Seen(holder, first)
    recorded, waited_for, processes = _use(state, uuid)
    # A tenant can write any number into its region. No more than the GPU has can be true.
    counted, wanted = min(recorded, capacity), min(waited_for, capacity)
    used = counted + min(max(0, member.held - counted), processes * CONTEXT_BYTES)
    if wanted:  # its processes have added what no account has
        wanted = max(0, counted + wanted - used)
    limit = _limit(state.limits, uuid)
    # If its limits cannot be read, its processes keep the last ones, which are not known here.
    in_force = member.limit if limit is None or limit.memory_bytes is None else limit.memory_bytes
    return _Seen(holder._replace(used=used, wanted=wanted), in_force)


def _use(state: SliceState, uuid: str) -> tuple[int, int, int]:
    """Bytes that the live processes of a slice use and want of a GPU, as they recorded it, and their number."""
    names = gpu_uuids(state)
    if state.region is None or uuid not in names:
        return 0, 0, 0
    place = names.index(uuid)
    uses = [one.gpus[place] for one in state.region.processes if one.live and place < len(one.gpus)]
    return sum(use.memory_bytes for use in uses), sum(use.wanted_mib for use in uses) * MIB_BYTES, len(uses)


def _limit(limits: Limits, uuid: str) -> GpuLimit | None:
    return next((one for one in limits.gpus if one.uuid == uuid), None)


def _lower(member: Member, uuid: str, seen: _Seen, share: Share) -> int:
    """Lowers a grant if its share is smaller now; what is in force afterwards."""
    if member.limit == member.request or share.granted >= seen.in_force:
        return seen.in_force
    lowered = _change(member, uuid, lambda old: old._replace(memory_bytes=share.granted, most_bytes=share.granted))
    return share.granted if lowered else seen.in_force


def _write(member: Member, uuid: str, share: Share, compute: MilliGpu, in_force: int) -> int:
    """Puts a share in force that is not smaller than before; what is in force afterwards."""
    if not member.started:
        return share.granted
    if not member.is_elastic:
        return in_force
    # What is wanted is recorded in whole MiB, rounded up.
    most = share.most if share.most >= member.limit else max(share.granted, share.most - MIB_BYTES)

    def change(old: GpuLimit) -> GpuLimit:
        new = old._replace(compute=compute) if member.compute_limit > member.compute else old
        if member.limit > member.request:
            new = new._replace(memory_bytes=share.granted, most_bytes=most)
        return new

    return share.granted if _change(member, uuid, change) else in_force


def _change(member: Member, uuid: str, change: Callable[[GpuLimit], GpuLimit]) -> bool:
    """Changes the limits of a slice on one GPU; False: the slice is being made or removed, or its tenant holds its
    lock."""

    def changed(limits: Limits) -> Limits:
        gpus = tuple(change(one) if one.uuid == uuid else one for one in limits.gpus)
        return replace(limits, gpus=gpus)

    try:
        change_limits(member.files.grants, changed, wait=False, lock=member.files.lock)
    except (OSError, CotenantError):
        return False
    return True
