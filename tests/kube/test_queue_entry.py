# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The queue's entry of one pod: the state after each event."""

from math import inf

import pytest

from cotenant.kube.scheduler.queue_entry import (
    OPEN,
    PREEMPTING,
    QUEUED,
    RELEASED,
    RELEASING,
    RELEASING_TO_PREEMPT,
    Entry,
    EntryEvent,
    EntryState,
    PodSeen,
    ReleaseFailed,
    SentToPreempt,
    SlotEnded,
    SlotHeld,
    SlotSuspect,
    step,
)

GATED, OPENED, LEAVING = PodSeen(True, True), PodSeen(False, True), PodSeen(True, False)
BOUND = PodSeen(False, False)


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        (OPEN, GATED, QUEUED),
        (QUEUED, OPENED, OPEN),
        (QUEUED, SlotHeld(alone=True), RELEASING),
        (QUEUED, SentToPreempt(), RELEASING_TO_PREEMPT),
        (RELEASING, GATED, RELEASING),
        (RELEASING, SentToPreempt(), RELEASING),
        (RELEASING, ReleaseFailed(), QUEUED),
        (RELEASING, OPENED, OPEN),
        (RELEASED, ReleaseFailed(), RELEASED),
        (RELEASED, SlotEnded(), OPEN),
        (RELEASING, SlotEnded(), RELEASING),
        (RELEASING_TO_PREEMPT, GATED, RELEASING_TO_PREEMPT),
        (RELEASING_TO_PREEMPT, LEAVING, RELEASING),
        (RELEASING_TO_PREEMPT, OPENED, PREEMPTING),
        (RELEASING_TO_PREEMPT, ReleaseFailed(), QUEUED),
        (RELEASING_TO_PREEMPT, SlotHeld(alone=False), RELEASING),
        (PREEMPTING, OPENED, PREEMPTING),
        (PREEMPTING, BOUND, OPEN),
        (PREEMPTING, SlotHeld(alone=True), OPEN),
        (PREEMPTING, ReleaseFailed(), OPEN),
        (OPEN, SlotHeld(alone=False), OPEN),
    ],
    ids=str,
)
def test_the_state_after_an_event(state: EntryState, event: EntryEvent, after: EntryState) -> None:
    assert step(Entry(state), event).state is after


def test_a_slot_of_a_pod_alone_is_watched_until_it_ends() -> None:
    entry = step(step(Entry(QUEUED), SlotHeld(alone=True)), OPENED)
    assert (entry.state, entry.slot_until, entry.is_empty) == (RELEASED, inf, False)
    suspect = step(step(entry, SlotSuspect(9.0)), SlotSuspect(12.0))
    assert suspect.slot_until == 9.0, "the first report counts"
    assert step(suspect, SlotEnded()).is_empty


def test_a_slot_of_a_gang_is_not_watched_by_the_entry() -> None:
    entry = step(step(Entry(QUEUED), SlotHeld(alone=False)), OPENED)
    assert (entry.state, entry.slot_until) == (OPEN, None)
    assert step(entry, SlotSuspect(9.0)).slot_until is None
