# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses the folders of ended jobs that are removed: those that are too old, then the oldest beyond a total size."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cotenant.wire.local import PrunedJob, PruneRequest


class EndedJob(NamedTuple):
    """A job that has ended, as far as pruning needs to know it."""

    id: str
    ended: float


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
