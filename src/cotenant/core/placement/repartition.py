# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A plan of other MIG layouts, by which requests that wait would be served, and who would have to leave for it.

Requests are served in order. Each takes a free instance if one serves it, else the layout that removes the fewest free
instances, else, if that is allowed, the layout for which the fewest tenants must leave. Among layouts that remove as
many, one that fills a GPU leaves room for large instances elsewhere, and one that wastes no slices of compute leaves
room for many: both are tried, and the plan that changes fewer GPUs is taken. If it is known at which slices
the instances of a GPU are, those with tenants stay there; otherwise a layout is possible if all its instances can be
placed in some way.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

from cotenant.core.model import Demand, Gpu, Machine, Tenant
from cotenant.core.placement.checks import type_allowed
from cotenant.core.placement.layouts import (
    Profile,
    base_name,
    can_coexist,
    partitioned_type,
    profiles_of,
    wasted_compute,
)
from cotenant.core.placement.mig import may_use, must_be_whole
from cotenant.core.placement.mig_moves import Place, Placed, can_be_placed
from cotenant.core.units import WHOLE_GPU, MiB

NOT_FOR_MIG = "no instance can serve it: it needs a whole GPU, several, a percentage of the memory or exclusive use"
BY_UUID = "it names GPUs by UUID, and a layout has new ones"
NO_PROFILE = "no profile of these GPUs serves it"
NO_ROOM = "no layout has room for it beside the jobs that run"
STRANDED = "it must leave, and no GPU or instance of the new layouts serves it: it would wait until the layout changes"


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance, now or in a plan."""

    name: str
    profile: Profile
    tenants: tuple[Tenant, ...] = ()
    serves: str | None = None
    """the request that would get it"""
    start: int | None = None
    """the slice of memory at which it begins; None: it is not known, or not made yet"""

    @property
    def is_free(self) -> bool:
        return not self.tenants and self.serves is None


class Slices(NamedTuple):
    """What the driver says of the slices of one GPU."""

    places: Mapping[str, Place]
    """by profile"""
    starts: Mapping[str, int]
    """by the UUID of an instance"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What would become of one GPU."""

    gpu: str
    """UUID"""
    type: str
    now: tuple[str, ...]
    """profiles; empty: it is not partitioned"""
    then: tuple[str, ...]
    serves: tuple[str, ...]
    leave: tuple[str, ...]
    """jobs that would have to leave"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionPlan:
    """Changed GPUs, the requests that free instances serve as they are, and those that no change serves."""

    changes: tuple[Change, ...]
    served: Mapping[str, str]
    """by request: the UUID of the GPU"""
    unserved: Mapping[str, str]
    """by request: why"""
    stranded: Mapping[str, str]
    """by job that must leave, and could not run again in the new layouts: a sentence"""


@dataclass(frozen=True, slots=True)
class _Gpu:
    uuid: str
    type: str
    profiles: tuple[Profile, ...]
    now: tuple[str, ...]
    instances: tuple[Instance, ...]
    whole: MiB = MiB(0)
    """memory, if it is not partitioned and has no tenant"""
    leave: tuple[str, ...] = ()
    is_changed: bool = False
    places: Mapping[str, Place] = field(default_factory=dict)
    """empty: not known"""


@dataclass
class _State:
    gpus: dict[str, _Gpu]
    thrifty: bool
    """whether a layout that wastes no compute is better than one on a GPU that is partitioned already"""
    served: dict[str, str] = field(default_factory=dict)


def repartition(
    machine: Machine,
    tenants: Sequence[Tenant],
    requests: Iterable[tuple[str, Demand]],
    *,
    evict: bool = False,
    slices: Mapping[str, Slices] | None = None,
) -> RepartitionPlan:
    """The plan for these requests, in this order; with `evict`, tenants of no higher priority may have to leave.

    `slices` has what the driver says of some of the GPUs, by UUID.
    """
    wanted, gpus = list(requests), {gpu.uuid: gpu for gpu in _gpus(machine, tenants, slices or {})}
    plans = [_plan(_State(dict(gpus), thrifty), wanted, evict) for thrifty in (False, True)]
    best = min(plans, key=lambda one: (len(one.unserved), sum(len(gpu.leave) for gpu in one.changes), len(one.changes)))
    return replace(best, stranded=_stranded(best, machine, tenants))


def _plan(state: _State, requests: Sequence[tuple[str, Demand]], evict: bool) -> RepartitionPlan:
    unserved: dict[str, str] = {}
    for name, demand in requests:
        why = _serve(state, name, demand, evict)
        if why is not None:
            unserved[name] = why
    changes = [
        Change(
            gpu=gpu.uuid,
            type=gpu.type,
            now=gpu.now,
            then=tuple(one.name for one in gpu.instances),
            serves=tuple(one.serves for one in gpu.instances if one.serves is not None),
            leave=gpu.leave,
        )
        for gpu in state.gpus.values()
        if gpu.is_changed
    ]
    served = {name: uuid for name, uuid in state.served.items() if not state.gpus[uuid].is_changed}
    return RepartitionPlan(changes=tuple(changes), served=served, unserved=unserved, stranded={})


def _stranded(plan: RepartitionPlan, machine: Machine, tenants: Sequence[Tenant]) -> dict[str, str]:
    """Jobs that must leave and whose demand no GPU of the plan meets, whether it is free or not."""
    leave = {job for change in plan.changes for job in change.leave}
    changed = {change.gpu for change in plan.changes}
    kept = [gpu for gpu in machine.gpus if gpu.uuid not in changed and gpu.card not in changed]
    made = [
        Instance(name, profile)
        for change in plan.changes
        for name in change.then
        for profile in profiles_of(change.type, present=change.then)
        if profile.name == base_name(name)
    ]
    types = {name: change.type for change in plan.changes for name in change.then}
    return {
        one.job: STRANDED
        for one in tenants
        if one.job in leave
        and not any(_could_use(one.demand, gpu) for gpu in kept)
        and not any(_suits(one.demand, instance, types[instance.name]) for instance in made)
    }


def _could_use(demand: Demand, gpu: Gpu) -> bool:
    """Whether a GPU or an instance that stays as it is would serve the demand if it were free."""
    if demand.memory > gpu.memory_capacity or not type_allowed(gpu.type, demand.use_types, demand.avoid_types):
        return False
    if gpu.mig is None:
        return demand.mig is None
    return may_use(demand, gpu.mig) and (demand.mig is not None or demand.compute <= gpu.compute_capacity)


def _gpus(machine: Machine, tenants: Sequence[Tenant], slices: Mapping[str, Slices]) -> Iterable[_Gpu]:
    """Those that are partitioned first, then those that could be."""
    parts: dict[str, list[tuple[int, Gpu]]] = {}
    kept = set()
    for i, gpu in enumerate(machine.gpus):
        if gpu.mig is None or gpu.card is None:
            continue
        if gpu.healthy:
            parts.setdefault(gpu.card, []).append((i, gpu))
        # A cordoned instance takes no tenant, and one that is unhealthy and has tenants still has its slices.
        if gpu.cordoned or (not gpu.healthy and any(i in one.gpus for one in tenants)):
            kept.add(gpu.card)
    for uuid, own in parts.items():
        if uuid in kept:
            continue
        kind, now = partitioned_type(own[0][1]), tuple(gpu.mig or "" for _, gpu in own)
        profiles = {one.name: one for one in profiles_of(kind, present=now)}
        places, starts = slices.get(uuid, Slices({}, {}))
        if not all(gpu.uuid in starts for _, gpu in own):
            places = {}
        instances = tuple(
            # Its real amounts, which the driver knows better.
            Instance(
                gpu.mig or "",
                profiles[base_name(gpu.mig or "")]._replace(memory=gpu.memory_capacity, compute=gpu.compute_capacity),
                tuple(one for one in tenants if i in one.gpus),
                start=starts.get(gpu.uuid),
            )
            for i, gpu in own
            if base_name(gpu.mig or "") in profiles
        )
        if len(instances) == len(own):
            yield _Gpu(uuid, kind, tuple(profiles.values()), now, instances, places=places)
    for i, gpu in enumerate(machine.gpus):
        idle = gpu.healthy and not gpu.cordoned and not any(i in one.gpus for one in tenants)
        if gpu.mig is None and gpu.card is None and idle and (found := profiles_of(gpu.type, gpu.memory)):
            yield _Gpu(gpu.uuid, gpu.type, found, (), (), whole=gpu.memory_capacity)


def _serve(state: _State, request: str, demand: Demand, evict: bool) -> str | None:
    """Serves a request; or says why it cannot."""
    if demand.gpus != 1 or demand.containers or (demand.mig is None and (must_be_whole(demand) or demand.exclusive)):
        return NOT_FOR_MIG
    if demand.use_uuids:
        return BY_UUID
    free = [
        (gpu, one)
        for gpu in state.gpus.values()
        for one in gpu.instances
        if one.is_free and _suits(demand, one, gpu.type)
    ]
    if free:
        gpu, smallest = min(free, key=lambda way: (way[1].profile.compute, way[1].profile.memory))
        _put(state, replace(gpu, instances=_replaced(gpu.instances, smallest, replace(smallest, serves=request))))
        state.served[request] = gpu.uuid
        return None
    unused = [gpu for gpu in state.gpus.values() if not gpu.is_changed and _serves_whole(gpu, demand)]
    if unused:
        _put(state, replace(unused[0], profiles=(), whole=MiB(0)))  # it is in use now, and stays as it is
        state.served[request] = unused[0].uuid
        return None
    ways = [
        way for gpu in state.gpus.values() if (way := _beside_tenants(gpu, request, demand, state.thrifty)) is not None
    ]
    if ways:
        _put(state, min(ways, key=lambda way: way[0])[1])
        return None
    if not any(_profile_for(gpu, demand) for gpu in state.gpus.values()):
        return NO_PROFILE
    harms = [one for gpu in state.gpus.values() if (one := _instead_of_tenants(gpu, request, demand)) is not None]
    if not harms:
        return NO_ROOM
    _, best = min(harms, key=lambda way: way[0])
    if evict:
        _put(state, best)
        return None
    leaving = [job for job in best.leave if job not in state.gpus[best.uuid].leave]
    return f"{NO_ROOM}; {', '.join(leaving)} would have to leave"


def _beside_tenants(gpu: _Gpu, request: str, demand: Demand, thrifty: bool) -> tuple[tuple[int, int, int], _Gpu] | None:
    """The GPU with a new instance beside all that are in use, and the number of free instances that it costs."""
    profile = _profile_for(gpu, demand)
    if profile is None:
        return None
    used = [one for one in gpu.instances if not one.is_free]
    made = _with_free(gpu, [*used, _new(profile, demand, request)])
    if made is None:
        return None
    removed = len([one for one in gpu.instances if one not in made.instances])
    wasted = wasted_compute(gpu.type, [one.profile for one in made.instances]) if thrifty else 0
    return (removed, wasted, not gpu.now), made  # a GPU that is not partitioned yet is the last choice


def _instead_of_tenants(gpu: _Gpu, request: str, demand: Demand) -> tuple[tuple[int, int], _Gpu] | None:
    """The GPU with a new instance instead of those of the fewest tenants, none of a higher priority."""
    profile = _profile_for(gpu, demand)
    if profile is None:
        return None
    kept = [one for one in gpu.instances if one.serves is not None]
    used = [one for one in gpu.instances if one.tenants]
    ways = []
    for count in range(1, len(used) + 1):
        for out in combinations(used, count):
            leaving = [tenant for one in out for tenant in one.tenants]
            stay = [one for one in used if one not in out]
            made = _with_free(gpu, [*stay, *kept, _new(profile, demand, request)])
            if made is not None and all(one.demand.priority <= demand.priority for one in leaving):
                jobs = tuple(dict.fromkeys((*gpu.leave, *(one.job for one in leaving))))
                ways.append(((len(leaving), count), replace(made, leave=jobs)))
    return min(ways, key=lambda way: way[0], default=None)


def _with_free(gpu: _Gpu, needed: Sequence[Instance]) -> _Gpu | None:
    """The GPU with these instances, and with as many of its free ones as can stay; None if even these do not fit."""
    if not _can_coexist(gpu, needed):
        return None
    chosen = list(needed)
    for one in gpu.instances:
        more = [*chosen, one]
        if one.is_free and _can_coexist(gpu, more):
            chosen = more
    return replace(gpu, instances=tuple(chosen), is_changed=True)


def _can_coexist(gpu: _Gpu, instances: Sequence[Instance]) -> bool:
    """Those with tenants stay where they are, if that is known; the others can be made again elsewhere."""
    if _with_media(instances) > 1:
        return False
    if not gpu.places:
        return can_coexist(gpu.type, [one.profile for one in instances])
    fixed = [
        Placed(one.name, one.start, gpu.places[one.name].size)
        for one in instances
        if one.tenants and one.start is not None and one.name in gpu.places
    ]
    return can_be_placed([one.name for one in instances if not one.tenants], fixed, gpu.places)


def _with_media(instances: Sequence[Instance]) -> int:
    """The number of instances with media extensions; a GPU can have one."""
    return sum("+me" in one.name for one in instances)


def _new(profile: Profile, demand: Demand, request: str) -> Instance:
    return Instance(_named(profile, demand), profile, serves=request)


def _profile_for(gpu: _Gpu, demand: Demand) -> Profile | None:
    """The smallest profile of a GPU that serves the demand; they are in this order."""
    return next((one for one in gpu.profiles if _suits(demand, Instance(_named(one, demand), one), gpu.type)), None)


def _named(profile: Profile, demand: Demand) -> str:
    """A new instance can have the media extensions that the demand names."""
    return demand.mig if demand.mig is not None and base_name(demand.mig) == profile.name else profile.name


def _serves_whole(gpu: _Gpu, demand: Demand) -> bool:
    """Whether a GPU without MIG serves the demand as it is."""
    is_enough = gpu.whole > 0 and demand.memory <= gpu.whole
    return demand.mig is None and is_enough and type_allowed(gpu.type, demand.use_types, demand.avoid_types)


def _suits(demand: Demand, instance: Instance, gpu_type: str) -> bool:
    profile = instance.profile
    if not may_use(demand, instance.name):
        return False
    if not type_allowed(f"{gpu_type} MIG {instance.name}", demand.use_types, demand.avoid_types):
        return False
    if demand.mig is not None:
        return demand.memory <= profile.memory
    return demand.memory <= profile.memory and demand.compute <= min(profile.compute, WHOLE_GPU - 1)


def _replaced(instances: Sequence[Instance], old: Instance, new: Instance) -> tuple[Instance, ...]:
    place = next(i for i, one in enumerate(instances) if one is old)
    return (*instances[:place], new, *instances[place + 1 :])


def _put(state: _State, gpu: _Gpu) -> None:
    state.gpus[gpu.uuid] = gpu
