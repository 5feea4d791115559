# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that files and folders which we trust can be changed by this user and root only.

Another user who owns a folder, or can write to it, can replace a file in it by a link to a file of ours, by a program
or by a library. So ownership is checked before anything in the folder is read or written, and links are not followed.
"""

import os
import stat
from pathlib import Path

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def problem_of_folder(folder: Path, *, in_volume: bool = False) -> str | None:
    """Why a folder is not safe to use, as the end of a sentence that begins with its path; None: it is safe.

    The folder may be reached through a link of this user or of root. It must belong to this user or root, and only its
    owner may write to it. No folder above it may let every user rename it, unless the folder is in a volume that no
    other user can reach.
    """
    problem = _problem(folder.lstat(), link=True)
    whole = folder.resolve()
    problem = problem or _problem(whole.stat())
    if problem is not None:
        return problem
    for above in () if in_volume else whole.parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"is in {above}, in which every user can rename it; run `chmod o-w {above}`"
    return None


def problem_of_file(file: int | Path) -> str | None:
    """The same for a file, by its descriptor or its path; a link to a file is not safe."""
    seen = os.fstat(file) if isinstance(file, int) else file.lstat()
    if not stat.S_ISREG(seen.st_mode):
        return "is not a regular file"
    if seen.st_nlink > 1:
        return "has a second name (a hard link), through which another file may be meant"
    return _problem(seen)


def _problem(seen: os.stat_result, link: bool = False) -> str | None:
    if seen.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (ID {seen.st_uid})"
    if not link and seen.st_mode & WRITABLE_BY_OTHERS:
        return "can be written to by other users; run `chmod go-w` on it"
    return None
