# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One entry per pod that the queue knows: the state of its scheduling gate, and the pure step to the next state.

docs/explanation/pod-states.md draws the states.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from math import inf

from cotenant.core.model import Job
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.queueing import Gang, gates_of_others
from cotenant.kube.scheduler.gangs import QueuedPod


class UnitClass:
    """Identifies units that fit or do not fit together, by identity: comparing thousands of demands would be slow."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True)
class Unit:
    """What is released at once: a pod, or the pods that a gang still needs to be complete."""

    pods: tuple[QueuedPod, ...]
    gang: Gang | None
    job: Job
    """what the queue order sees"""
    unit_class: UnitClass
    order: tuple[int, float]
    """sort key by the queue order, smallest first; it does not change while the job waits"""


class EntryState(Enum):
    """What became of a pod's scheduling gate, and of a slot that the queue held for the pod."""

    QUEUED = auto()
    """the gate is closed, and the pod waits"""
    RELEASING = auto()
    """a slot is held, and the gate is being removed"""
    RELEASED = auto()
    """the gate is gone, and the slot is held until the pod is bound or the slot is taken back"""
    RELEASING_TO_PREEMPT = auto()
    """no slot is free, but victims could be evicted; the gate is being removed"""
    PREEMPTING = auto()
    """the gate is gone, and the pod has no slot yet: it keeps its place in the queue"""
    OPEN = auto()
    """there is no gate, and the queue holds nothing for the pod"""


GATED = frozenset((EntryState.QUEUED, EntryState.RELEASING, EntryState.RELEASING_TO_PREEMPT))
"""states in which the pod still has its gate, as far as the watch has shown"""
QUEUED, RELEASING, RELEASED = EntryState.QUEUED, EntryState.RELEASING, EntryState.RELEASED
RELEASING_TO_PREEMPT, PREEMPTING, OPEN = EntryState.RELEASING_TO_PREEMPT, EntryState.PREEMPTING, EntryState.OPEN
PREEMPTS = frozenset((RELEASING_TO_PREEMPT, PREEMPTING))
"""states of a pod that is released so that victims are evicted for it"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the queue knows about one pod."""

    state: EntryState = OPEN
    slot_until: float | None = None
    """when the slot that the queue holds for this pod alone is taken back; infinite as long as kube-scheduler has not
    reported that it finds no node; None if there is no such slot"""
    pod: Pod | None = None
    """its newest version"""
    unit: Unit | InputError | None = None
    """the pod as a unit of its own; an error if its request became invalid; None if it need not wait"""

    @property
    def is_gated(self) -> bool:
        """Whether the pod still has its gate, as far as the watch has shown."""
        return self.state in GATED

    @property
    def obstacle(self) -> str | None:
        """Why the pod is not in the queue order whatever its gang does; None if it may be."""
        if isinstance(self.unit, InputError):
            return str(self.unit)
        others = [] if self.pod is None else gates_of_others(self.pod.spec.scheduling_gates)
        return (
            f"it joins the queue when its other scheduling gates are removed: {', '.join(others)}" if others else None
        )

    @property
    def is_empty(self) -> bool:
        """Whether the entry can be dropped."""
        return self.state is OPEN and self.unit is None and self.slot_until is None


@dataclass(frozen=True, slots=True)
class PodSeen:
    """The watch showed the pod."""

    gated: bool
    waiting: bool
    """whether it still waits to be placed"""


@dataclass(frozen=True, slots=True)
class SlotHeld:
    """A slot is held for the pod."""

    alone: bool
    """whether it is for this pod alone; otherwise it belongs to the grant of its gang"""


@dataclass(frozen=True, slots=True)
class SentToPreempt:
    """The pod is to be released without a slot, because victims could be evicted for it."""


@dataclass(frozen=True, slots=True)
class ReleaseFailed:
    """The gate could not be removed."""


@dataclass(frozen=True, slots=True)
class SlotSuspect:
    """kube-scheduler finds no node for the pod, for a reason that we do not know."""

    until: float
    """when the slot is taken back"""


@dataclass(frozen=True, slots=True)
class SlotEnded:
    """The pod is bound, or its slot was lost or taken back."""


EntryEvent = PodSeen | SlotHeld | SentToPreempt | ReleaseFailed | SlotSuspect | SlotEnded


def step(entry: Entry, event: EntryEvent) -> Entry:
    """The entry after an event; the same entry if the event does not concern its state."""
    match event:
        case PodSeen(gated, waiting):
            state = _after_watch(entry, gated=gated, waiting=waiting)
            return entry if state is entry.state else replace(entry, state=state)
        case SlotHeld(alone):
            match entry.state:
                case EntryState.QUEUED:
                    return replace(entry, state=RELEASING, slot_until=inf if alone else entry.slot_until)
                case EntryState.RELEASING_TO_PREEMPT:
                    return replace(entry, state=RELEASING)
                case EntryState.PREEMPTING:
                    return replace(entry, state=OPEN)
        case SentToPreempt():
            return replace(entry, state=RELEASING_TO_PREEMPT) if entry.state is QUEUED else entry
        case ReleaseFailed():
            match entry.state:
                case EntryState.RELEASING | EntryState.RELEASING_TO_PREEMPT:
                    return replace(entry, state=QUEUED, slot_until=None)
                case EntryState.PREEMPTING:
                    return replace(entry, state=OPEN)
        case SlotSuspect(until):
            return entry if entry.slot_until is None else replace(entry, slot_until=min(entry.slot_until, until))
        case SlotEnded():
            return replace(entry, state=OPEN if entry.state is RELEASED else entry.state, slot_until=None)
    return entry


def _after_watch(entry: Entry, *, gated: bool, waiting: bool) -> EntryState:
    match entry.state, gated:
        case EntryState.RELEASING_TO_PREEMPT, True:
            return RELEASING_TO_PREEMPT if waiting else RELEASING  # it is leaving: nothing is evicted for it
        case EntryState.RELEASING, True:
            return RELEASING
        case _, True:
            return QUEUED
        case EntryState.RELEASING | EntryState.RELEASED, False:
            return OPEN if entry.slot_until is None else RELEASED
        case EntryState.RELEASING_TO_PREEMPT | EntryState.PREEMPTING, False:
            return PREEMPTING if waiting else OPEN
    return OPEN
