# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How the end of a run is written down: finished, cancelled, lost, or back into the queue."""

import time
from pathlib import Path

import msgspec

from cotenant.local import attempts
from cotenant.local.events import Events
from cotenant.local.journal import STATES, JobState, Journal, JournalJob
from cotenant.local.supervisor import Exit
from cotenant.local.views import gpus_of
from cotenant.wire.local import JobRequest

ACTIVE = ("starting", "running")
SENT_AWAY = {"evict": "evicted", "revert": "reverted"}
"""why it was told to end -> what is said of it"""
ENDED = tuple(state for state in STATES if state not in ("queued", *ACTIVE))


def book_end(journal: Journal, events: Events, row: JournalJob, folder: Path, status: attempts.Status) -> bool:
    """Writes down how a run ended; whether its job is queued again."""
    ending = status.exit
    if ending is None:
        _book_disappearance(journal, events, row, folder, status)
        return False
    if ending.outcome == "cancelled" and row.stop in SENT_AWAY:
        kind = SENT_AWAY[row.stop]
        text = f"{kind} from GPU {' '.join(map(str, gpus_of(row)))}"
        queue_again(journal, row, ACTIVE, reason=text, forgiven=row.forgiven + 1)
        events.tell(kind, row.id, text)
        return True
    if _failed(ending) and row.attempts - row.forgiven <= request_of(row).retries:
        how = ending.code if ending.code is not None else ending.signal
        text = f"attempt {row.attempts} failed ({ending.outcome} {how}), trying again"
        queue_again(journal, row, ACTIVE, reason=text, forgiven=row.forgiven)
        events.tell("retrying", row.id, text)
        return True
    _book_exit(journal, events, row, ending)
    return False


def queue_again(journal: Journal, row: JournalJob, states: tuple[str, ...], *, reason: str, forgiven: int) -> None:
    """Back to what it was when it was submitted, with its attempts and its number."""
    journal.transition(
        row.id,
        states,
        "queued",
        slot=None,
        started=None,
        ended=None,
        outcome=None,
        code=None,
        signal=None,
        error=None,
        stop=None,
        reason=reason,
        forgiven=forgiven,
    )


def request_of(row: JournalJob) -> JobRequest:
    return msgspec.json.decode(row.request, type=JobRequest)


def _book_disappearance(
    journal: Journal, events: Events, row: JournalJob, folder: Path, status: attempts.Status
) -> None:
    """A run without a record of its end: nobody knows how far it came, so it is not run again unasked."""
    attempts.kill_leftovers(folder)
    rebooted = status.state == "interrupted"
    state: JobState = "interrupted" if rebooted else "lost"
    text = "the machine was restarted" if rebooted else "its supervisor was killed"
    journal.transition(row.id, ACTIVE, state, ended=time.time(), outcome=state, error=text)
    events.tell(state, row.id, text)


def _book_exit(journal: Journal, events: Events, row: JournalJob, ending: Exit) -> None:
    states: dict[str, JobState] = {"cancelled": "cancelled", "interrupted": "interrupted"}
    state = states.get(ending.outcome, "finished")
    journal.transition(
        row.id,
        ACTIVE,
        state,
        started=ending.started,
        ended=ending.ended,
        outcome=ending.outcome,
        code=ending.code,
        signal=ending.signal,
        error=ending.error,
    )
    events.tell(state, row.id, f"{ending.outcome} {ending.code if ending.code is not None else ''}".strip())


def _failed(ending: Exit) -> bool:
    """Whether its retries are for this: not for what somebody wanted, nor for a machine that went down."""
    return ending.code != 0 if ending.outcome == "exited" else ending.outcome not in ("cancelled", "interrupted")
