# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An array of jobs as the API shows it: one row with the number of its elements in each state."""

import msgspec

from cotenant.errors import CotenantError
from cotenant.local.journal import Journal
from cotenant.local.journal_rows import ArrayRecord, ElementCount
from cotenant.local.lifecycle import ACTIVE, JobState
from cotenant.wire.arrays import ELEMENT_ID, item_of
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView, shown_name
from cotenant.wire.text import counted


def request_of_array(record: ArrayRecord) -> JobRequest | None:
    """What was requested; None: this version cannot read it."""
    try:
        return msgspec.json.decode(record.request, type=JobRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, CotenantError):
        return None


def find_element(journal: Journal, name: str) -> str | None:
    """The id of the job that `a-000001_3` names by its index; None: there is none."""
    match = ELEMENT_ID.fullmatch(name)
    array = None if match is None else journal.find_array(match[1])
    request = None if array is None else request_of_array(array)
    if match is None or array is None or request is None or request.array is None:
        return None
    item = item_of(request.array, int(match[2]))
    found = None if item is None else journal.element(array.number, item)
    return None if found is None else found.id


def array_view(journal: Journal, record: ArrayRecord, *, with_request: bool) -> JobView:
    """An array as one row; its state is `queued` or `running` until all elements have ended."""
    counts, request = journal.counts_of_elements(record.number), request_of_array(record)
    first = journal.element(record.number, 0)
    names = {one: words_of(one) for one in counts}
    total, done = sum(one.number for one in counts), sum(one.number for one in counts if one.done)
    ended = not any(one.state in (JobState.QUEUED, *ACTIVE) for one in counts)
    cancelled = ended and all(one.state is JobState.CANCELLED for one in counts)
    state = JobState.QUEUED if not ended else JobState.CANCELLED if cancelled else JobState.FINISHED
    if any(one.state in ACTIVE for one in counts):
        state = JobState.RUNNING
    failed = f"{total - done} of {counted(total, 'element')} did not end well" if ended and done < total else None
    outcome = None if not ended else "cancelled" if cancelled else "exited"
    return JobView(
        id=record.id,
        name="unknown" if request is None else shown_name(request.name, request.command[0]),
        named=request is not None and request.name is not None,
        user="" if first is None else first.user,
        uid=None if first is None else first.uid,
        state=state,
        submitted=record.submitted,
        started=min((one.started for one in counts if one.started is not None), default=None),
        ended=max((one.ended or 0.0 for one in counts), default=None) if ended else None,
        outcome=outcome,
        code=int(done < total) if outcome == "exited" else None,
        error=None if cancelled else failed,
        elements={
            word: sum(one.number for one in counts if names[one] == word)
            for word in ("running", "starting", "queued", "done", "failed", "cancelled", "interrupted", "lost")
            if word in names.values()
        },
        request=None if request is None or not with_request else msgspec.structs.replace(request, env={}),
    )


def words_of(one: ElementCount) -> str:
    """The state of elements, in the words of a table."""
    if one.state is not JobState.FINISHED:
        return one.state
    return "done" if one.done else "failed"
