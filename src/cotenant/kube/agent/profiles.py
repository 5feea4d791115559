# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The WorkloadProfiles of this node: what was measured here, written to the API server, and read back at the start.

Only this agent writes them, so they are listed once and not watched. A measurement waits until the next write, and
writes have a pace, so jobs that report often cost the API server no more than others.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.objects import time_text
from cotenant.kube.codec.keys import qualified
from cotenant.kube.codec.profiles import (
    API,
    KIND,
    LONGEST_NODE,
    MOST_BESIDE,
    MOST_PER_NODE,
    MOST_PODS,
    MOST_TIMES,
    PROFILES,
    Alone,
    Beside,
    PodSpeed,
    ProfileSpec,
    number_of,
    object_name,
    workload_id,
)
from cotenant.wire.profile import MOST_AVERAGED, JobProfile, WorkloadId, averaged

if TYPE_CHECKING:
    from cotenant.core.interference import Speed

AGAIN_S = 60.0
"""Between two tries to list the objects."""
KEPT = timedelta(days=30)
"""How long a workload is remembered that was not measured again."""
MUCH = 0.1
"""Relative change of a running pod's speed that is worth a write."""
NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePace:
    """Times in seconds."""

    passes_s: float = 2.0
    """Between two passes over what is to be written."""
    objects_s: float = 10.0
    """Between two writes of one object."""
    writes: int = 10
    """Writes in one pass, at most."""


class Key(NamedTuple):
    """What an object is about."""

    namespace: str
    workload: str
    gpu_type: str


@dataclass(slots=True)
class _Entry:
    spec: ProfileSpec
    number: int | None = None
    """Of its object; None: it gets one when it is written, because only then all numbers in use are known."""
    written: ProfileSpec | None = None
    """As the API server has it; None: it has none."""
    due: float = 0.0
    """Not written again before."""


class OwnProfiles:
    """What was measured on one node. As `Knowledge` of the node's measurements it learns speeds and predicts none."""

    def __init__(
        self,
        client: Client,
        node: str,
        owner: Callable[[], str | None],
        *,
        report: Callable[[str], object],
        pace: WritePace = WritePace(),  # noqa: B008 -- frozen
    ) -> None:
        """`owner` returns the UID of the node, once it is known."""
        self._client, self._node, self._owner, self._report, self._pace = client, node, owner, report, pace
        self._entries: dict[Key, _Entry] = {}
        self._leftover: set[int] = set()
        """Numbers of objects that are to be deleted."""

    # What was measured

    def introduce(self, workload: WorkloadId) -> None:
        """Nothing is predicted here, so nothing has to be known of a workload."""

    def profile(self, workload: WorkloadId, gpu_type: str) -> JobProfile | None:
        key = _key(workload.name, gpu_type)
        entry = None if key is None else self._entries.get(key)
        return None if entry is None or entry.spec.alone is None else _job_profile(workload, gpu_type, entry.spec.alone)

    def add(self, profile: JobProfile, *, replace: bool = False) -> JobProfile:
        key = _key(profile.workload.name, profile.card)
        if key is None:
            return profile
        stored = averaged(None if replace else self.profile(profile.workload, profile.card), profile)
        alone = Alone(
            samples_per_second=stored.samples_per_second,
            step_seconds=stored.step_seconds,
            utilisation=stored.utilisation,
            bandwidth=stored.bandwidth,
            memory_mi_b=stored.memory_mib,
            pcie_mi_b_per_second=stored.pcie_mib_s,
            times=stored.times,
        )
        self._measured(key, alone=alone)
        return stored

    def predict(self, gpu_type: str, workloads: Mapping[str, str]) -> "Mapping[str, Speed]":
        return {}

    def observe(self, gpu_type: str, workloads: Mapping[str, str], speeds: Mapping[str, float]) -> bool:
        """Only pairs: the speeds of more tenants do not show which of them slowed which."""
        if len(workloads) != 2:
            return False
        changed = False
        for job, other in (tuple(workloads), tuple(reversed([*workloads]))):
            key, partner = (_key(workloads[one], gpu_type) for one in (job, other))
            if key is not None and partner is not None and job in speeds:
                entry = self._entries.get(key)
                beside = _with_speed(() if entry is None else entry.spec.beside, partner, speeds[job])
                self._measured(key, beside=beside)
                changed = True
        return changed

    def save(self, now: float) -> None:
        """Writes have their own pace."""

    def set_pods(self, pods: Mapping[Key, tuple[PodSpeed, ...]]) -> None:
        """The running pods of each workload that report, and how fast they are."""
        for key, found in pods.items():
            if key not in self._entries:
                self._put(key, ProfileSpec(node=self._node, **key._asdict()))
            entry, shown = self._entries[key], found[:MOST_PODS]
            if _differ(entry.spec.pods, shown):
                entry.spec = msgspec.structs.replace(entry.spec, pods=shown)
        for key, entry in self._entries.items():
            if key not in pods and entry.spec.pods:
                entry.spec = msgspec.structs.replace(entry.spec, pods=())

    def _measured(self, key: Key, **part: object) -> None:
        entry = self._entries.get(key)
        spec = ProfileSpec(node=self._node, **key._asdict()) if entry is None else entry.spec
        self._put(key, msgspec.structs.replace(spec, measured_at=time_text(datetime.now(UTC)), **part))

    def _put(self, key: Key, spec: ProfileSpec) -> None:
        if key in self._entries:
            self._entries[key].spec = spec
            return
        self._make_room(1)
        self._entries[key] = _Entry(spec)

    def _make_room(self, wanted: int) -> None:
        """Drops the entries that were measured longest ago, first those without pods."""
        while len(self._entries) > MOST_PER_NODE - wanted:
            self._drop(min(self._entries, key=lambda one: (bool(self._entries[one].spec.pods), self._measured_at(one))))

    def _drop(self, key: Key) -> None:
        number = self._entries.pop(key).number
        if number is not None:
            self._leftover.add(number)

    def _measured_at(self, key: Key) -> str:
        return self._entries[key].spec.measured_at

    # The API server

    async def run(self) -> NoReturn:
        """Writes what changes, until cancelled."""
        while not await self._is_listed():
            await asyncio.sleep(AGAIN_S)
        while True:
            self._forget_old()
            await self._write_due()
            await asyncio.sleep(self._pace.passes_s)

    async def _is_listed(self) -> bool:
        if len(self._node) > LONGEST_NODE:
            self._report(f"the name of the node has more than {LONGEST_NODE} characters: no profiles are written")
            return False
        try:
            async for page in self._client.pages(PROFILES, Selection(fields=f"spec.node={self._node}")):
                for one in page.items:
                    self._found(number_of(one), one.spec)
        except ApiError as error:
            self._report(str(error))
            return False
        self._make_room(0)
        return True

    def _found(self, number: int | None, spec: ProfileSpec) -> None:
        """Takes in an object of an earlier agent. What was measured since the start counts more."""
        key = Key(spec.namespace, spec.workload, spec.gpu_type)
        if number is None or spec.node != self._node:
            return
        now = self._entries.get(key)
        if now is None:
            self._leftover.discard(number)  # it was dropped, and the list began anew
            self._entries[key] = _Entry(spec, number, written=spec)
        elif now.number is None:
            # Measured before the list was there: keep the measurements of both, under the number that exists.
            now.number, now.written = number, spec
            now.spec = msgspec.structs.replace(
                now.spec,
                alone=now.spec.alone or spec.alone,
                beside=now.spec.beside or spec.beside,
                measured_at=now.spec.measured_at or spec.measured_at,
            )
        elif now.number != number:
            self._leftover.add(number)

    def _forget_old(self) -> None:
        """An object without pods is kept for a while after its last measurement; one without any is not kept."""
        oldest = time_text(datetime.now(UTC) - KEPT)
        for key, entry in list(self._entries.items()):
            if not entry.spec.pods and entry.spec.measured_at < oldest:
                self._drop(key)

    async def _write_due(self) -> None:
        now, left = time.monotonic(), self._pace.writes
        due = [(key, one) for key, one in self._entries.items() if one.spec != one.written and one.due <= now]
        try:
            for number in sorted(self._leftover)[:left]:
                await self._delete(number)
                self._leftover.discard(number)
                left -= 1
            for key, entry in sorted(due, key=lambda one: one[1].due)[:left]:
                if self._entries.get(key) is entry:  # else it was dropped while others were written
                    entry.due = now + self._pace.objects_s
                    await self._write(entry)
        except ApiError as error:
            self._report(str(error))

    def _free_number(self) -> int:
        """One that no object has, else that of an object to be deleted, which is changed instead.

        Only the task that also deletes calls it, so no object is deleted after it was given to another workload.
        """
        used = {entry.number for entry in self._entries.values()}
        free = (number for number in range(MOST_PER_NODE) if number not in used)
        number = min(free, key=lambda one: (one in self._leftover, one))
        self._leftover.discard(number)
        return number

    async def _write(self, entry: _Entry) -> None:
        owner = self._owner()
        if owner is None:
            return
        if entry.number is None:
            entry.number = self._free_number()
        spec, name = entry.spec, object_name(self._node, entry.number)
        about = {
            "name": name,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": owner}],
        }
        body: dict[str, Any] = {"apiVersion": API, "kind": KIND, "metadata": about, "spec": _whole(spec)}
        try:
            await self._client.patch(PROFILES, name, body)
        except ApiError as error:
            if error.status != 404:
                raise
            body["spec"] = msgspec.to_builtins(spec)
            await self._client.create(PROFILES, body)
        entry.written = spec

    async def _delete(self, number: int) -> None:
        try:
            await self._client.delete(PROFILES, object_name(self._node, number))
        except ApiError as error:
            if error.status != 404:
                raise


def _key(name: str, gpu_type: str) -> Key | None:
    """None: the owner of the job named no workload."""
    namespace, _, workload = name.partition("/")
    return Key(namespace, workload, gpu_type) if namespace and workload else None


def workload_of_pod(namespace: str, workload: str | None, uid: str) -> WorkloadId:
    """The workload of a pod; if its owner named none, one of its own, which is not kept."""
    return WorkloadId(f"/{uid}", None) if workload is None else workload_id(qualified(namespace, workload))


def _with_speed(known: tuple[Beside, ...], partner: Key, speed: float) -> tuple[Beside, ...]:
    """The speed averaged with earlier ones; the neighbour measured last is the last one, and the first is dropped."""
    same = [one for one in known if (one.namespace, one.workload) == partner[:2]]
    others = tuple(one for one in known if (one.namespace, one.workload) != partner[:2])
    if same:
        weight = 1 / min(same[0].times + 1, MOST_AVERAGED)
        speed = same[0].speed + weight * (speed - same[0].speed)
    times = min(MOST_TIMES, same[0].times + 1 if same else 1)
    new = Beside(namespace=partner.namespace, workload=partner.workload, speed=speed, times=times)
    return (*others, new)[-MOST_BESIDE:]


def _differ(before: Iterable[PodSpeed], after: Iterable[PodSpeed]) -> bool:
    """Whether pods have come or gone, or changed their batch sizes or much of their speeds."""
    old, new = {one.uid: one for one in before}, {one.uid: one for one in after}
    if old.keys() != new.keys():
        return True
    return any(
        (one.batch, one.tuned, one.speed is None) != (now.batch, now.tuned, now.speed is None)
        or abs(one.samples_per_second - now.samples_per_second) > MUCH * one.samples_per_second
        for one, now in ((old[uid], new[uid]) for uid in old)
    )


def _job_profile(workload: WorkloadId, gpu_type: str, alone: Alone) -> JobProfile:
    return JobProfile(
        family=workload.family,
        batch=workload.batch,
        card=gpu_type,
        digest=NO_DIGEST,
        step_seconds=alone.step_seconds,
        samples_per_second=alone.samples_per_second,
        utilisation=alone.utilisation,
        bandwidth=alone.bandwidth,
        memory_mib=alone.memory_mi_b,
        pcie_mib_s=alone.pcie_mi_b_per_second,
        measured_s=1.0,
        at=0.0,
        times=alone.times,
    )


def _whole(spec: ProfileSpec) -> dict[str, Any]:
    """The spec as a merge patch that also removes what is not set."""
    return {"alone": None, "beside": None, "pods": None, "measuredAt": None, **msgspec.to_builtins(spec)}
