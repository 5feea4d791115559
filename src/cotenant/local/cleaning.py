# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Removes ended jobs with all that is stored of them: their folders, events and rows in the journal.

The folders go first, and the journal follows when they are durably gone: after a kill or a power failure in between, a
job is listed without its files, and the next removal takes it. An array goes as a whole, and a job stays as long as
another one that has not ended was submitted to run after it.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from cotenant.local.dependencies import needed_in
from cotenant.local.journal import Journal
from cotenant.local.journal_rows import EndedJobs
from cotenant.local.pruning import Pruner
from cotenant.wire.cleaning import Cleaned, CleanedJob, KeptJob

BATCH = 500
"""jobs and arrays that leave the journal in one write"""
LONGEST_TURN_S = 0.02
"""for which the event loop waits while folders are moved"""
STILL_USED = "a process of it still runs, or its files cannot be moved"
CHANGED = "it was run again meanwhile"


class Selection(NamedTuple):
    """Which ended jobs are removed."""

    ids: tuple[str, ...] | None = None
    """of jobs and arrays; None: all that fulfil the conditions"""
    states: tuple[str, ...] = ()
    """as in `decode_states`; empty: any"""
    older_than_s: float | None = None
    uid: int | None = None
    """of their owner"""
    user: str | None = None
    """name of their owner, who may have been removed from this machine"""
    by: str | None = None
    """a user who removes own jobs: jobs of other users cannot prevent that, which were submitted to run after them;
    None: an administrator"""


class Cleaner:
    """Removes ended jobs; called from one event loop."""

    def __init__(self, journal: Journal, pruner: Pruner) -> None:
        self._journal, self._pruner = journal, pruner

    async def clean(self, selection: Selection, *, dry_run: bool) -> Cleaned:
        """Removes what is selected; with `dry_run`, says what that is."""
        removed, kept = list[CleanedJob](), list[KeptJob]()
        async with self._pruner.turn():
            chosen = self._selected(selection)
            for start in range(0, len(chosen), BATCH):
                batch = chosen[start : start + BATCH]
                sizes = await self._pruner.sizes(job for one in batch for job in one.jobs)
                free, needed = self._split(batch, selection.by)
                kept += needed
                if not dry_run:
                    moved = [one async for one in self._moved(free)]
                    kept += [KeptJob(id=one.id, why=STILL_USED) for one in free if one not in moved]
                    await self._pruner.sync()
                    free, changed = self._remove(moved, selection.by)
                    kept += changed
                removed += [_cleaned(one, sum(sizes.get(job, 0) for job in one.jobs)) for one in free]
            if not dry_run:
                await self._pruner.remove_moved()
        return Cleaned(jobs=tuple(removed), kept=tuple(kept), dry_run=dry_run)

    def _selected(self, selection: Selection) -> list[EndedJobs]:
        oldest = math.inf if selection.older_than_s is None else time.time() - selection.older_than_s
        states, ids, uid, user = selection.states, selection.ids, selection.uid, selection.user
        return self._journal.ended(states, before=oldest, ids=ids, uid=uid, user=user)

    def _split(self, chosen: Iterable[EndedJobs], by: str | None) -> tuple[list[EndedJobs], list[KeptJob]]:
        """What can be removed now, and what other jobs or notices still need."""
        waiting = needed_in(self._journal.requests_with_dependencies(by))
        reported = self._journal.jobs_with_notices()
        free, kept = list[EndedJobs](), list[KeptJob]()
        for one in chosen:
            if not waiting.isdisjoint((one.id, *one.jobs)):
                kept.append(KeptJob(id=one.id, why="a job that has not ended runs after it"))
            elif not reported.isdisjoint(one.jobs):
                kept.append(KeptJob(id=one.id, why="a notice about it has not been sent yet"))
            else:
                free.append(one)
        return free, kept

    async def _moved(self, chosen: Iterable[EndedJobs]) -> AsyncIterator[EndedJobs]:
        """Those all of whose folders are out of the way; others may be handled in between."""
        began = time.monotonic()
        for one in chosen:
            whole = True
            for job in one.jobs:
                whole = self._pruner.move(job) and whole
                if time.monotonic() - began > LONGEST_TURN_S:
                    await asyncio.sleep(0)
                    began = time.monotonic()
            if whole:
                yield one

    def _remove(self, moved: Sequence[EndedJobs], by: str | None) -> tuple[list[EndedJobs], list[KeptJob]]:
        """Removes from the journal what is still as it was chosen; nothing else happens between check and write."""
        same = set(self._journal.ended(ids=tuple(one.id for one in moved)))
        free, kept = self._split((one for one in moved if one in same), by)
        self._journal.remove(free)
        return free, [*kept, *(KeptJob(id=one.id, why=CHANGED) for one in moved if one not in same)]


def _cleaned(one: EndedJobs, size: int) -> CleanedJob:
    return CleanedJob(id=one.id, user=one.user, jobs=len(one.jobs), ended=one.ended, bytes=size)
