# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses the folders of ended jobs that are too old, then the oldest beyond a total size, and removes them."""

import asyncio
import errno
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from cotenant.errors import CotenantError
from cotenant.local.events import log_error
from cotenant.wire.pruning import Pruned, PrunedJob, PruneRequest

REMOVED = ".removed"
"""the folder, among those of the jobs, with folders that are being removed"""
FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""flags that open a folder, but no link to one"""


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
        async with self.turn():
            sizes = await asyncio.to_thread(folder_sizes, self._folder, self._stopping)
            if self._stopping():  # then the sizes are incomplete
                raise CotenantError("the daemon stops, so nothing was removed; prune again after its next start")
            chosen = choose(self._ended(), sizes, request, time.time())
            if not request.dry_run:
                moved = [(job, name) for job in chosen if (name := self._move(job.id)) is not None]
                left = await asyncio.to_thread(self._remove_moved)
                chosen = [job for job, name in moved if name not in left]
        kept = sum(sizes.values()) - sum(job.bytes for job in chosen)
        return Pruned(jobs=tuple(chosen), kept_bytes=kept, dry_run=request.dry_run)

    async def remove_leftovers(self) -> None:
        """Removes what the last daemon had begun to remove."""
        async with self.turn():
            await self.remove_moved()

    # For the removal of whole jobs, whose rows in the journal go when their folders are durably away.

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Nothing else is removed meanwhile."""
        async with self._one_at_a_time:
            yield

    async def sizes(self, jobs: Iterable[str]) -> dict[str, int]:
        """The bytes on disk of each of these jobs that has a folder."""
        folders = {job: self._folder / job for job in jobs}

        def measure() -> dict[str, int]:
            return {job: _size(folder, self._stopping) for job, folder in folders.items() if folder.is_dir()}

        return await asyncio.to_thread(measure)

    def move(self, job: str) -> bool:
        """Moves the folder of a job to those that are removed; False: it is still there."""
        return not os.path.lexists(self._folder / job) or self._move(job) is not None

    async def sync(self) -> None:
        """Waits until moved folders are where they are on the disk, too."""
        await asyncio.to_thread(_sync, self._folder, self._removed)

    async def remove_moved(self) -> None:
        """Removes all moved folders."""
        await asyncio.to_thread(self._remove_moved)

    def _move(self, job: str) -> str | None:
        """Moves the folder of a job to those that are removed, and returns its new name; None if the job runs again, if
        a process of it still does, or if the folder cannot be moved."""
        name = f"{job}.{secrets.token_hex(4)}"  # a folder of an earlier attempt may still be there
        try:
            self._removed.mkdir(mode=0o700, exist_ok=True)
            if not self._can_be_pruned(job):
                return None
            _permit(self._folder / job)
            os.rename(self._folder / job, self._removed / name)
        except OSError as error:
            log_error(f"the folder of {job} cannot be removed: {error}")
            return None
        return name

    def _remove_moved(self) -> set[str]:
        """Removes all moved folders; the names of those that are left. What cannot be removed is reported."""
        left = set()
        try:
            names = os.listdir(self._removed)
        except FileNotFoundError:
            names = []
        except OSError as error:
            log_error(f"what was left to remove cannot be listed: {error}")
            names = []
        for name in names:
            try:
                if not remove_folder(self._removed / name, self._stopping):
                    left.add(name)
            except OSError as error:
                log_error(f"{self._removed / name} cannot be removed: {error}")
                left.add(name)
        return left


def remove_folder(folder: Path, stopping: Callable[[], bool]) -> bool:
    """Removes a folder with all it contains, whatever its depth; False: it was stopped before the end.

    Folders in it are moved to its top before they are emptied, so that neither a recursion nor a long path is needed.
    """
    unique, moved = secrets.token_hex(8), 0
    _permit(folder)
    top = os.open(folder, FOLDER | os.O_RDONLY)
    try:
        names = os.listdir(top)
        while names:
            if stopping():
                return False
            name = names.pop()
            if _is_removed(name, top):
                continue
            inner = os.open(name, FOLDER | os.O_RDONLY, dir_fd=top)
            try:
                for one in os.listdir(inner):
                    if stopping():
                        return False
                    if not _is_removed(one, inner):
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


def _is_removed(name: str, parent: int) -> bool:
    """Removes a file or an empty folder; False: it is a folder with content, which can now be changed."""
    try:
        os.unlink(name, dir_fd=parent)
        return True
    except IsADirectoryError:
        pass
    try:
        os.rmdir(name, dir_fd=parent)
        return True
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
    _permit(name, parent)
    return False


def _permit(name: str | Path, parent: int | None = None) -> None:
    """Allows its owner to list, change and move a folder, which its mode may forbid; root needs no permission."""
    folder = os.open(name, FOLDER | os.O_PATH, dir_fd=parent)  # needs no permission of the folder itself
    try:
        if os.fstat(folder).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{folder}", stat.S_IRWXU)  # fchmod refuses a descriptor of this kind
    finally:
        os.close(folder)


def _sync(*folders: Path) -> None:
    for folder in folders:
        with suppress(FileNotFoundError):
            opened = os.open(folder, FOLDER | os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def choose(
    jobs: Iterable[EndedJob], sizes: Mapping[str, int], request: PruneRequest, now: float
) -> Sequence[PrunedJob]:
    """The jobs whose folders go, the oldest end first; `sizes` has the bytes of each folder that exists."""
    oldest_first = sorted((job for job in jobs if job.id in sizes), key=lambda job: (job.ended, job.id))
    left = sum(size for name, size in sizes.items() if name != REMOVED)  # those are being removed already
    chosen = []
    for job in oldest_first:
        too_old = request.older_than_s is not None and now - job.ended >= request.older_than_s
        too_much = request.keep_bytes is not None and left > request.keep_bytes
        if too_old or too_much:
            chosen.append(PrunedJob(id=job.id, ended=job.ended, bytes=sizes[job.id]))
            left -= sizes[job.id]
    return chosen


def folder_sizes(folder: Path, stopping: Callable[[], bool]) -> dict[str, int]:
    """The bytes on disk of each folder in a folder, by its name; too few if `stopping` becomes true meanwhile."""
    try:
        found = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return {}
    return {entry.name: _size(Path(entry.path), stopping) for entry in found}


def _size(folder: Path, stopping: Callable[[], bool]) -> int:
    total, folders = 0, [str(folder)]
    while folders:  # not recursive: a job can nest folders as deep as it likes
        place = folders.pop()
        try:
            total += 512 * os.lstat(place).st_blocks
            with os.scandir(place) as entries:
                for entry in entries:
                    if stopping():
                        return total
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += 512 * entry.stat(follow_symlinks=False).st_blocks
        except OSError:
            continue  # it was removed or renamed meanwhile
    return total
