# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How many elements of an array may hold GPUs at a time: the others stay outside the queue until one has ended.

The bound is a part of the stored request of the array, and the states of its elements are in the journal, so nothing
here is stored.
"""

from collections.abc import Iterator

from cotenant.local.lifecycle import JobRecord, array_of
from cotenant.wire.text import counted


class ArrayBounds:
    """The elements of bounded arrays that are in the queue or run, and those that wait for one of them to end."""

    def __init__(self) -> None:
        self._array: dict[str, int] = {}
        self._most: dict[int, int] = {}
        self._inside: dict[int, set[str]] = {}
        self._outside: dict[int, dict[str, None]] = {}

    def __contains__(self, job: str) -> bool:
        """Whether an element waits outside the queue."""
        array = self._array.get(job)
        return array is not None and job in self._outside[array]

    def reason(self, job: str) -> str | None:
        """Why an element does not start; None: its array does not keep it from that."""
        if job not in self:
            return None
        return f"only {counted(self._most[self._array[job]], 'element')} of its array may run at a time"

    def add(self, record: JobRecord) -> bool:
        """Whether a queued element has to wait, because enough others are in the queue or run."""
        if not self._track(record):
            return False
        array = self._array[record.id]
        inside = self._inside[array]
        if record.id not in inside and len(inside) >= self._most[array]:
            self._outside[array][record.id] = None
            return True
        inside.add(record.id)
        self._outside[array].pop(record.id, None)
        return False

    def runs(self, record: JobRecord) -> None:
        """An element runs since before this daemon was started."""
        if self._track(record):
            self._inside[self._array[record.id]].add(record.id)

    def leave(self, job: str) -> None:
        """The element has ended, or is held: another one may come."""
        array = self._array.pop(job, None)
        if array is None:
            return
        self._inside[array].discard(job)
        self._outside[array].pop(job, None)
        if not self._inside[array] and not self._outside[array]:
            del self._inside[array], self._outside[array], self._most[array]

    def ready(self) -> Iterator[str]:
        """The elements that may be queued now, the first ones first; the caller adds each again."""
        for array, outside in list(self._outside.items()):
            while outside and len(self._inside[array]) < self._most[array]:
                job = next(iter(outside))
                yield job
                outside.pop(job, None)

    def _track(self, record: JobRecord) -> bool:
        """Whether the job belongs to a bounded array."""
        spec = array_of(record)
        if spec is None or spec.at_most is None or record.array is None:
            return False
        self._array[record.id] = record.array
        self._most[record.array] = spec.at_most
        self._inside.setdefault(record.array, set())
        self._outside.setdefault(record.array, {})
        return True
