# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the journal stores, as values, and the conditions of its queries."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from cotenant.local.lifecycle import STATES, JobRecord, JobState
from cotenant.wire.arrays import ARRAY_ID


class JournalEvent(NamedTuple):
    """An event; ids increase."""

    id: int
    at: float
    kind: str
    job: str | None
    text: str


class ArrayRecord(NamedTuple):
    """An array of jobs; its elements have a state each."""

    number: int
    submitted: float
    request: bytes

    @property
    def id(self) -> str:
        return array_id(self.number)


class EndedJobs(NamedTuple):
    """A job that has ended, or an array all of whose elements have."""

    id: str
    jobs: tuple[str, ...]
    """itself, or the elements"""
    user: str
    ended: float
    """the end of the last one"""


class ElementCount(NamedTuple):
    """The elements of an array in one state; those that are finished apart by whether they exited with code 0."""

    state: JobState
    done: bool
    number: int
    started: float | None
    ended: float | None


class StoredNotice(NamedTuple):
    """A notice that is to be sent to the owner of a job."""

    number: int
    job: str
    uid: int
    content: bytes


def record_of(row: tuple[Any, ...]) -> JobRecord | None:
    """A row as a record; None: it is damaged."""
    try:
        # A text would be converted to bytes, from base64.
        return msgspec.convert(row, JobRecord) if isinstance(row[-1], bytes) else None
    except msgspec.ValidationError:
        return None


def id_of(number: int) -> str:
    return f"j-{number:06d}"


def array_id(number: int) -> str:
    return f"a-{number:06d}"


def number_of(job: str) -> int:
    """The number in a job id; 0, which no job has, for any other text."""
    digits = job[2:] if job.startswith("j-") else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else 0


def array_number(name: str) -> int:
    """The number in the id of an array; 0, which no array has, for any other text."""
    return int(name[2:]) if ARRAY_ID.fullmatch(name) else 0


def name_in(request: bytes) -> str | None:
    """The name in a request, by which the job can be found."""
    content = json.loads(request)
    name = content.get("name") if isinstance(content, dict) else None
    return name if isinstance(name, str) else None


LISTED = "(SELECT value FROM json_each(?))"
"""the numbers in a parameter, which are more than a query may have parameters"""

_ENDINGS = {
    "done": "outcome = 'exited' AND code = 0",
    "failed": "outcome = 'exited' AND code <> 0",
    "signal": "outcome = 'signalled'",
}
"""which finished jobs a word means; any other word is an outcome"""


def in_states(words: Sequence[str]) -> tuple[str, tuple[object, ...]]:
    """The condition that a job is in one of these states, or ended in one of these ways; and its values."""
    states = [word for word in words if word in STATES]
    clauses, values = [f"state IN ({marks(states)})"], list[object](states)
    for word in (word for word in words if word not in STATES):
        name, _, number = word.rstrip(")").replace("(", "").partition(" ")
        clause = f"state = 'finished' AND {_ENDINGS.get(name, 'outcome = ?')}"
        values += [] if name in _ENDINGS else [name]
        if number:
            clause += f" AND {'code' if name == 'failed' else 'signal'} = ?"
            values.append(int(number))
        clauses.append(f"({clause})")
    return " OR ".join(clauses), tuple(values)


def marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
