# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The ResourceClaims and device classes of the cluster, and which pods use which claim.

Pods that use one claim have the same GPUs, which are free when the last of them has ended. The first of them is placed
as if it were alone; the others join it.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from typing import NoReturn

from cotenant.errors import InputError
from cotenant.kube.api.claims import CLAIMS, CLASSES, DeviceClass, ResourceClaim
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.api.reflector import Key, Pace, Reflector, older
from cotenant.kube.codec.assignment import RECORD, Record, valid_record
from cotenant.kube.codec.claim_requests import CLASSES as OWN
from cotenant.kube.codec.claim_requests import (
    DRIVER,
    class_names,
    names_our_driver,
)
from cotenant.kube.codec.claimed import Claimed
from cotenant.kube.codec.claims import check_named_once, check_usable, claim_names, claimed_by, claims_of
from cotenant.kube.codec.isolation import Isolation
from cotenant.kube.codec.node_matching import MOST_CONDITIONS, has_too_many
from cotenant.kube.scheduler.joining_claims import joined_with, record_to_join
from cotenant.kube.scheduler.reading_claims import ClaimReader, check_limits_hold
from cotenant.kube.state.cluster import ClusterState
from cotenant.wire.text import printable

MOST_AT_ONCE = 32
"""pods that are read again at a time, because something has changed on which their requests depend"""


class ClaimBook:
    """Follows claims while `run` runs. If claims are not enabled, it follows none, and no pod has any."""

    def __init__(
        self,
        client: Client,
        errors: ErrorLog,
        changed: Callable[[Pod], object],
        state: Callable[[], ClusterState],
        *,
        enabled: bool,
        isolation: Callable[[str], Isolation],
        allow_privileged: bool = False,
        converted: Collection[str] = (),
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called for each pod of a claim that has changed; `isolation` returns who decides in a namespace
        whether limits are enforced; `converted`: the resources that the webhook turns into claims."""
        self.enabled, self._changed, self._state, self._isolation = enabled, changed, state, isolation
        self._allow_privileged, self._converted, self._errors = allow_privileged, converted, errors

        def report(text: str) -> None:
            errors.report("watch", text)

        self._reflector = Reflector(client, CLAIMS, self._claim_changed, pace=pace, report=report)
        self._classes = Reflector(client, CLASSES, self._class_changed, pace=pace, report=report)
        self._written: dict[Key, ResourceClaim] = {}
        """claims as our last write left them, until the watch shows them"""
        self._pods: dict[Key, dict[str, Pod]] = {}
        """the pods that name a claim, by UID"""
        self._given: dict[Key, dict[str, Pod]] = {}
        """those of them that have an assignment and have not ended, by UID"""
        self._untold: dict[str, Key] = {}
        """pods that are to be read again, by UID, and a claim that they name"""
        self._wake = asyncio.Event()
        self._version = 0
        """counts the changes of claims, classes and the pods that use claims"""
        self._last: tuple[Pod, tuple[int, int], Claimed] | None = None
        """what the pod requests that was read last: one change of a pod makes several parts read it"""
        self._reader = ClaimReader(self.find_class, state, clock)
        self._inventory = 0
        """the version of the inventories for which pods were last read"""
        self._nodes = 0
        """the version of the labels and taints of nodes for which pods were last read"""

    def unready_reason(self) -> str | None:
        """Why claims are not known; None if they are, or are not enabled."""
        is_known = not self.enabled or (self._reflector.synced.is_set() and self._classes.synced.is_set())
        return None if is_known else "the ResourceClaims of the cluster are not known yet"

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        if not self.enabled:
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._classes.run())
            group.create_task(self._reflector.run())
            group.create_task(self._tell_rest())
        raise AssertionError("reflectors never end")

    def find(self, namespace: str, name: str) -> ResourceClaim | None:
        """A claim by name, as the watch or our last write shows it."""
        key = namespace, name
        seen, written = self._reflector.objects.get(key), self._written.get(key)
        if seen is not None and written is not None and seen.metadata.uid == written.metadata.uid:
            return written if older(seen.metadata.resource_version, written.metadata.resource_version) else seen
        return seen

    def find_class(self, name: str) -> DeviceClass | None:
        """A device class by name."""
        return self._classes.objects.get(("", name))

    def note_written(self, claim: ResourceClaim) -> None:
        """A write was accepted, which the watch may show later."""
        self._version += 1
        self._written[claim.metadata.namespace, claim.metadata.name] = claim

    def claims(self, pod: Pod) -> dict[str, ResourceClaim]:
        """The claims of a pod to our GPUs, by their names within the pod; InputError if one does not exist."""
        return claims_of(pod, self.find, self.find_class)

    def claimed(self, pod: Pod) -> Claimed:
        """What a pod requests by claims; InputError if a claim is missing, invalid, or in use by an unknown pod."""
        version = self._version, self._state().inventory_version
        if self._last is None or self._last[0] is not pod or self._last[1] != version:
            self._last = pod, version, self._read_claims(pod)
        return self._last[2]

    def _read_claims(self, pod: Pod) -> Claimed:
        claims = self.claims(pod)
        if not claims:
            return Claimed()
        if RECORD in pod.metadata.annotations:
            return claimed_by(pod, claims, self._reader.request_of_placed)
        if has_too_many(pod.spec):
            raise InputError(
                f"its node selector, node affinity and tolerations have more than {MOST_CONDITIONS} conditions, which"
                " is the most for a pod with ResourceClaims to GPUs; write fewer"
            )
        check_named_once(claims)
        check_usable(pod, claims)
        found = claimed_by(pod, claims, self._reader.request_of)
        if not self._allow_privileged:
            check_limits_hold(pod, claims, found)
        joined = {
            claim.metadata.uid: record for claim in claims.values() if (record := self._to_join(claim, pod)) is not None
        }
        return joined_with(found, joined) if joined else found

    def _to_join(self, claim: ResourceClaim, pod: Pod) -> Record | None:
        key, allowed = _key_of(claim), self._isolation(claim.metadata.namespace)
        return record_to_join(claim, pod, self._pods.get(key, {}), self._given.get(key, {}), allowed)

    def is_resized(self, pod: Pod) -> bool:
        """Whether the assignment of a pod whose claim this one would join is being changed, or was since the watch
        showed it. Later it is not: pods that share a claim keep their size."""
        for claim in self.claims(pod).values():
            users = self._given.get((claim.metadata.namespace, claim.metadata.name), {})
            for uid, other in users.items():
                record = None if uid == pod.metadata.uid else valid_record(other)
                if record is None:
                    continue
                now = self._state().bound(uid)
                if self._state().held(uid) is not None or (now is not None and now.record != record):
                    return True
                break  # the one whose assignment counts
        return False

    def given_to_others(self, pod: Pod) -> Iterator[tuple[str, str, Pod, Record]]:
        """The claims of a pod that other pods were given on its node: the name within the pod, the UID, one of the
        other pods and its assignment."""
        for name, real in claim_names(pod).items():
            claim = None if real is None else self.find(pod.metadata.namespace, real)
            if claim is None:
                continue
            for uid, other in self._given.get((pod.metadata.namespace, claim.metadata.name), {}).items():
                record = None if uid == pod.metadata.uid else valid_record(other)
                is_here = record is not None and record.node == pod.spec.node_name
                if record is not None and is_here and record.held_by_claim(claim.metadata.uid):
                    yield name, claim.metadata.uid, other, record
                    break

    def given_alone(self, pod: Pod) -> list[ResourceClaim]:
        """The claims of a pod that have GPUs of ours, and are neither reserved for another pod nor given to one."""
        uid, found = pod.metadata.uid, []
        for name in claim_names(pod).values():
            claim = None if name is None else self.find(pod.metadata.namespace, name)
            if claim is None or claim.status.allocation is None:
                continue
            others = {one.uid for one in claim.status.reserved_for} | self._given.get(_key_of(claim), {}).keys()
            devices = claim.status.allocation.devices.results
            if not others - {uid} and any(one.driver == DRIVER and not one.admin_access for one in devices):
                found.append(claim)
        return found

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`, before all that read requests."""
        if not self.enabled or not (new or old or Pod()).spec.resource_claims:
            return
        self._version += 1
        for key in claim_keys(old):
            for users in (self._pods, self._given):
                if key in users:
                    users[key].pop((old or Pod()).metadata.uid, None)
                    if not users[key]:
                        del users[key]
        for key in claim_keys(new):
            for users in (self._pods, self._given) if _has_record(new) else (self._pods,):
                users.setdefault(key, {})[(new or Pod()).metadata.uid] = new or Pod()
        if _has_record(old) != _has_record(new):  # others can join it now, or have the claims to themselves
            with_record = (new if _has_record(new) else old) or Pod()
            for key in dict.fromkeys((*claim_keys(old), *claim_keys(new))):
                if not self._is_given_to_more(key, with_record):
                    self._tell(key, unless=(new or old or Pod()).metadata.uid)

    def _is_given_to_more(self, key: Key, pod: Pod) -> bool:
        """Whether a pod was given a claim together with others, so that nothing changes for all the rest."""
        claim, record = self.find(*key), valid_record(pod)
        if claim is None or record is None or not record.held_by_claim(claim.metadata.uid):
            return False
        others = (one for uid, one in self._given.get(key, {}).items() if uid != pod.metadata.uid)
        theirs = (valid_record(one) for one in others)
        return any(one is not None and one.held_by_claim(claim.metadata.uid) for one in theirs)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        self._version += 1
        about = (new or old or ResourceClaim()).metadata
        key = about.namespace, about.name
        written = self._written.get(key)
        if written is not None and (new is None or self.find(*key) is new):
            del self._written[key]
        if written is not None and new is not None and _is_no_newer(new, written):  # it shows a write of our own
            return
        if new is None and old is not None:
            self._reader.forget(old)
        if old is None or new is None or _content(old) != _content(new):
            self._tell(key)

    def _class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        self._version += 1
        self._reader.classes_version += 1
        name = (new or old or DeviceClass()).metadata.name
        mapped = "" if new is None else new.spec.extended_resource_name or ""
        if new is not None and mapped not in ("", *self._converted) and (name in OWN or names_our_driver(new)):
            self._errors.report(
                f"device class {printable(name[:80])}",
                f"maps the resource {printable(mapped[:80])} to these GPUs, which kube-scheduler cannot allocate, and"
                " the webhook does not turn it into claims; set claims.convert and claims.extended-resources, or remove"
                " extendedResourceName",
            )
        for key, claim in list(self._reflector.objects.items()):
            if name in class_names(claim.spec.devices):
                self._tell(key)

    def inventory_changed(self) -> None:
        """Read pods again that select among the GPUs of the cluster, if these have changed, and those that have waited
        for the allowance of their namespace. Called now and then."""
        self._reader.no_longer_delayed(self._tell)
        version = self._state().inventory_version
        if not self.enabled or version == self._inventory:
            return
        self._inventory = version
        for key, claim in list(self._reflector.objects.items()):
            if self._reader.follows_inventory(claim):
                self._tell(key)

    def nodes_changed(self, version: int) -> None:
        """Read pods again that wait with claims, if labels or taints of nodes have changed: others may admit them."""
        if not self.enabled or version == self._nodes:
            return
        self._nodes = version
        for key, users in self._pods.items():
            for uid, pod in users.items():
                if not pod.spec.node_name and not has_ended(pod) and RECORD not in pod.metadata.annotations:
                    self._untold[uid] = key
        self._tell_some()

    def read_again(self, pod: Pod) -> None:
        """Have a pod read again, because its claims may be allocated somewhere by now."""
        key = next(iter(claim_keys(pod)), None)
        if key is not None:
            self._untold[pod.metadata.uid] = key
            self._tell_some()

    def _tell(self, key: Key, unless: str = "") -> None:
        self._untold |= {uid: key for uid in self._pods.get(key, ()) if uid != unless}
        self._tell_some()

    def _tell_some(self) -> None:
        """Have a few pods read again, and leave the rest to `_tell_rest`: thousands may name one claim."""
        for _ in range(min(MOST_AT_ONCE, len(self._untold))):
            uid = next(iter(self._untold))
            pod = self._pods.get(self._untold.pop(uid), {}).get(uid)
            if pod is not None:  # as the watch shows it now
                self._changed(pod)
        if self._untold:
            self._wake.set()

    async def _tell_rest(self) -> NoReturn:
        """Have them read in several steps, between which other tasks run."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(0)
            self._tell_some()


def _content(claim: ResourceClaim) -> object:
    """What pods depend on: labels and annotations of a claim are not."""
    return claim.metadata.uid, claim.metadata.deletion_timestamp, claim.spec, claim.status


def _is_no_newer(seen: ResourceClaim, written: ResourceClaim) -> bool:
    """Whether this is the claim that we wrote, in that version or an earlier one."""
    version, of_ours = seen.metadata.resource_version, written.metadata.resource_version
    return seen.metadata.uid == written.metadata.uid and (version == of_ours or older(version, of_ours))


def _key_of(claim: ResourceClaim) -> Key:
    return claim.metadata.namespace, claim.metadata.name


def _has_record(pod: Pod | None) -> bool:
    return pod is not None and not has_ended(pod) and RECORD in pod.metadata.annotations


def claim_keys(pod: Pod | None) -> list[Key]:
    """The claims that a pod names, by namespace and name."""
    if pod is None:
        return []
    return [(pod.metadata.namespace, name) for name in claim_names(pod).values() if name is not None]
