# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Gangs: who belongs to which, how many of one are there, and for which of them slots are held as a whole.

A gate cannot be put back on a pod. So a gang that was let go and could not be bound as a whole is refused by the
extender until slots are held for all of it again. Times are of any steady clock.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from cotenant.core.model import Reason
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.queueing import Gang, gang_of, gates_of_others
from cotenant.kube.scheduler.refusing import nonsense
from cotenant.kube.state.cluster import ClusterState

Key = tuple[str, str]
"""namespace and name of a gang"""
EVERY_S = 30.0
"""between two times that a gang's pods are told how many are missing: hundreds may come one after the other"""
RECENT_S = 15.0
"""whom kube-scheduler wanted to bind so long ago, and was sent back, it wants to bind again: it tries every 5 s"""


@dataclass(frozen=True, slots=True)
class Gathered:
    """How far a gang is."""

    gang: Gang
    there: int
    """pods that run, are about to, or have done their part"""
    ready: tuple[Pod, ...]
    """pods that wait for nothing but the others, the oldest first"""

    @property
    def missing(self) -> int:
        """Pods that have to be placed for it to be whole."""
        return max(0, self.gang.size - self.there)

    @property
    def turn(self) -> Reason | None:
        """Why none of those that wait may be placed alone."""
        if not self.missing:
            return None
        if len(self.ready) < self.missing:
            text = "only {available} of the {needed} pods of its gang are there"
            return Reason("gang", text, self.gang.size, self.there + len(self.ready))
        return Reason("gang", "its gang waits until there is room for all {needed} pods that it needs", self.missing)


@dataclass(slots=True)
class Grant:
    """Slots that are held for a gang until all of it is bound."""

    gang: Gang
    members: frozenset[str]
    until: float
    whole: bool = False
    """all of them were about to be bound, and are being"""
    has_place: Callable[[str], bool] = lambda uid: True
    """whether something is still held for one of them"""
    arrived: dict[str, float] = field(default_factory=dict)
    """when kube-scheduler last wanted to bind them"""

    def arrives(self, uid: str, now: float) -> None:
        """Of a large gang the last comes when the first has been sent back, and is on its way again."""
        self.arrived[uid] = now
        if not self.whole and len(self.there(now)) == len(self.members):
            self.whole, self.until = True, max(self.until, now + RECENT_S)

    def there(self, now: float) -> set[str]:
        """Those who were about to be bound just now, and have not been refused since."""
        recent = (uid for uid in self.members if now - self.arrived.get(uid, -inf) <= RECENT_S)
        return set(filter(self.has_place, recent))


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A gang that was let go and waits again."""

    pods: tuple[Pod, ...]
    why: str


class Gangs:
    """Follows the pods of all gangs that are ours to place."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._pods: dict[Key, dict[str, tuple[Gang, Pod]]] = {}
        self._key: dict[str, Key] = {}
        self._grants: dict[Key, Grant] = {}
        self._paused: dict[Key, float] = {}
        self._changed: dict[Key, None] = {}
        self._told: dict[Key, float] = {}

    def __contains__(self, uid: str) -> bool:
        """Whether a pod belongs to one."""
        return uid in self._key

    def add(self, pod: Pod, gang: Gang) -> None:
        """Or its newest version, after `forget`."""
        self._pods.setdefault(gang.key, {})[pod.metadata.uid] = gang, pod
        self._key[pod.metadata.uid] = gang.key
        self._changed[gang.key] = None

    def forget(self, uid: str) -> bool:
        """Whether it was known."""
        key = self._key.pop(uid, None)
        if key is None:
            return False
        self._changed[key] = None
        del self._pods[key][uid]
        if not self._pods[key]:
            del self._pods[key]
        return True

    def all(self) -> Iterator[Gathered]:
        """As they are now."""
        return map(self._gathered, self._pods)

    def changed(self, now: float) -> list[Gathered]:
        """Those whose pods have changed since this was last said of them, unless that was just now."""
        self._told = {key: until for key, until in self._told.items() if until > now}
        due = [key for key in self._changed if key not in self._told]
        for key in due:
            del self._changed[key]
            self._told[key] = now + EVERY_S
        return [self._gathered(key) for key in due if key in self._pods]

    def turn(self, pod: Pod) -> Reason | None:
        """Why a pod may not be placed now, though kube-scheduler asks."""
        try:
            gang = gang_of(pod)
        except InputError as error:
            return nonsense(error)
        if gang is None or self.grant_of(pod.metadata.uid) is not None:
            return None
        if gang.key not in self._pods:  # kube-scheduler heard of it first
            return Gathered(gang, 0, ()).turn
        return self._gathered(gang.key).turn

    def is_waiting(self, gang: Gang, now: float) -> bool:
        """Whether it may be let go: nothing is held for it, and it was not given up just now."""
        return gang.key not in self._grants and self._paused.get(gang.key, now) <= now

    def grant(self, gang: Gang, members: Iterable[str], until: float) -> None:
        """Slots are held for all of them."""
        self._grants[gang.key] = Grant(gang, frozenset(members), until, has_place=self._has_place)

    def grant_of(self, uid: str) -> Grant | None:
        """What was granted to a pod and others of its gang."""
        grant = self._grants.get(self._key.get(uid, ("", "")))
        return grant if grant is not None and uid in grant.members else None

    def revoke(self, gang: Gang) -> None:
        """Nothing is held for it any more."""
        self._grants.pop(gang.key, None)

    def revoke_all(self) -> None:
        """Nothing is held for any gang."""
        self._grants.clear()

    def end(self, now: float, pause_s: float) -> list[GivenUp]:
        """Forget grants of gangs that are bound; give up those that time has run out for, or that lost a pod."""
        self._paused = {key: until for key, until in self._paused.items() if until > now}
        given_up = []
        for key, grant in list(self._grants.items()):
            unbound = {uid for uid in grant.members if self._state.node_of(uid) is None}
            left = [uid for uid in unbound if self._waits(key, uid)]
            is_late = now >= grant.until
            has_lost = not grant.whole and any(self._is_lost(key, uid) for uid in unbound)
            if left and not is_late and not has_lost:
                continue
            del self._grants[key]
            for uid in left:
                self._state.release(uid)
            if is_late:
                self._paused[key] = now + pause_s  # others may have better luck with the room
            if left:
                why = f"{len(left)} of {len(grant.members)} could not be bound in time" if is_late else "one is gone"
                pods = tuple(self._pods[key][uid][1] for uid in left)
                given_up.append(GivenUp(pods, f"gang {grant.gang.name} waits again as a whole: {why}"))
        return given_up

    def _gathered(self, key: Key) -> Gathered:
        members = self._pods[key].values()
        waiting = (pod for _, pod in members if self._waits(key, pod.metadata.uid))
        ready = [pod for pod in waiting if not gates_of_others(pod.spec.scheduling_gates)]
        ready.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name))
        size = max(gang.size for gang, _ in members)
        return Gathered(Gang(*key, size), sum(self._is_there(pod) for _, pod in members), tuple(ready))

    def _waits(self, key: Key, uid: str) -> bool:
        found = self._pods.get(key, {}).get(uid)
        return found is not None and uid in self._state.waiting and not self._is_there(found[1])

    def _is_lost(self, key: Key, uid: str) -> bool:
        found = self._pods.get(key, {}).get(uid)
        return found is None or not (self._is_there(found[1]) or uid in self._state.waiting)

    def _has_place(self, uid: str) -> bool:
        return self._state.held(uid) is not None or self._state.node_of(uid) is not None

    def _is_there(self, pod: Pod) -> bool:
        if has_ended(pod):
            return pod.status.phase == "Succeeded"
        if pod.metadata.deletion_timestamp:
            return False
        return bool(pod.spec.node_name) or self._state.node_of(pod.metadata.uid) is not None
