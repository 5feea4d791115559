# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Users of this machine: who owns a job, and in which groups they are."""

import grp
import os
import pwd
from functools import cache
from typing import NamedTuple

from cotenant.errors import InputError


class Owner(NamedTuple):
    """The user that a job belongs to, as the journal stores it. Names stay readable after the user was removed."""

    uid: int
    gid: int
    user: str
    group: str
    """name of the primary group"""


class Account(NamedTuple):
    """A user of this machine."""

    owner: Owner
    groups: frozenset[str]


def account_of(uid: int, gid: int | None = None) -> Account:
    """A user by number; one without an entry in the user database is called by the number."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        group = uid if gid is None else gid
        return Account(Owner(uid, group, str(uid), group_name(group)), frozenset({group_name(group)}))
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    owner = Owner(uid, entry.pw_gid, entry.pw_name, group_name(entry.pw_gid))
    return Account(owner, frozenset(map(group_name, groups)))


def account_named(name: str) -> Account:
    """A user by name; InputError if there is none."""
    try:
        return account_of(pwd.getpwnam(name).pw_uid)
    except (KeyError, ValueError):
        raise InputError(f"no user {name[:60]!r} on this machine; `getent passwd` lists the users") from None


def groups_of(user: str) -> frozenset[str]:
    """The groups of a user; none if the user was removed."""
    try:
        return account_named(user).groups
    except InputError:
        return frozenset()


def check_group(name: str) -> None:
    """InputError if this machine has no such group."""
    try:
        grp.getgrnam(name)
    except (KeyError, ValueError):
        raise InputError(f"no group {name[:60]!r} on this machine; `getent group` lists them") from None


def group_name(gid: int) -> str:
    """The name of a group; its number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@cache
def own_account() -> Account:
    """The user of this process."""
    return account_of(os.geteuid(), os.getegid())
