# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What would make a job fit: the least changes, each of them tried by the checks and the ranking that place jobs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

from cotenant.core.model import Demand, Reason, Slot
from cotenant.core.placement.deciding import place_gang
from cotenant.core.queueing.eviction import Stake
from cotenant.core.queueing.preemption import Holder
from cotenant.core.suggestions.changes import CONSTRAINT_SIZE, Axis, Change, Suggestion, Without, axes, constraints
from cotenant.core.suggestions.leaving import least_leaving, least_leaving_for_gang
from cotenant.core.suggestions.search import Search, highest_accepted

PAIRED = ("compute", "memory")
"""amounts that are lowered together if neither alone is enough"""


def suggestions(
    search: Search, stakes: Mapping[str, Stake] | None = None, running: Iterable[Holder] = ()
) -> Iterator[Suggestion | None]:
    """All suggestions for a job that cannot be placed, in no order; None between the steps of the search, so that an
    engine can do other work. The job must not be in the cluster.

    `stakes` are the tenants that may have to end, `running` the same as jobs, which are read for a gang.
    """
    if search.placed(search.job.demand) is not None:
        return
    yield None
    demand = search.job.demand
    dropped = list(_dropped(search, demand))
    yield from dropped
    lowered = False
    for axis in axes(demand):
        found = _lowered(search, axis, demand)
        lowered = lowered or found is not None
        yield found
    if not lowered and not any(dropped):
        yield from _both(search, demand)
    if search.job.replicas == 1:
        yield least_leaving(search, {} if stakes is None else stakes)
    else:
        yield least_leaving_for_gang(search, list(running))


def ordered(found: Iterable[Suggestion | None]) -> list[Suggestion]:
    """The suggestions, the smallest change first."""
    return sorted((one for one in found if one is not None), key=lambda one: (one.size, one.kind, one.text))


def _dropped(search: Search, demand: Demand) -> Iterator[Suggestion | None]:
    """One suggestion for each kind of constraint; types, profiles and rungs that would do are named together."""
    works: dict[str, list[tuple[Without, tuple[Slot, ...]]]] = {}
    for one in constraints(demand, search.cluster):
        if search.spent:
            break
        near = search.somewhere(one.demand)
        slots = None if near is None else search.placed(one.demand, near)
        if slots is not None:
            works.setdefault(one.kind, []).append((one, slots))
        yield None
    for kind, alike in works.items():
        first, slots = alike[0]
        text = first.text + "".join(f" or {name}" for one, _ in alike[1:] for name in one.names)
        names = tuple(name for one, _ in alike for name in one.names)
        yield Suggestion((Change(kind, text, names=names),), CONSTRAINT_SIZE, first.demand, slots)


def _lowered(search: Search, axis: Axis, demand: Demand) -> Suggestion | None:
    """The highest lower amount of one kind with which the whole job can be placed."""
    found = search.highest(axis, demand)
    if found is None:
        return None
    amount, node = found
    exact = not search.spent
    changed = axis.change(demand, amount)
    slots = search.placed(changed, node)
    if slots is None and not (search.is_plain and search.allows is None):
        # One member fits with this amount, and the gang, the sharing gate or a quota needs a lower one.
        tried: dict[int, tuple[Slot, ...] | None] = {}

        def accepts(lower: int) -> bool:
            tried[lower] = None if search.spent else search.placed(axis.change(demand, lower))
            return tried[lower] is not None

        lowest = highest_accepted(range(axis.least, amount, axis.unit), accepts)
        if lowest is None:
            return None
        amount, exact = lowest, not search.spent
        slots = tried.get(amount)
        changed = axis.change(demand, amount)
    if slots is None:
        return None
    return Suggestion((axis.to(amount),), axis.size(amount), changed, slots, exact)


def _both(search: Search, demand: Demand) -> Iterator[Suggestion | None]:
    """Two amounts, if neither alone is enough: each is the highest beside the other."""
    alone = {axis.kind: axis for axis in axes(demand) if axis.amounts()}
    found: dict[tuple[int, ...], Suggestion] = {}
    for one, other in permutations([alone[kind] for kind in PAIRED if kind in alone], 2):
        least = other.change(demand, other.least)
        first = search.highest(one, least)
        yield None
        if first is None or search.spent:
            continue
        both = _lowered(search, other, one.change(demand, first[0]))
        if both is not None and both.demand is not None:
            changes = tuple(sorted((one.to(first[0]), *both.changes)))
            size = one.size(first[0]) + both.size
            found[tuple(change.now for change in changes)] = replace(both, changes=changes, size=size)
        yield None
    yield from found.values()


class GangStanding(NamedTuple):
    """How much of a gang could start now."""

    needed: int
    fit: int
    """members that fit together"""
    lacks: Reason | None
    """the reason of the node that is nearest to taking the next member; None if all fit"""


def gang_standing(search: Search) -> GangStanding:
    """How many members of a gang fit now, and what the next one lacks."""
    job = search.job

    def fits(members: int) -> bool:
        some = replace(job, replicas=members)
        found = place_gang(search.memory.ranker, some, search.cluster, None, search.crowding, search.closed)
        return found is not None

    fit = highest_accepted(range(1, job.replicas + 1), fits) or 0
    if fit == job.replicas:
        return GangStanding(job.replicas, fit, None)
    cluster = search.cluster
    if fit:
        some = replace(job, replicas=fit)
        found = place_gang(search.memory.ranker, some, cluster, None, search.crowding, search.closed)
        cluster = cluster if found is None else found.cluster
    open_nodes = [name for name in cluster.names if name not in search.closed]
    reasons = search.memory.ranker.reasons(job.demand, cluster, open_nodes)
    lacks = min(reasons.values(), key=lambda why: (why.needed - why.available, why.text), default=None)
    return GangStanding(job.replicas, fit, lacks)
