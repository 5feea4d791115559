# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod states for the queue: its estimated run time, the time it has had, its gang, and who holds it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.kube.api.objects import Gate, Metadata, Pod, PodSpec, moment_of, time_text
from cotenant.kube.codec.keys import own_key
from cotenant.wire.text import printable

GATE = own_key("queue")
"""Scheduling gate of a pod in the queue; the scheduler removes it."""
ESTIMATE, ATTAINED = own_key("estimate"), own_key("attained")
GANG, GANG_SIZE = own_key("gang"), own_key("gang-size")
HOLD = own_key("hold")
"""Annotation of a pod that stays at its gate until the annotation is removed: since when, and who wrote it."""
NOT_HELD = "false"
"""The only value of the annotation that is no hold."""
NOT_HOLDABLE = (
    "it does not wait in cotenant's queue, and Kubernetes adds no scheduling gate to a pod that exists. The annotation "
    f"{HOLD} holds a pod from its creation on"
)
"""Why a pod cannot be held although it waits."""
GROUP, GROUP_SIZE = (f"pod-group.scheduling.sigs.k8s.io/{word}" for word in ("name", "min-available"))
"""Labels of the coscheduling plugin of Kubernetes' scheduler-plugins, which mean the same."""
MOST_MEMBERS = 256
LONGEST_NAME = 200
LONGEST_S = 1e9
LATEST_S = 4e9
"""The latest time of a hold, in the year 2096: a later one was not written by us."""

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in _UNITS), re.ASCII)


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods of one namespace that start together or not at all."""

    namespace: str
    name: str
    size: int
    """Number of pods without which none of them starts; more may join."""
    group: str | None = None
    """The PodGroup object that states the size instead, which is then read from there."""

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


def gang_of(pod: Pod) -> Gang | None:
    """The gang of a pod, None if it has none; InputError if its annotations cannot be understood."""
    for words, name, size in (
        (pod.metadata.annotations, GANG, GANG_SIZE),
        (pod.metadata.labels, GROUP, GROUP_SIZE),
    ):
        if name in words or size in words:
            return Gang(pod.metadata.namespace, _name(words, name), _size(words, size))
    group = pod.spec.scheduling_group
    if group is not None and group.pod_group_name:
        return Gang(pod.metadata.namespace, f"podgroup/{group.pod_group_name}", 1, group.pod_group_name)
    return None


def estimate_of(pod: Pod) -> Seconds | None:
    """The estimated run time of a pod's job; InputError if the annotation is no time."""
    seconds = _time(pod, ESTIMATE)
    if seconds is not None and not seconds:
        raise InputError(f"annotation {ESTIMATE}: expected more than 0 seconds; write for example 1h30m")
    return seconds


def attained_of(pod: Pod) -> Seconds:
    """The run time that the job has had in earlier pods; InputError if the annotation is no time."""
    return _time(pod, ATTAINED) or Seconds(0.0)


@dataclass(frozen=True, slots=True)
class Hold:
    """A pod is to stay at its gate."""

    by: str = ""
    """As the annotation says: who may patch the pod can write any name."""
    since: float | None = None
    """In seconds since 1970."""

    def __str__(self) -> str:
        since = "" if self.since is None else f" since {time_text(datetime.fromtimestamp(self.since, UTC))}"
        return f"held{f' by {self.by}' if self.by else ''}{since}"


class Waiting(Protocol):
    """A pod, however much of it a program reads."""

    @property
    def metadata(self) -> Metadata: ...

    @property
    def spec(self) -> PodSpec: ...


def hold_of(pod: Waiting) -> Hold | None:
    """Who holds a pod at its gate; None: no user does, or it has no gate of ours any more."""
    return hold_in(pod.metadata.annotations) if is_gated(pod.spec.scheduling_gates) else None


def hold_in(annotations: Mapping[str, str]) -> Hold | None:
    """The hold that annotations state; None if they state none. A value that is not ours is a hold, too.

    The policy `cotenant-queue` has the same rule: if it did not, the scheduler would hold a slot for the pod in every
    pass, and the API server would refuse to remove the gate.
    """
    text = annotations.get(HOLD)
    if text is None or text == NOT_HELD:
        return None
    since, _, by = text.strip().partition(" ")
    at = moment_of(since)
    return Hold(printable(by.strip()[:LONGEST_NAME]), at) if 0 < at <= LATEST_S else Hold()


def hold_text(by: str, now: float) -> str:
    """The value of the annotation."""
    return f"{time_text(datetime.fromtimestamp(now, UTC))} {by[:LONGEST_NAME]}".strip()


def hold_patch(pod: Metadata, text: str | None) -> dict[str, object]:
    """The change that holds this very pod, not a later one of the same name; without a text it ends the hold."""
    return {"metadata": {"uid": pod.uid, "annotations": {HOLD: text}}}


def is_gated(gates: Iterable[Gate]) -> bool:
    """Whether our scheduling gate is among these."""
    return any(gate.name == GATE for gate in gates)


def gate_patch(pod: Waiting) -> dict[str, object]:
    """The change that removes our gate from this very pod. Gates can only be removed: if another one was removed
    meanwhile, the API server refuses the change, and it is tried again."""
    others = [{"name": name} for name in gates_of_others(pod.spec.scheduling_gates)]
    return {"metadata": {"uid": pod.metadata.uid}, "spec": {"schedulingGates": others}}


def gates_of_others(gates: Iterable[Gate]) -> list[str]:
    """The scheduling gates of other programs."""
    return [gate.name for gate in gates if gate.name != GATE]


def _name(words: Mapping[str, str], key: str) -> str:
    text = words.get(key, "").strip()
    if not 1 <= len(text) <= LONGEST_NAME or not text.isprintable():
        raise InputError(f"{key}: expected the name of a gang, of 1 to {LONGEST_NAME} characters")
    return text


def _size(words: Mapping[str, str], key: str) -> int:
    text = words.get(key, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= MOST_MEMBERS):
        raise InputError(f"{key}: expected how many pods the gang has, from 1 to {MOST_MEMBERS}")
    return int(text)


def _time(pod: Pod, key: str) -> Seconds | None:
    text = pod.metadata.annotations.get(key)
    if text is None:
        return None
    stripped = text.strip()
    found = _DURATION.fullmatch(stripped)
    if not stripped or found is None:
        raise InputError(f"annotation {key}: {printable(text[:40])!r} is not a time; write for example 1h30m")
    seconds = sum(
        float(part) * unit for part, unit in zip(found.groups(), _UNITS.values(), strict=True) if part is not None
    )
    if seconds > LONGEST_S:
        raise InputError(f"annotation {key}: {printable(text[:40])!r}, expected at most 30 years")
    return Seconds(seconds)
