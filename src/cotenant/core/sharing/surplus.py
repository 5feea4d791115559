# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests below limits: how what is free on one GPU is divided among tenants that may use more than they request.

A tenant is guaranteed its request. A tenant whose limit is above its request lends the idle part of its request, and
may borrow up to its limit; a tenant without such a limit keeps its whole request. All amounts are of one unit.

Invariants: the amounts that are granted never exceed the GPU; no limit is exceeded; a tenant that needs more within its
request gets it, or tenants above their request are evicted for it; a tenant that is not above its request is never
evicted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Holder(NamedTuple):
    """A tenant of one GPU."""

    name: str
    request: int
    limit: int
    """at least `request`"""
    used: int
    wanted: int = 0
    """what it waits for, beyond `used`"""

    @property
    def lends(self) -> bool:
        return self.limit > self.request

    @property
    def above(self) -> int:
        """What it uses above its request."""
        return max(0, self.used - self.request)


class Share(NamedTuple):
    """What a tenant may use at present."""

    granted: int
    most: int
    """what it could be granted at most, if it wanted more now"""


def first_grant(holder: Holder, margin: int) -> int:
    """What must be free on the GPU before a tenant starts: it needs `margin` before it can wait for more."""
    return min(holder.request, margin) if holder.lends else holder.request


def needed(holder: Holder, margin: int) -> int:
    """What a tenant must get now within its request, even if another tenant is evicted for it."""
    return max(first_grant(holder, margin), min(holder.request, holder.used + holder.wanted))


def divide(capacity: int, holders: Sequence[Holder], margin: int) -> dict[str, Share]:
    """The share of each tenant of one GPU.

    The GPU is given out in this order: what tenants use; what they need within their request; `margin` above their use
    within their request, so that they seldom wait; what they want above their request; the rest of the requests; the
    rest of the GPU up to the limits. `margin` is never given out above requests: drivers take memory uncounted.
    """
    granted = {one.name: min(one.used, one.limit) for one in holders}
    free = max(0, capacity - sum(granted.values()))

    def give(goal: Callable[[Holder], int], kept: int, fill: "Fill") -> None:
        nonlocal free
        missing = {one.name: goal(one) - granted[one.name] for one in holders if goal(one) > granted[one.name]}
        for name, amount in fill(missing, max(0, free - kept)).items():
            granted[name] += amount
            free -= amount

    give(lambda one: needed(one, margin), 0, whole)
    # What is free already is kept for those who still lack something: no other tenant grows meanwhile.
    unmet = sum(max(0, needed(one, margin) - granted[one.name]) for one in holders)
    give(lambda one: min(one.request, one.used + margin), unmet, evenly)
    secure = {one.name: max(granted[one.name], needed(one, margin)) for one in holders}
    give(lambda one: min(one.limit, one.used + one.wanted), margin + unmet, whole)
    give(lambda one: one.request, unmet, evenly)
    give(lambda one: one.limit, margin + unmet, evenly)
    others = sum(secure.values())
    return {
        one.name: Share(
            granted[one.name],
            max(granted[one.name], min(one.limit, capacity - margin - others + secure[one.name])),
        )
        for one in holders
    }


def evictions(capacity: int, holders: Iterable[Holder], margin: int) -> list[str]:
    """The tenants to evict, so that every other one can have what it needs within its request; the one furthest above
    its request is first. Empty if nothing is lacking."""
    left = list(holders)
    chosen: list[str] = []

    def lacking() -> int:
        return sum(needed(one, margin) + one.above for one in left) - capacity

    while lacking() > 0:
        worst = max(left, key=lambda one: (one.above, one.name))
        if not worst.above:
            break
        left.remove(worst)
        chosen.append(worst.name)
    return chosen


def raises(
    capacity: int, holders: Sequence[Holder], in_force: Mapping[str, int], shares: Mapping[str, Share], margin: int
) -> dict[str, int]:
    """The grants that may be raised now, with their new amounts; `in_force` are the grants after others were lowered.

    A tenant may use what is in force at any moment, so a raise may only take what is in force nowhere.
    """
    free = capacity - sum(max(in_force[one.name], one.used) for one in holders)
    raised: dict[str, int] = {}
    for first in (True, False):  # what tenants need, then the rest
        for one in sorted(holders, key=lambda one: (one.above, one.name)):
            now, share = raised.get(one.name, in_force[one.name]), shares[one.name].granted
            goal = min(needed(one, margin), share) if first else share
            more = min(free, goal - max(now, one.used))
            if more > 0:
                raised[one.name] = max(now, one.used) + more
                free -= more
    return raised


def divide_compute(capacity: int, holders: Sequence[Holder]) -> dict[str, int]:
    """The compute shares of the tenants of one GPU: their requests, and up to their limits what no tenant requested."""
    spare = max(0, capacity - sum(one.request for one in holders))
    more = evenly({one.name: one.limit - one.request for one in holders}, spare)
    return {one.name: one.request + more[one.name] for one in holders}


Fill = Callable[[Mapping[str, int], int], Mapping[str, int]]
"""divides an available amount among tenants that miss some"""


def evenly(missing: Mapping[str, int], available: int) -> dict[str, int]:
    """Max-min fair: each tenant gets the same, but none gets more than it misses."""
    given, left = {}, available
    for place, (name, amount) in enumerate(sorted(missing.items(), key=lambda item: (item[1], item[0]))):
        given[name] = min(amount, left // (len(missing) - place))
        left -= given[name]
    return given


def whole(missing: Mapping[str, int], available: int) -> dict[str, int]:
    """All that it misses or nothing, the smallest first: a part would not let an allocation go on."""
    given, left = {}, available
    for name, amount in sorted(missing.items(), key=lambda item: (item[1], item[0])):
        given[name] = amount if amount <= left else 0
        left -= given[name]
    return given
