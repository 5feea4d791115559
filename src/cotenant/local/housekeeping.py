# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The files of ended jobs: removed every hour, or at the request of a user."""

import asyncio

from cotenant.errors import CotenantError
from cotenant.local.cleaning import Cleaner, Selection
from cotenant.local.events import log_error
from cotenant.local.lifecycle import ENDED
from cotenant.local.parts import Parts
from cotenant.local.pruning import EndedJob, Pruner
from cotenant.local.run_files import locked
from cotenant.wire.cleaning import Cleaned
from cotenant.wire.pruning import Pruned, PruneRequest
from cotenant.wire.text import counted

PRUNE_EVERY_S = 3600.0


class Housekeeping:
    """Removes the files of ended jobs, or the jobs as a whole."""

    def __init__(self, parts: Parts) -> None:
        self._journal, self._events, self._runs = parts.journal, parts.events, parts.runs
        self._keep, self._stopping = parts.settings.keep, parts.stopping
        self._pruner = Pruner(
            parts.resources.jobs,
            ended=lambda: [EndedJob(record.id, record.ended or 0.0) for record in self._journal.jobs(ENDED, -1, None)],
            can_be_pruned=self._can_be_pruned,
            stopping=self._stopping.is_set,
        )
        self._cleaner = Cleaner(self._journal, self._pruner)

    async def prune(self, request: PruneRequest) -> Pruned:
        """Removes the folders of ended jobs that are too old or use too much space; never those of other jobs."""
        done = await self._pruner.prune(request)
        if done.jobs and not done.dry_run:
            self._events.record("pruned", None, f"removed the files of {counted(len(done.jobs), 'job')}")
        return done

    async def clean(self, selection: Selection, *, dry_run: bool) -> Cleaned:
        """Removes ended jobs with their files and events; never other jobs."""
        done = await self._cleaner.clean(selection, dry_run=dry_run)
        if done.jobs and not dry_run:
            self._events.record("cleaned", None, f"{counted(sum(one.jobs for one in done.jobs), 'job')} removed")
        return done

    def _can_be_pruned(self, job: str) -> bool:
        """Whether a job has ended, no process of it is left, and no notice about it is to be sent."""
        record = self._journal.job(job)
        is_free = not locked(str(self._runs.folder(record.id, record.attempts))) and not self._journal.has_notices(job)
        return record.state in ENDED and is_free

    async def prune_regularly(self) -> None:
        """Removes folders by the settings of the daemon, if there are any, and what was left to remove."""
        keep = self._keep
        await self._pruner.remove_leftovers()
        while keep.older_than_s is not None or keep.keep_bytes is not None:
            try:
                await self.prune(keep)
            except (CotenantError, OSError) as error:
                log_error(f"old job folders cannot be removed: {error}")
            await asyncio.sleep(PRUNE_EVERY_S)
        await self._stopping.wait()
