# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod states for the queue: its estimated run time, the time it has had, and its gang."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.kube.api.objects import Gate, Pod
from cotenant.kube.codec.keys import own_key
from cotenant.wire.text import printable

GATE = own_key("queue")
"""Scheduling gate of a pod in the queue; the scheduler removes it."""
ESTIMATE, ATTAINED = own_key("estimate"), own_key("attained")
GANG, GANG_SIZE = own_key("gang"), own_key("gang-size")
GROUP, GROUP_SIZE = (f"pod-group.scheduling.sigs.k8s.io/{word}" for word in ("name", "min-available"))
"""Labels of the coscheduling plugin of Kubernetes' scheduler-plugins, which mean the same."""
MOST_MEMBERS = 256
LONGEST_NAME = 200
LONGEST_S = 1e9

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in _UNITS), re.ASCII)


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods of one namespace that start together or not at all."""

    namespace: str
    name: str
    size: int
    """Number of pods without which none of them starts; more may join."""

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


def is_gated(gates: Iterable[Gate]) -> bool:
    """Whether our scheduling gate is among these."""
    return any(gate.name == GATE for gate in gates)


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
