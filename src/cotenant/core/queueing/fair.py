# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Fair share: under contention every account gets GPUs in proportion to its weight, over time.

An account is a user, or a path such as (group, user); groups share first, then the users of each group. The queue order
`fair` compares accounts by their pressure, smallest first:

    pressure = GPUs in use / weight + correction
    correction = (GPU-seconds used / weight - mean of its siblings) / MEMORY, limited to half of a fair share

The first term divides the GPUs that are free now. The second one makes up for the past: an account that got less than
its share before gets more now. Past use is forgotten with a half-life. Because the correction is limited, an account
that returns after a long time gets at most half of a share more than its own, and no account falls below half of its
share.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import exp, log
from typing import TypeVar

from cotenant.core.cluster import Cluster
from cotenant.core.footprint import claims
from cotenant.core.model import Demand, Gpu, Gpus, Placement
from cotenant.core.units import Seconds

Account = tuple[str, ...]
"""who a job is charged to: groups from the outermost to the innermost, then the user"""
Pressure = tuple[float, ...]
"""of each level of an account, outermost first; the account with the smallest goes first"""

Item = TypeVar("Item")
Position = tuple[object, ...]

HALF_LIFE = Seconds(7 * 86_400.0)
MEMORY = Seconds(3600.0)
"""the correction gives back what an account is short of in about this time"""
MOST_CORRECTION = 0.5
"""of a fair share"""
MOST_ACCOUNTS = 10_000
"""accounts that are remembered; beyond this, half of those without running jobs are dropped, least past use first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairSettings:
    """Half-life of past use, and the weights of accounts."""

    half_life: Seconds = HALF_LIFE
    weights: tuple[tuple[Account, float], ...] = ()
    """of accounts among their siblings; 1 if not listed"""

    def __post_init__(self) -> None:
        if not self.half_life > 0:
            raise ValueError(f"the half-life of past use is {self.half_life} s; expected more than 0 s")
        for account, weight in self.weights:
            if not 0 < weight < float("inf"):
                raise ValueError(f"the weight of {'/'.join(account)} is {weight}; expected more than 0")


@dataclass(slots=True)
class _Meter:
    """GPU-seconds with decay: what was used until `at`, and the GPUs in use since."""

    used: float = 0.0
    gpus: float = 0.0
    at: float = 0.0
    total: float = 0.0
    """GPU-seconds without decay"""

    def read(self, now: float, decay: float) -> float:
        """Use that decays at this rate per second, while `gpus` add to it:  u' = gpus - decay u."""
        left = exp(-decay * max(0.0, now - self.at))
        return self.used * left + self.gpus * (1.0 - left) / decay

    def add(self, gpus: float, now: float, decay: float) -> None:
        self.used = self.read(now, decay)
        self.total += self.gpus * max(0.0, now - self.at)
        self.at = max(self.at, now)
        self.gpus += gpus


@dataclass(frozen=True, slots=True)
class Share:
    """How one level of an account stands among its siblings, for explanations."""

    account: Account
    weight: float
    fair: float
    """GPUs that it should have now"""
    gpus: float
    """GPUs that it has now"""
    used: float
    """GPU-seconds, with decay"""
    mean: float
    """GPU-seconds that its siblings have used on average for the same weight, with decay"""
    correction: float
    """GPUs per weight that the past counts for; negative: it got less than its share"""

    @property
    def pressure(self) -> float:
        return self.gpus / self.weight + self.correction


class Standing:
    """How all accounts that run or wait stand at one time. A scheduling pass adds the GPUs that it gives them."""

    def __init__(self, shares: Mapping[Account, Share]) -> None:
        self.shares = shares
        """of each level of each account"""
        self._given: dict[Account, float] = {}
        self._pressures: dict[Account, Pressure] = {}

    def copy(self) -> "Standing":
        """The same, without what was given in this pass."""
        return Standing(self.shares)

    def pressure(self, account: Account) -> Pressure:
        """What the queue order compares."""
        found = self._pressures.get(account)
        if found is None:
            found = self._pressures[account] = tuple(
                self.shares[level].pressure + self._given.get(level, 0.0) / self.shares[level].weight
                for level in levels(account)
            )
        return found

    def give(self, account: Account, gpus: float) -> None:
        """The account gets so many GPUs in this pass."""
        for level in levels(account):
            self._given[level] = self._given.get(level, 0.0) + gpus
        self._pressures.clear()

    def explain(self, account: Account) -> str:
        """What the queue order compares, in words and numbers."""
        return "; ".join(_describe(self.shares[level]) for level in levels(account) if level in self.shares)


def _describe(share: Share) -> str:
    name, hours = "/".join(share.account), share.used / 3600
    has = f"{share.gpus:.3g} GPU{'s' * (share.gpus != 1)}"
    text = f"{name} has {has}; its fair share is {share.fair:.3g} (weight {share.weight:g})"
    past = f"it has used {hours:.3g} GPU-hours where {share.mean / 3600:.3g} would be equal"
    counts = share.correction * share.weight
    if abs(counts) < 0.005:
        return text
    return f"{text}; {past}, which counts as {abs(counts):.2g} GPUs {'more' if counts > 0 else 'less'}"


class FairShares:
    """What each account uses and has used. Time is passed in, and must not go back."""

    def __init__(self, settings: FairSettings, gpus: float) -> None:
        self._weights = dict(settings.weights)
        self.gpus = gpus
        """GPUs that are shared; set it again if they change"""
        self._decay = log(2.0) / settings.half_life
        self._meters: dict[Account, _Meter] = {}
        self._running: dict[str, tuple[Account, float]] = {}

    def start(self, job: str, account: Account, gpus: float, now: Seconds) -> None:
        """A job starts on so many GPUs; parts of GPUs count as parts."""
        self._running[job] = account, gpus
        self._charge(account, gpus, now)

    def end(self, job: str, now: Seconds) -> None:
        account, gpus = self._running.pop(job)
        self._charge(account, -gpus, now)

    def charge(self, account: Account, gpus: float, since: Seconds, until: Seconds, now: Seconds) -> None:
        """Adds past use that was not recorded when it happened: a number of GPUs from one time to another."""
        since, until = min(since, now), min(until, now)
        if not since < until:
            return
        decayed = gpus * (exp(-self._decay * (now - until)) - exp(-self._decay * (now - since))) / self._decay
        for level in levels(account):
            meter = self._meter(level, now)
            meter.add(0.0, now, self._decay)
            meter.used += decayed
            meter.total += gpus * (until - since)

    def __contains__(self, job: str) -> bool:
        """Whether a job runs."""
        return job in self._running

    def used(self, account: Account, now: Seconds) -> float:
        """GPU-seconds of an account, with decay."""
        return self._meters.get(account, _Meter()).read(now, self._decay)

    def restore(self, account: Account, used: float, at: Seconds, now: Seconds) -> None:
        """Adds what an account had used at that time, with decay, as `used` answered then."""
        for level in levels(account):
            meter = self._meter(level, now)
            meter.add(0.0, now, self._decay)
            meter.used += used * exp(-self._decay * (now - at))

    def served(self, account: Account, now: Seconds) -> float:
        """GPU-seconds that an account has had in all, without decay."""
        meter = self._meters.get(account, _Meter())
        return meter.total + meter.gpus * max(0.0, now - meter.at)

    def standing(self, waiting: Iterable[Account], now: Seconds) -> Standing:
        """How the accounts stand that run jobs or have waiting ones. Others do not count: they want no GPUs now."""
        active = {account for account, _ in self._running.values()} | set(waiting)
        siblings: dict[Account, set[Account]] = {}
        for account in active:
            for level in levels(account):
                siblings.setdefault(level[:-1], set()).add(level)
        return Standing({share.account: share for group in siblings.values() for share in self._compare(group, now)})

    def _compare(self, siblings: Collection[Account], now: Seconds) -> Iterator[Share]:
        weights = {one: self._weights.get(one, 1.0) for one in siblings}
        meters = {one: self._meters.get(one, _Meter()) for one in siblings}
        used = {one: meter.read(now, self._decay) for one, meter in meters.items()}
        total = sum(weights.values())
        fair, mean = self.gpus / total, sum(used.values()) / total
        most = MOST_CORRECTION * fair
        for one, meter in meters.items():
            weight = weights[one]
            correction = max(-most, min(most, (used[one] / weight - mean) / MEMORY))
            yield Share(one, weight, fair * weight, meter.gpus, used[one], mean * weight, correction)

    def _charge(self, account: Account, gpus: float, now: Seconds) -> None:
        for level in levels(account):
            self._meter(level, now).add(gpus, now, self._decay)

    def _meter(self, level: Account, now: Seconds) -> _Meter:
        if level not in self._meters and len(self._meters) >= MOST_ACCOUNTS:
            idle = [one for one, meter in self._meters.items() if not meter.gpus]
            for one in sorted(idle, key=lambda one: self.used(one, now))[: len(idle) // 2 + 1]:
                del self._meters[one]
        return self._meters.setdefault(level, _Meter(at=now))


def in_turn(
    groups: Iterable[Sequence[Item]], position: Callable[[Item], Position], taken: Callable[[Item], None] | None = None
) -> Iterator[Item]:
    """Yields the items of all groups, smallest position first; each group must be in order.

    Positions may grow between two items, because accounts get GPUs, so a position is computed again before its item is
    yielded. `taken` is called after each item.
    """
    heads = [(position(group[0]), number, 0, group) for number, group in enumerate(groups) if group]
    heapify(heads)
    while heads:
        before, number, index, group = heads[0]
        item = group[index]
        if (now := position(item)) != before:
            heapreplace(heads, (now, number, index, group))
            continue
        yield item
        if taken is not None:
            taken(item)
        if index + 1 < len(group):
            heapreplace(heads, (position(group[index + 1]), number, index + 1, group))
        else:
            heappop(heads)


def gpus_taken(placements: Iterable[Placement], cluster: Cluster) -> float:
    """GPUs that a job takes."""
    return sum(
        gpus_claimed(one.job.demand, one.slot.gpus, cluster.node(one.slot.node).machine.gpus) for one in placements
    )


def gpus_claimed(demand: Demand, slot: Gpus, gpus: Sequence[Gpu]) -> float:
    """GPUs that a demand takes on a slot: of each GPU the larger of its parts of compute and memory."""
    taken = 0.0
    for i, claim in claims(demand, slot, gpus).items():
        compute = claim.compute / gpus[i].compute_capacity
        taken += max(compute, claim.memory / gpus[i].memory_capacity) if gpus[i].memory_capacity else compute
    return taken


def parse_account(text: str) -> Account:
    """An account from its name, such as `vision/alice`; ValueError if a part is empty."""
    parts = tuple(text.split("/"))
    if not all(parts):
        raise ValueError(f"account {text!r:.60}: expected a name, or group/user")
    return parts


def levels(account: Account) -> Iterator[Account]:
    """The account itself and the groups that contain it, outermost first."""
    for depth in range(1, len(account) + 1):
        yield account[:depth]
