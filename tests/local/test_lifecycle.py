# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The states of a job: which event leads where, that no other change is possible, and that the docs draw the same."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from cotenant.core.model import Placement, Slot
from cotenant.local.journal import Journal
from cotenant.local.lifecycle import (
    ENDED,
    STATES,
    TRANSITIONS,
    Disappeared,
    Exited,
    JobRecord,
    JobState,
    LifecycleEvent,
    MoreMemory,
    Placed,
    RetryRequested,
    Started,
    Stop,
    StopRequested,
    WrongStateError,
    step,
)
from cotenant.local.run_files import Exit, Outcome
from cotenant.wire.job_demands import job_of
from cotenant.wire.job_requests import JobRequest

REQUEST = JobRequest(command=("train",), cwd="/", retries=1)
PLACED = Placed(Placement(job_of("j-000001", REQUEST, 0.0), Slot("local", (0,))), "binpack: fits")
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "job-states.md"
NOW = 9.0


def record(state: JobState, *, attempts: int = 1, forgiven: int = 0, stop: Stop | None = None) -> JobRecord:
    return JobRecord(
        id="j-000001", state=state, submitted=1.0, started=2.0, ended=None, slot="[0]", outcome=None, code=None,
        signal=None, error=None, attempts=attempts, reason=None, forgiven=forgiven, stop=stop,
        uid=1000, gid=1000, user="ada", group="staff",
        array=None, item=None, request=msgspec.json.encode(REQUEST),
    )  # fmt: skip


def ended(outcome: str = "exited", code: int | None = 0) -> Exited:
    return Exited(Exit(outcome, code, None, None, 2.0, 3.0, 100))  # type: ignore[arg-type]


OUT_OF_MEMORY = Exited(ended("out-of-memory", None).exit, MoreMemory("2GiB", "2GiB, because it ran out of 1 GiB"))

EVENTS = some.one_of(
    some.just(PLACED),
    some.just(Started()),
    some.just(RetryRequested()),
    some.sampled_from(Stop).map(StopRequested),
    some.booleans().map(Disappeared),
    some.tuples(
        some.sampled_from(get_args(Outcome)),
        some.sampled_from((None, 0, 1)),
    ).map(lambda pair: ended(*pair)),
)


@pytest.mark.parametrize(
    ("job", "event", "state", "kind"),
    [
        (record(JobState.QUEUED, attempts=0), PLACED, JobState.STARTING, "started"),
        (record(JobState.QUEUED), StopRequested(Stop.CANCEL), JobState.CANCELLED, "cancelled"),
        (record(JobState.STARTING), Started(), JobState.RUNNING, ""),
        (record(JobState.STARTING), StopRequested(Stop.EVICT), JobState.STARTING, "evicting"),
        (record(JobState.RUNNING), StopRequested(Stop.CANCEL), JobState.RUNNING, "cancelling"),
        (record(JobState.RUNNING), StopRequested(Stop.REVERT), JobState.RUNNING, "reverting"),
        (record(JobState.RUNNING), ended(), JobState.FINISHED, "finished"),
        (record(JobState.STARTING), ended(), JobState.FINISHED, "finished"),
        (record(JobState.RUNNING), ended(code=1), JobState.QUEUED, "retrying"),
        (record(JobState.RUNNING, attempts=2), ended(code=1), JobState.FINISHED, "finished"),
        (record(JobState.RUNNING, attempts=2, forgiven=1), ended(code=1), JobState.QUEUED, "retrying"),
        (record(JobState.RUNNING), ended("out-of-memory", None), JobState.QUEUED, "retrying"),
        (record(JobState.RUNNING), ended("time-limit", 1), JobState.FINISHED, "finished"),
        (record(JobState.RUNNING), ended("cancelled", None), JobState.CANCELLED, "cancelled"),
        (record(JobState.RUNNING, stop=Stop.CANCEL), ended(code=1), JobState.FINISHED, "finished"),
        (record(JobState.RUNNING, stop=Stop.CANCEL), OUT_OF_MEMORY, JobState.FINISHED, "finished"),
        (record(JobState.RUNNING), OUT_OF_MEMORY, JobState.QUEUED, "retrying"),
        (record(JobState.RUNNING, stop=Stop.EVICT), ended("cancelled", None), JobState.QUEUED, "evicted"),
        (record(JobState.RUNNING, stop=Stop.REVERT), ended("cancelled", None), JobState.QUEUED, "reverted"),
        (record(JobState.RUNNING, stop=Stop.EVICT), ended(), JobState.FINISHED, "finished"),
        (record(JobState.RUNNING), ended("interrupted", None), JobState.INTERRUPTED, "interrupted"),
        (record(JobState.RUNNING), Disappeared(rebooted=False), JobState.LOST, "lost"),
        (record(JobState.STARTING), Disappeared(rebooted=True), JobState.INTERRUPTED, "interrupted"),
        *((record(state), RetryRequested(), JobState.QUEUED, "retrying") for state in ENDED),
    ],
)
def test_an_event_leads_to_one_state(job: JobRecord, event: LifecycleEvent, state: JobState, kind: str) -> None:
    change = step(job, event, NOW)
    assert (change.state, change.kind) == (state, kind)


@given(
    state=some.sampled_from(STATES),
    event=EVENTS,
    attempts=some.integers(0, 3),
    forgiven=some.integers(0, 3),
    stop=some.none() | some.sampled_from(Stop),
)
def test_every_change_is_one_that_the_table_lists(
    state: JobState, event: LifecycleEvent, attempts: int, forgiven: int, stop: Stop | None
) -> None:
    job = record(state, attempts=attempts, forgiven=forgiven, stop=stop)
    try:
        change = step(job, event, NOW)
    except WrongStateError:
        return
    assert change.state in TRANSITIONS[state]
    if change.state is JobState.QUEUED:
        assert change.columns["slot"] is None
        assert change.columns["stop"] is None
    if change.state in ENDED:
        assert change.columns["ended"] is not None


def test_what_was_sent_away_keeps_its_retries_and_a_retry_gives_all_of_them_back() -> None:
    evicted = step(record(JobState.RUNNING, attempts=2, forgiven=1, stop=Stop.EVICT), ended("cancelled", None), NOW)
    assert evicted.columns["forgiven"] == 2
    retried = step(record(JobState.LOST, attempts=3), RetryRequested(), NOW)
    assert retried.columns["forgiven"] == 3


def test_an_event_that_cannot_happen_in_a_state_is_an_error_that_names_both() -> None:
    with pytest.raises(WrongStateError, match="j-000001 is finished; Started cannot happen"):
        step(record(JobState.FINISHED), Started(), NOW)


def test_the_journal_refuses_a_change_that_the_table_does_not_list(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        job = journal.submit(b"{}", 1.0)
        with pytest.raises(ValueError, match="no transition leads from queued to finished"):
            journal.transition(job, (JobState.QUEUED,), JobState.FINISHED)
        assert journal.job(job).state is JobState.QUEUED


def test_the_page_draws_exactly_these_transitions() -> None:
    diagram = PAGE.read_text().split("```")[1]
    drawn = set(re.findall(r"^    (\w+) --> (\w+)", diagram, re.MULTILINE))
    between = {(str(state), str(after)) for state in STATES for after in TRANSITIONS[state] if after is not state}
    assert drawn == between
