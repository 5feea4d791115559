# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The account of one pod: the state after each event, and what must hold for any events in any order."""

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.model import Slot
from cotenant.kube.codec.request import request_of
from cotenant.kube.scheduler.queue_entry import EntryState
from cotenant.kube.state.accounts import (
    INACTIVE,
    Account,
    AgentReport,
    Assume,
    BeginBinding,
    BeginResize,
    Binding,
    Bound,
    Event,
    Held,
    Hold,
    Lingering,
    NodeGone,
    PodEnded,
    PodGone,
    PodIdles,
    PodRecorded,
    PodUnreadable,
    PodUnrecorded,
    PodWaits,
    Release,
    Resizing,
    State,
    Unreadable,
    Waiting,
    step,
)
from cotenant.kube.state.allocation import planned_allocation
from tests.kube.worlds import machine, waiting

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "pod-states.md"
POD, NEWER = waiting("a"), waiting("a", annotations={"newer": "yes"})
SMALL, OTHER = (planned_allocation(POD, request_of(POD), Slot("n1", (gpu,)), machine("n1")) for gpu in (0, 1))
HELD, RESERVED = Held(SMALL, 30.0, False, POD), Held(SMALL, 30.0, True, POD)
BINDING, BOUND, ASSUMED = Binding(SMALL, POD), Bound(SMALL, SMALL), Bound(SMALL, None)
RESIZING = Resizing(OTHER, BOUND)
UNREADABLE, LINGERING = Unreadable("n1", "why"), Lingering("n1", "7", SMALL)

EVENTS: tuple[Event, ...] = (
    PodWaits(POD),
    PodIdles(),
    PodRecorded(SMALL),
    PodRecorded(OTHER),
    PodUnrecorded(),
    PodUnreadable("n1", "why"),
    PodEnded(),
    PodGone("7", False),
    PodGone("7", True),
    Hold(SMALL, 30.0, False),
    Hold(OTHER, 30.0, True),
    BeginBinding(SMALL),
    BeginResize(OTHER),
    Release(),
    Assume(),
    AgentReport("n1", "6", SMALL),
    AgentReport("n1", "8", None),
    AgentReport("", "", None),
    NodeGone("n1"),
)


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        (INACTIVE, PodWaits(POD), Waiting(POD)),
        (Waiting(POD), PodWaits(NEWER), Waiting(NEWER)),
        (Waiting(POD), PodIdles(), INACTIVE),
        (Waiting(POD), PodGone("7", False), INACTIVE),
        (Waiting(POD), Hold(SMALL, 30.0, False), HELD),
        (INACTIVE, Hold(SMALL, 30.0, False), Held(SMALL, 30.0, False, None)),
        (HELD, Hold(OTHER, 40.0, True), Held(OTHER, 40.0, True, POD)),
        (HELD, Release(), Waiting(POD)),
        (Held(SMALL, 30.0, False, None), Release(), INACTIVE),
        (HELD, PodIdles(), Held(SMALL, 30.0, False, None)),
        (HELD, PodGone("7", False), INACTIVE),
        (RESERVED, BeginBinding(SMALL), BINDING),
        (BINDING, Hold(OTHER, 40.0, False), BINDING),
        (BINDING, Assume(), ASSUMED),
        (BINDING, Release(), Waiting(POD)),
        (BINDING, PodRecorded(OTHER), Bound(OTHER, OTHER)),
        (BINDING, PodGone("7", False), Binding(SMALL, None, "7")),
        (Binding(SMALL, None, "7"), Assume(), LINGERING),
        (Binding(SMALL, None, "7"), Release(), INACTIVE),
        (ASSUMED, PodWaits(POD), ASSUMED),
        (ASSUMED, PodRecorded(SMALL), BOUND),
        (ASSUMED, PodUnrecorded(), INACTIVE),
        (BOUND, PodUnrecorded(), BOUND),
        (BOUND, Hold(OTHER, 30.0, False), BOUND),
        (BOUND, PodEnded(), INACTIVE),
        (BOUND, PodGone("7", True), INACTIVE),
        (BOUND, PodGone("7", False), LINGERING),
        (BOUND, PodUnreadable("n1", "why"), UNREADABLE),
        (BOUND, BeginResize(OTHER), RESIZING),
        (RESIZING, Release(), BOUND),
        (RESIZING, Assume(), Bound(OTHER, SMALL)),
        (RESIZING, PodRecorded(SMALL), RESIZING),
        (RESIZING, PodRecorded(OTHER), Bound(OTHER, OTHER)),
        (RESIZING, PodGone("7", False), Lingering("n1", "7", OTHER)),
        (Bound(OTHER, SMALL), PodRecorded(SMALL), Bound(OTHER, SMALL)),
        (UNREADABLE, PodRecorded(SMALL), BOUND),
        (UNREADABLE, PodGone("7", False), Lingering("n1", "7", None, "why")),
        (LINGERING, PodGone("9", True), LINGERING),
        (LINGERING, Hold(OTHER, 30.0, False), LINGERING),
        (LINGERING, AgentReport("n1", "6", None), LINGERING),
        (LINGERING, AgentReport("n1", "word", None), LINGERING),
        (LINGERING, AgentReport("n2", "9", None), LINGERING),
        (LINGERING, AgentReport("n1", "7", None), INACTIVE),
        (LINGERING, NodeGone("n1"), INACTIVE),
    ],
    ids=str,
)
def test_the_state_after_an_event(state: State, event: Event, after: State) -> None:
    assert step(Account(state), event).state == after


def test_a_pod_whose_process_its_agent_still_sees_is_an_orphan_until_it_ends() -> None:
    account = step(Account(LINGERING), AgentReport("n1", "8", SMALL))
    assert (account.is_orphan, account.allocation_on("n1"), account.nodes) == (True, SMALL, ["n1"])
    assert step(account, AgentReport("n1", "9", None)).is_empty
    assert step(account, NodeGone("n1")).is_empty


def test_an_agent_that_learns_of_a_deletion_first_changes_nothing_until_the_watch_does() -> None:
    account = step(Account(BOUND), AgentReport("n1", "8", OTHER))
    assert (account.state, account.allocation_on("n1")) == (BOUND, SMALL)


def test_an_event_that_does_not_concern_a_state_leaves_the_very_same_account() -> None:
    account = Account(BOUND)
    for event in (PodWaits(POD), PodIdles(), Release(), Assume(), Hold(OTHER, 1.0, False), NodeGone("n1")):
        assert step(account, event) is account


ENDS = (PodEnded, PodUnrecorded, AgentReport, NodeGone, Release, PodGone)


@given(events=st.lists(st.sampled_from(EVENTS), max_size=12))
def test_whatever_happens_a_pod_that_may_run_counts_or_closes_its_node(events: list[Event]) -> None:
    """Only the end of the pod, its agent, its node or the outcome of a write can free what a pod uses."""
    account = Account()
    for event in events:
        before, account = account, step(account, event)
        may_run = isinstance(before.state, Binding | Bound | Resizing | Unreadable | Lingering)
        counts = account.allocation_on("n1") is not None or account.closes is not None
        assert not may_run or counts or isinstance(event, ENDS), (before, event, account)
        if isinstance(event, PodGone) and may_run and not event.stopped:
            assert counts, (before, event, account)
        if isinstance(before.state, Binding):
            ended = not isinstance(account.state, Binding)
            assert not (ended and isinstance(event, Hold | PodWaits | PodIdles | PodGone | AgentReport)), event


@pytest.mark.parametrize("name", [*(one.__name__ for one in get_args(State)), *(one.name for one in EntryState)])
def test_every_state_is_drawn_in_the_docs(name: str) -> None:
    assert f"    {name} : {name} (" in PAGE.read_text()
