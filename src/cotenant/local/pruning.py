# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses the folders of ended jobs that are too old, then the oldest beyond a total size, and removes them."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cotenant.local.events import log_error
from cotenant.wire.local import Pruned, PrunedJob, PruneRequest

REMOVED = ".removed"
"""the folder, among those of the jobs, with folders that are being removed"""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class EndedJob(NamedTuple):
    """A job that has ended, as far as pruning needs to know it."""

    id: str
    ended: float


class Pruner:
    """Removes folders of jobs in a thread, because that takes long for many files; called from one event loop.

    A folder is first renamed, in the event loop: from then on the job has none, and may run again at once. What a
    stopped or killed daemon did not remove, the next one does.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ended: Callable[[], Iterable[EndedJob]],
        can_be_pruned: Callable[[str], bool],
        stopping: Callable[[], bool],
    ) -> None:
        self._folder, self._removed = folder, folder / REMOVED
        self._ended, self._can_be_pruned, self._stopping = ended, can_be_pruned, stopping
        self._one_at_a_time = asyncio.Lock()

    async def prune(self, request: PruneRequest) -> Pruned:
        """Removes the folders that the request selects; with `dry_run`, says which."""
        async with self._one_at_a_time:
            sizes = await asyncio.to_thread(folder_sizes, self._folder)
            chosen = choose(self._ended(), sizes, request, time.time())
            if not request.dry_run:
                moved = [job for job in chosen if self._move(job.id)]
                left = await asyncio.to_thread(self._remove_moved)
                chosen = [job for job in moved if job.id not in left]
        kept = sum(sizes.values()) - sum(job.bytes for job in chosen)
        return Pruned(jobs=tuple(chosen), kept_bytes=kept, dry_run=request.dry_run)

    async def remove_leftovers(self) -> None:
        """Removes what the last daemon had begun to remove."""
        async with self._one_at_a_time:
            await asyncio.to_thread(self._remove_moved)

    def _move(self, job: str) -> bool:
        """Whether the folder of a job was moved to those that are removed: not if it runs again, or a process of it
        still does."""
        try:
            self._removed.mkdir(mode=0o700, exist_ok=True)
            if not self._can_be_pruned(job):
                return False
            os.rename(self._folder / job, self._removed / job)
        except OSError as error:
            log_error(f"the folder of {job} cannot be removed: {error}")
            return False
        return True

    def _remove_moved(self) -> set[str]:
        """Removes all moved folders; the names of those that are left."""
        left = set()
        for name in _names(self._removed):
            try:
                if not remove_folder(self._removed / name, self._stopping):
                    left.add(name)
            except OSError as error:
                log_error(f"the folder of {name} cannot be removed: {error}")
                left.add(name)
        return left


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def remove_folder(folder: Path, stopping: Callable[[], bool]) -> bool:
    """Removes a folder with all it contains, whatever its depth; False: it was stopped before the end.

    Folders in it are moved to its top before they are emptied, so that neither a recursion nor a long path is needed.
    """
    unique, moved = secrets.token_hex(8), 0
    top = os.open(folder, FOLDER)
    try:
        names = os.listdir(top)
        while names:
            if stopping():
                return False
            name = names.pop()
            if _unlinked(name, top):
                continue
            inner = os.open(name, FOLDER, dir_fd=top)
            try:
                for one in os.listdir(inner):
                    if not _unlinked(one, inner):
                        moved += 1
                        names.append(f"{unique}.{moved}")
                        os.rename(one, names[-1], src_dir_fd=inner, dst_dir_fd=top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)
    return True


def _unlinked(name: str, folder: int) -> bool:
    """Removes a file; False: it is a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True


def choose(
    jobs: Iterable[EndedJob], sizes: Mapping[str, int], request: PruneRequest, now: float
) -> Sequence[PrunedJob]:
    """The jobs whose folders go, the oldest end first; `sizes` has the bytes of each folder that exists."""
    oldest_first = sorted((job for job in jobs if job.id in sizes), key=lambda job: (job.ended, job.id))
    left = sum(sizes.values())
    chosen = []
    for job in oldest_first:
        too_old = request.older_than_s is not None and now - job.ended >= request.older_than_s
        too_much = request.keep_bytes is not None and left > request.keep_bytes
        if too_old or too_much:
            chosen.append(PrunedJob(id=job.id, ended=job.ended, bytes=sizes[job.id]))
            left -= sizes[job.id]
    return chosen


def folder_sizes(folder: Path) -> dict[str, int]:
    """The bytes on disk of each folder in a folder, by its name."""
    try:
        found = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return {}
    return {entry.name: _size(Path(entry.path)) for entry in found}


def _size(folder: Path) -> int:
    total, folders = 0, [str(folder)]
    while folders:  # not recursive: a job can nest folders as deep as it likes
        place = folders.pop()
        try:
            total += 512 * os.lstat(place).st_blocks
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += 512 * entry.stat(follow_symlinks=False).st_blocks
        except OSError:
            continue  # it was removed or renamed meanwhile
    return total
