# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What each user and group of this machine uses and has used, for the queue order `fair` and for limits.

The use of a user is stored in the journal under a key of its own whenever one of the user's jobs ends, before the end
itself is stored. Jobs that run are counted again from the time of the last store when a daemon starts, so a kill at any
moment loses nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from cotenant.core.cluster import Cluster
from cotenant.core.model import Job
from cotenant.core.placement.queue import account_of
from cotenant.core.queueing.fair import Account, FairShares, Standing, levels
from cotenant.core.queueing.limits import NOTHING, Amounts, LimitCheck, amounts_of, kinds_of_gpus, never, over_queue
from cotenant.core.queueing.week import Week
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.local import owners
from cotenant.local.account_settings import AccountRules, ReservationLimits
from cotenant.local.events import log_error
from cotenant.local.journal import Journal
from cotenant.local.journal_schema import JournalError
from cotenant.local.owners import Owner
from cotenant.local.tenants import PlacedJob
from cotenant.wire.machine import AccountView

PREFIX = "use/"
VERSION = 1
MOST_USERS = 10_000
"""users whose past use is stored; beyond that, those with the least are forgotten"""
LATE_S = 1.0
"""between the end of a run and the time when it is noticed, which is not corrected"""


class StoredUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one user had used at a time."""

    version: int = VERSION
    at: float
    """seconds since 1970"""
    used: float
    """GPU-seconds, with the decay of fair share"""
    week: dict[int, float] = {}
    """GPU-seconds by period, see `Week`"""


@dataclass(slots=True)
class _Use:
    """What is known of one user."""

    account: Account
    week: Week = field(default_factory=Week)
    stored_at: float = 0.0


@dataclass(slots=True)
class _Run:
    """A job that holds a slot."""

    account: Account
    amounts: Amounts
    counted_from: float
    week_from: float


class Accounting:
    """The accounts of one machine. Times are seconds since 1970."""

    def __init__(
        self, journal: Journal, rules: AccountRules, gpus: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._journal, self._rules, self._clock = journal, rules, clock
        self._begin(gpus)

    def _begin(self, gpus: float) -> None:
        self.shares = FairShares(self._rules.fair, gpus)
        self._users: dict[str, _Use] = {}
        self._runs: dict[str, _Run] = {}
        self._amounts: dict[Account, Amounts] = {}
        """of each level of each account"""
        self._accounts: dict[int, Account] = {}
        """by user ID: looking up groups takes long"""
        self._restore()

    @property
    def limited(self) -> bool:
        """Whether some user or group has a limit."""
        return self._rules.limited

    def account(self, owner: Owner) -> Account:
        """The account that the jobs of a user are charged to."""
        known = self._accounts.get(owner.uid)
        if known is None or known[-1] != owner.user:
            groups = owners.account_of(owner.uid, owner.gid).groups if self._rules.groups else ()
            known = self._accounts[owner.uid] = self._rules.account(owner.user, groups)
        return known

    def check_priority(self, priority: int, owner: Owner) -> None:
        """InputError if a user who is no administrator may not give a job this priority."""
        most = self._rules.most_priority(owner.user)
        if priority > most:
            raise InputError(
                f"--priority {priority}: {owner.user} may give a job at most {most}; an administrator may give more"
            )

    def replace_rules(self, rules: AccountRules) -> None:
        """Other rules count from now on, as after a restart: the caller adds all jobs again that hold slots. What
        was used is stored first, because accounts may have other groups now."""
        now = self._clock()
        for user in {run.account[-1] for run in self._runs.values()}:
            use = self._users[user]
            self._store(use.account, use, now)
        gpus, self._rules = self.shares.gpus, rules
        self._begin(gpus)

    def reservation_limits(self, owner: Owner) -> ReservationLimits:
        """What a user who is no administrator may reserve."""
        return self._rules.reservation_limits(owner.user)

    def check_submission(self, job: Job, cluster: Cluster, count: int = 1) -> None:
        """InputError if such jobs exceed a limit of their account even alone, or too many of the account would wait."""
        if not self.limited:
            return
        limits = {level: self._rules.limits(level) for level in levels(job.account)}
        text = never(job, limits, kinds_of_gpus(cluster))
        if text is None and any(one.queued is not None for one in limits.values()):
            waiting = self.waiting()
            found = (over_queue(level[-1], one, waiting.get(level, 0), count) for level, one in limits.items())
            text = next((one for one in found if one is not None), None)
        if text is not None:
            raise InputError(f"{text}; `cotenant accounts` lists the limits")

    def waiting(self) -> dict[Account, int]:
        """The number of queued jobs of each user and group, with those that are held."""
        found: Counter[Account] = Counter()
        for user, count in self._journal.queued_by_user().items():
            found.update(dict.fromkeys(levels(self._account_named(user)), count))
        return found

    # Jobs that hold slots

    def add(self, job: PlacedJob, cluster: Cluster) -> None:
        """A job holds a slot, maybe since before this daemon started."""
        now, account = self._clock(), account_of(job.placement.job)
        use = self._use(account)
        since = min(now, max(job.started, use.stored_at)) if job.started < now - LATE_S else now
        amounts = amounts_of((job.placement,), cluster)
        self.shares.charge(account, amounts.gpus, Seconds(since), Seconds(now), Seconds(now))
        self.shares.start(job.id, account, amounts.gpus, Seconds(now))
        self._runs[job.id] = _Run(account, amounts, since, since)
        self._count(account, amounts, 1)

    def change(self, job: PlacedJob, cluster: Cluster) -> None:
        """A job that holds a slot has other limits from now on."""
        run, now = self._runs[job.id], self._clock()
        amounts = amounts_of((job.placement,), cluster)
        self._store(run.account, self._use(run.account), now)
        self.shares.end(job.id, Seconds(now))
        self.shares.start(job.id, run.account, amounts.gpus, Seconds(now))
        self._count(run.account, run.amounts, -1)
        self._count(run.account, amounts, 1)
        self._runs[job.id] = _Run(run.account, amounts, now, now)

    def end(self, job: str, ended: float | None) -> None:
        """A run has ended, at a time if that is known. What it used is stored before its end is: after a kill in
        between, the rest is counted again."""
        run = self._runs.pop(job, None)
        if run is None:
            return
        now = self._clock()
        self.shares.end(job, Seconds(now))
        self._count(run.account, run.amounts, -1)
        use, gpus = self._use(run.account), run.amounts.gpus
        use.week.add(gpus, run.week_from, now)
        if ended is not None and ended < now - LATE_S:  # no daemon ran when it ended
            over = max(ended, run.counted_from)
            self.shares.charge(run.account, -gpus, Seconds(over), Seconds(now), Seconds(now))
            use.week.add(-gpus, over, now)
        self._store(run.account, use, now)

    # Passes and answers

    def limit_check(self) -> LimitCheck | None:
        """The limits of all accounts with what they use now; None: no user has a limit."""
        if not self.limited:
            return None
        return LimitCheck(self._rules.limits, self._amounts, self._week_hours)

    def views(self) -> list[AccountView]:
        """All users and groups that run or wait, or have used something."""
        now, waiting = self._clock(), self.waiting()
        standing = self.shares.standing([account for account in waiting if self._is_user(account)], Seconds(now))
        known = {level for use in self._users.values() for level in levels(use.account)} | waiting.keys()
        return [self._view(level, standing, waiting, now) for level in sorted(known | standing.shares.keys())]

    def _view(self, level: Account, standing: Standing, waiting: Mapping[Account, int], now: float) -> AccountView:
        share, limits, used = standing.shares.get(level), self._rules.limits(level), self._amounts.get(level, NOTHING)
        return AccountView(
            account="/".join(level),
            weight=dict(self._rules.fair.weights).get(level, 1.0),
            gpus=round(used.gpus, 3),
            memory_mib=used.memory,
            running=used.running,
            queued=waiting.get(level, 0),
            fair_gpus=None if share is None else round(share.fair, 3),
            used_gpu_hours=round(self.shares.used(level, Seconds(now)) / 3600, 3),
            week_gpu_hours=round(self._week_hours(level), 3),
            most_gpus=limits.gpus,
            most_memory_mib=limits.memory,
            most_running=limits.running,
            most_queued=limits.queued,
            most_week_gpu_hours=limits.gpu_hours,
            cpus=used.cpu / 1000,
            host_memory_mib=used.host_memory,
            most_cpus=None if limits.cpu is None else limits.cpu / 1000,
            most_host_memory_mib=limits.host_memory,
        )

    def _is_user(self, account: Account) -> bool:
        return len(account) == (2 if self._rules.groups else 1)

    def _week_hours(self, level: Account) -> float:
        """GPU-hours of a user or a group in the last seven days."""
        now = self._clock()
        below = [use for use in self._users.values() if use.account[: len(level)] == level]
        ended = sum(use.week.used(now) for use in below)
        running = sum(
            run.amounts.gpus * (now - run.week_from)
            for run in self._runs.values()
            if run.account[: len(level)] == level
        )
        return (ended + running) / 3600

    def _count(self, account: Account, amounts: Amounts, sign: int) -> None:
        for level in levels(account):
            self._amounts[level] = self._amounts.get(level, NOTHING).plus(amounts, sign)

    # The journal

    def _account_named(self, user: str) -> Account:
        return self._rules.account(user, owners.groups_of(user) if self._rules.groups else ())

    def _use(self, account: Account) -> _Use:
        return self._users.setdefault(account[-1], _Use(account))

    def _restore(self) -> None:
        now, found = self._clock(), {}
        for key, text in self._journal.recalled(PREFIX).items():
            try:
                stored = msgspec.json.decode(text, type=StoredUse, strict=False)
            except (msgspec.MsgspecError, UnicodeError) as error:
                log_error(f"the stored use of {key.removeprefix(PREFIX)!r} cannot be read and is ignored: {error}")
                continue
            found[key.removeprefix(PREFIX)] = stored
        most_used = sorted(found, key=lambda user: -found[user].at)[:MOST_USERS]
        for user in found.keys() - set(most_used):
            self._journal.remember(PREFIX + user, None)
        for user in most_used:
            stored = found[user]
            account = self._account_named(user)
            at = min(stored.at, now)  # the clock may have been set back
            self._users[user] = _Use(account, Week(stored.week), at)
            self.shares.restore(account, stored.used, Seconds(at), Seconds(now))

    def _store(self, account: Account, use: _Use, now: float) -> None:
        """On a full disk, what was used since the last time is counted again if this daemon is killed."""
        for run in (run for run in self._runs.values() if run.account == account):
            use.week.add(run.amounts.gpus, run.week_from, now)
            run.week_from = now
        stored = StoredUse(at=now, used=self.shares.used(account, Seconds(now)), week=use.week.periods(now))
        try:
            self._journal.note(PREFIX + account[-1], msgspec.json.encode(stored).decode())
            use.stored_at = now
        except JournalError as error:
            log_error(str(error))
