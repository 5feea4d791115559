# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What would make a job fit: the least changes, each of them tried by the checks and the ranking that place jobs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Reason, Slot
from cotenant.core.placement.ranking import Ranker
from cotenant.core.queueing.eviction import Stake
from cotenant.core.queueing.preemption import Holder
from cotenant.core.suggestions.changes import (
    CONSTRAINT_SIZE,
    Axis,
    Change,
    Suggestion,
    Without,
    axes,
    constraints,
    constraints_dropped,
)
from cotenant.core.suggestions.leaving import least_leaving, least_leaving_for_gang
from cotenant.core.suggestions.search import Search, Steps

PAIRED = ("compute", "memory")
"""amounts that are lowered together if neither alone is enough"""


def suggestions(
    search: Search, stakes: Mapping[str, Stake] | None = None, running: Iterable[Holder] = ()
) -> Iterator[Suggestion | None]:
    """All suggestions for a job that cannot be placed, in no order; None between the steps of the search, so that an
    engine can do other work. The job must not be in the cluster.

    `stakes` are the tenants that may have to end, `running` the same as jobs, which are read for a gang.
    """
    if (yield from search.placed(search.job.demand)) is not None:
        return
    demand = search.job.demand
    dropped = yield from _dropped(search, demand)
    yield from dropped
    if search.job.replicas == 1:
        yield (yield from least_leaving(search, {} if stakes is None else stakes))
    else:
        yield least_leaving_for_gang(search, list(running))
    lowered = False
    for axis in axes(demand):
        found = yield from _lowered(search, axis, demand)
        lowered = lowered or found is not None
        yield found
    if not lowered and not dropped:
        yield from (yield from _both(search, demand))
        yield from (yield from _dropped_and_lowered(search, demand))


def ordered(found: Iterable[Suggestion | None]) -> list[Suggestion]:
    """The suggestions, the smallest change first."""
    return sorted((one for one in found if one is not None), key=lambda one: (one.size, one.kind, one.text))


def _dropped(search: Search, demand: Demand) -> Steps[list[Suggestion]]:
    """One suggestion for each kind of constraint; types, profiles and rungs that would do are named together."""
    works: dict[str, list[tuple[Without, tuple[Slot, ...]]]] = {}
    for one in constraints(demand, search.cluster):
        if search.spent:
            break
        near = yield from search.somewhere(one.demand)
        slots = None if near is None else (yield from search.placed(one.demand, near))
        if slots is not None:
            works.setdefault(one.kind, []).append((one, slots))
        yield None
    return [_without(kind, alike) for kind, alike in works.items()]


def _without(kind: str, alike: Sequence[tuple[Without, tuple[Slot, ...]]]) -> Suggestion:
    first, slots = alike[0]
    text = first.text + "".join(f" or {name}" for one, _ in alike[1:] for name in one.names)
    names = tuple(name for one, _ in alike for name in one.names)
    return Suggestion((Change(kind, text, names=names),), CONSTRAINT_SIZE, first.demand, slots)


def _lowered(search: Search, axis: Axis, demand: Demand) -> Steps[Suggestion | None]:
    """The highest lower amount of one kind with which the whole job can be placed."""
    found = yield from search.highest(axis, demand)
    if found is None:
        return None
    amount, node = found
    exact = not search.spent
    slots = yield from search.placed(axis.change(demand, amount), node)
    if slots is None and not (search.is_plain and search.allows is None):
        # One member fits with this amount, and the gang, the sharing gate or a quota needs a lower one.
        lower = range(axis.least, amount, axis.unit)
        likely = yield from _likely(search, axis, demand)
        if likely in lower:
            slots = yield from search.placed(axis.change(demand, likely))
            if slots is not None:
                amount, lower = likely, lower[lower.index(likely) + 1 :]
        while lower and not search.spent:
            middle = lower[len(lower) // 2]
            tried = yield from search.placed(axis.change(demand, middle))
            if tried is not None:
                amount, slots = middle, tried
            after = lower.index(middle) + (tried is not None)
            lower = lower[after:] if tried is not None else lower[:after]
        exact = not lower
    if slots is None:
        return None
    return Suggestion((axis.to(amount),), axis.size(amount), axis.change(demand, amount), slots, exact)


def _likely(search: Search, axis: Axis, demand: Demand) -> Steps[int]:
    """An amount that is likely to be accepted, to begin with: for a gang, one with which its members need not share a
    GPU; behind a sharing gate, one for an idle GPU. 0: none."""
    if search.job.replicas > 1:
        return search.highest_apart(axis, demand)
    idle = None if search.is_plain else (yield from search.highest(axis, replace(demand, exclusive=True)))
    return 0 if idle is None else idle[0]


def _dropped_and_lowered(search: Search, demand: Demand) -> Steps[list[Suggestion]]:
    """A dropped constraint and a lower amount, if neither alone is enough."""
    found = []
    for one in constraints_dropped(demand):
        for axis in axes(demand):
            both = None if search.spent else (yield from _lowered(search, axis, one.demand))
            if both is not None:
                changes = Change(one.kind, one.text), *both.changes
                found.append(replace(both, changes=changes, size=both.size + CONSTRAINT_SIZE))
    return found


def _both(search: Search, demand: Demand) -> Steps[list[Suggestion]]:
    """Two amounts, if neither alone is enough: each is the highest beside the other."""
    alone = {axis.kind: axis for axis in axes(demand) if axis.amounts()}
    found: dict[tuple[int, ...], Suggestion] = {}
    for one, other in permutations([alone[kind] for kind in PAIRED if kind in alone], 2):
        first = yield from search.highest(one, other.change(demand, other.least))
        if first is None or search.spent:
            continue
        both = yield from _lowered(search, other, one.change(demand, first[0]))
        if both is not None:
            changes = tuple(sorted((one.to(first[0]), *both.changes)))
            size = one.size(first[0]) + both.size
            found[tuple(change.now for change in changes)] = replace(both, changes=changes, size=size)
        yield None
    return list(found.values())


class GangStanding(NamedTuple):
    """How much of a gang could start now."""

    needed: int
    fit: int
    """members that fit together"""
    lacks: Reason | None
    """the reason of the node that is nearest to taking the next member; None if all fit"""


def gang_standing(search: Search) -> Steps[GangStanding]:
    """How many members of a gang fit now, and what the next one lacks."""
    job, ranker = search.job, search.memory.ranker
    fit, cluster = yield from _members(search, ranker)
    if fit < job.replicas and search.policy.gate is None:  # as `place_gang` does
        more, roomiest = yield from _members(search, ranker.roomiest())
        fit, cluster = (more, roomiest) if more > fit else (fit, cluster)
    if fit == job.replicas:
        return GangStanding(job.replicas, fit, None)
    open_nodes = [name for name in cluster.names if name not in search.closed]
    reasons = ranker.reasons(job.demand, cluster, open_nodes)
    lacks = min(reasons.values(), key=lambda why: (why.needed - why.available, why.text), default=None)
    return GangStanding(job.replicas, fit, lacks)


def _members(search: Search, ranker: Ranker) -> Steps[tuple[int, Cluster]]:
    """How many members fit if each gets the best slot that the earlier ones leave, and the cluster with them."""
    job, cluster, gate = search.job, search.cluster, ranker.policy.gate
    for member in range(job.replicas):
        fit = ranker.best(job.demand, cluster, None, search.closed)
        yield None
        waits = None if fit is None or gate is None or search.crowding is None else gate(fit.score, search.crowding)
        if fit is None or (waits is not None and waits.reason is not None):
            return member, cluster
        cluster = cluster.seat(job, fit.slot, member)
    return job.replicas, cluster
