# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The file of `cotenant up --accounts`: weights and limits of the users and groups of a machine."""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import yaml
from msgspec import Meta

from cotenant.core.queueing.fair import HALF_LIFE, Account, FairSettings
from cotenant.core.queueing.limits import NO_LIMITS, Limits
from cotenant.core.units import MiB, MilliCpu, Seconds, parse_memory
from cotenant.errors import InputError
from cotenant.local.owners import account_named, check_group
from cotenant.wire.codec import read_bounded, refusal
from cotenant.wire.migration import Step, migrate

MIGRATIONS: Sequence[Step] = ()
"""What differs between the versions of the file: step n leads from version n to n + 1. Released steps never change."""
MOST_BYTES = 1024 * 1024
OTHERS = "others"
"""the group of users that are in no listed group"""
DAY_S = 86_400.0

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Number = Annotated[float, Meta(ge=0, le=1e9)]
Weight = Annotated[float, Meta(gt=0, le=1e6)]


MOST_RESERVATIONS, LONGEST_RESERVATION_H, AHEAD_DAYS = 0, 24.0, 7.0
"""of a user for whom the file says nothing else"""


class ReservationLimits(NamedTuple):
    """What a user who is no administrator may reserve."""

    most: int = MOST_RESERVATIONS
    """reservations that have not ended"""
    hours: float = LONGEST_RESERVATION_H
    """length of one"""
    gpus: float | None = None
    """of one; None: all"""
    days_ahead: float = AHEAD_DAYS
    """from now until its start: until then jobs without a time limit cannot use its GPUs"""


MOST_PRIORITY = 0
"""of a user without a limit of the file"""
USUAL_RESERVATIONS = ReservationLimits()


class Limited(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"):
    """The most that a user or a group may use; null: not limited."""

    gpus: Number | None = None
    """GPUs at a time; parts of GPUs count as parts."""
    memory: str | None = None
    """GPU memory at a time, such as 80GiB."""
    running: Count | None = None
    """Jobs that run at a time."""
    queued: Count | None = None
    """Jobs that wait."""
    gpu_hours_per_week: Number | None = None
    """GPU-hours in the last seven days."""
    cpus: Number | None = None
    """CPUs that running jobs have requested."""
    host_memory: str | None = None
    """Memory of the host that running jobs have requested, such as 64GiB."""

    def limits(self) -> Limits:
        return Limits(
            gpus=self.gpus,
            memory=None if self.memory is None else _memory(self.memory),
            running=self.running,
            queued=self.queued,
            gpu_hours=self.gpu_hours_per_week,
            cpu=None if self.cpus is None else MilliCpu(round(1000 * self.cpus)),
            host_memory=None if self.host_memory is None else _memory(self.host_memory),
        )


class OfUser(Limited, frozen=True):
    """The limits of one user, or of each user who is not listed."""

    reservations: Count | None = None
    """Reservations that have not ended; null: 0. Administrators are not limited."""
    reservation_hours: Number | None = None
    """Length of one reservation; null: 24."""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    """Highest `--priority` under `up --system`; null: 0. Administrators are not limited."""
    reservation_days_ahead: Number | None = None
    """Days until a reservation starts; null: 7."""

    def most_priority(self) -> int:
        return MOST_PRIORITY if self.priority is None else self.priority

    def reservation_limits(self) -> ReservationLimits:
        most = MOST_RESERVATIONS if self.reservations is None else self.reservations
        hours = LONGEST_RESERVATION_H if self.reservation_hours is None else self.reservation_hours
        ahead = AHEAD_DAYS if self.reservation_days_ahead is None else self.reservation_days_ahead
        return ReservationLimits(most, hours, self.gpus, ahead)


class UserPart(OfUser, frozen=True):
    """One user."""

    weight: Weight = 1.0
    """Part of the GPUs, relative to the other users of the group."""


class GroupPart(Limited, frozen=True):
    """One group."""

    weight: Weight = 1.0
    """Part of the GPUs, relative to the other groups."""
    users: tuple[str, ...] | None = None
    """Its users; null: those of the group of the machine that has this name."""


class AccountFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"):
    """The whole file."""

    version: Literal[1] = 1
    """Version of this format. A newer one is refused."""
    half_life_days: Annotated[float, Meta(gt=0, le=365)] = HALF_LIFE / DAY_S
    """Days in which half of the past use is forgotten."""
    default: OfUser = OfUser()
    """Limits of each user who is not listed."""
    groups: Mapping[str, GroupPart] = {}
    """Groups by name. A user belongs to the first one that has the user, else to `others`."""
    users: Mapping[str, UserPart] = {}
    """Users by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRules:
    """What the file says, for the users that exist."""

    groups: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    """users of each group; None: those of the group of the machine that has this name"""
    fair: FairSettings = field(default_factory=FairSettings)
    group_limits: Mapping[str, Limits] = field(default_factory=dict)
    user_limits: Mapping[str, Limits] = field(default_factory=dict)
    default: Limits = NO_LIMITS
    reservations: Mapping[str, ReservationLimits] = field(default_factory=dict)
    """of each listed user"""
    default_reservations: ReservationLimits = USUAL_RESERVATIONS
    priorities: Mapping[str, int] = field(default_factory=dict)
    """the highest priority of each listed user"""
    default_priority: int = MOST_PRIORITY

    @property
    def limited(self) -> bool:
        """Whether some user or group has a limit."""
        return any(one != NO_LIMITS for one in (*self.group_limits.values(), *self.user_limits.values(), self.default))

    def account(self, user: str, groups: Collection[str]) -> Account:
        """The account of a user who is in these groups of the machine."""
        if not self.groups:
            return (user,)
        return _group_of(self.groups, user, groups), user

    def limits(self, level: Account) -> Limits:
        """The limits of a user or a group."""
        if self.groups and len(level) == 1:
            return self.group_limits.get(level[0], NO_LIMITS)
        return self.user_limits.get(level[-1], self.default)

    def most_priority(self, user: str) -> int:
        """The highest priority that a user may give to a job."""
        return self.priorities.get(user, self.default_priority)

    def reservation_limits(self, user: str) -> ReservationLimits:
        """What a user may reserve."""
        return self.reservations.get(user, self.default_reservations)


NO_RULES = AccountRules()


def read_accounts(path: Path) -> AccountRules:
    """Reads the file; InputError names the file and the fault, also a user or group that does not exist."""
    content = read_bounded(path, MOST_BYTES, "a file of accounts")
    try:
        found = yaml.safe_load(content)
        if isinstance(found, Mapping):
            found = migrate(found, MIGRATIONS, lambda line: print(f"{path}: {line}", file=sys.stderr))
        return _rules(msgspec.convert({} if found is None else found, AccountFile))
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {refusal(error, AccountFile)}") from None
    except (yaml.YAMLError, UnicodeError, InputError, RecursionError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None


def _rules(file: AccountFile) -> AccountRules:
    groups = {name: None if part.users is None else frozenset(part.users) for name, part in file.groups.items()}
    for name, part in file.groups.items():
        if part.users is None and name != OTHERS:
            _check_group(name)
        for user in part.users or ():
            _groups_of(user)
    weights: list[tuple[Account, float]] = [((name,), part.weight) for name, part in file.groups.items()]
    for name, user_part in file.users.items():
        own = _groups_of(name)
        weights.append(((_group_of(groups, name, own), name) if groups else (name,), user_part.weight))
    return AccountRules(
        groups=groups,
        fair=FairSettings(half_life=Seconds(DAY_S * file.half_life_days), weights=tuple(weights)),
        group_limits={name: part.limits() for name, part in file.groups.items()},
        user_limits={name: part.limits() for name, part in file.users.items()},
        default=file.default.limits(),
        reservations={name: part.reservation_limits() for name, part in file.users.items()},
        default_reservations=file.default.reservation_limits(),
        priorities={name: part.most_priority() for name, part in file.users.items()},
        default_priority=file.default.most_priority(),
    )


def _group_of(groups: Mapping[str, frozenset[str] | None], user: str, own: Collection[str]) -> str:
    """The first listed group that has the user."""
    return next((name for name, users in groups.items() if (name in own if users is None else user in users)), OTHERS)


def _groups_of(user: str) -> frozenset[str]:
    return account_named(user).groups


def _check_group(name: str) -> None:
    try:
        check_group(name)
    except InputError as error:
        raise InputError(f"groups: {error}, or list its `users`") from None


def _memory(text: str) -> MiB:
    try:
        return parse_memory(text)
    except ValueError as error:
        raise InputError(f"memory: {error}") from None
