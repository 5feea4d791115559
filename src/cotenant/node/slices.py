# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The slices on this machine: one folder each, with the limits file and the usage region of its processes.

They are in a folder that does not survive a restart of the machine, since their processes do not either. A slice that a
command makes has a lock that its processes inherit, so that a slice whose command was killed can be told from one that
is in use. Processes that close what they inherit are found by their environment.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from cotenant.errors import CotenantError, InputError
from cotenant.node.environments import PROC, has_variable
from cotenant.node.limits import VARIABLE, Limits, limits_text, read_limits, write_read_only
from cotenant.node.ownership import problem_of_folder
from cotenant.node.region import Region, make_region, read_region

T = TypeVar("T")
LIMITS, REGION, PROCESSES, LOCK = "limits", "usage", "processes", "lock"


class SliceState(NamedTuple):
    """A slice at one moment."""

    name: str
    limits: Limits
    """no limits if the file cannot be read"""
    region: Region | None
    """None: the region cannot be read"""


def slices_folder() -> Path:
    """The folder of this user's slices, in $COTENANT_RUNTIME, /run (root), the user's own runtime folder, or /tmp."""
    named = os.environ.get("COTENANT_RUNTIME")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if named:
        base = Path(named)
    elif os.geteuid() == 0:
        base = Path("/run/cotenant")
    elif runtime and os.access(runtime, os.W_OK):
        base = Path(runtime) / "cotenant"
    else:
        base = Path(tempfile.gettempdir()) / f"cotenant-{os.geteuid()}"
    return _own(base.absolute()) / "slices"


def make_slice(root: Path, name: str, limits: Limits, *, for_anyone: bool = False, uid: int | None = None) -> Path:
    """Makes the folder of a slice with these limits and an empty region; replaces a slice of the same name.

    If root starts a command that changes to another user, that user is not known here. Then `for_anyone` lets every
    user who knows the region's path write to it: the name must be hard to guess, and the folder above cannot be listed.
    With `uid`, the region belongs to that user, who can change nothing else of the slice.
    """
    folder = root / name
    try:
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        root.chmod(0o711)
        folder.mkdir(exist_ok=True)
        uuids = [limit.uuid for limit in limits.gpus]
        make_region(folder / REGION, uuids, mode=0o666 if for_anyone else 0o600)
        if uid is not None:
            folder.chmod(0o711)
            (folder / REGION).chmod(0o660)  # root may read it by its group: it may lack CAP_DAC_OVERRIDE
            os.chown(folder / REGION, uid, os.getegid())
        write_read_only(folder / LIMITS, limits_text(limits))
    except OSError as error:
        remove_slice(folder)
        raise CotenantError(f"{folder}: a slice cannot be made there: {error.strerror}") from None
    return folder


def read_slices(root: Path) -> list[SliceState]:
    """All slices, ordered by name; without those that are being made or removed."""
    return [seen for folder in slice_folders(root) if (seen := read_slice(folder)) is not None]


def read_slice(folder: Path) -> SliceState | None:
    """One slice; None if it does not exist."""
    return read_files(folder.name, folder / LIMITS, folder / REGION)


def read_files(name: str, limits_file: Path, region_file: Path) -> SliceState | None:
    """A slice whose files are not in one folder; None if there are none."""
    limits, region = _read(read_limits, limits_file), _read(read_region, region_file)
    return None if limits is None and region is None else SliceState(name, limits or Limits(), region)


def _read(reader: Callable[[Path], T], path: Path) -> T | None:
    try:
        return reader(path)
    except (OSError, InputError):
        return None


def remove_slice(folder: Path) -> None:
    """Removes the folder of a slice; processes that still use it keep their last limits."""
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def hold_slice(folder: Path) -> Iterator[int]:
    """Locks a slice for this process and all that inherit the descriptor; removes it after the last of them."""
    fresh = folder / f"{LOCK}.new"
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.replace(
            fresh, folder / LOCK
        )  # the lock is taken before the file appears, so no process ever sees it unlocked
        yield descriptor
    finally:
        os.close(descriptor)
        remove_slice_if_unused(folder)


def remove_unused_slices(root: Path) -> None:
    """Removes the slices of commands that were killed."""
    for folder in slice_folders(root):
        remove_slice_if_unused(folder)


def remove_slice_if_unused(folder: Path) -> None:
    """Removes a slice whose lock is free and that has no process; a slice without a lock file belongs to the daemon."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        # Three signs of use, in this order: a process that inherited the lock; one with a slot in the region; and one
        # that closed what it inherited and has not used a GPU yet, which only its environment shows.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen = read_slice(folder)
        live = seen is not None and seen.region is not None and any(one.live for one in seen.region.processes)
        if not live and not _is_in_an_environment(folder / LIMITS):
            remove_slice(folder)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def _is_in_an_environment(limits: Path) -> bool:
    """Whether a process has this limits file in its environment: it may begin to use the slice at any time.

    True also if that cannot be found out now.
    """
    try:
        return any(has_variable(int(pid), VARIABLE, limits) for pid in os.listdir(PROC) if pid.isdecimal())
    except OSError:
        return True


def slice_folders(root: Path) -> list[Path]:
    """The folders of all slices, also of those that are being made or removed."""
    try:
        return sorted(entry for entry in root.iterdir() if entry.is_dir())
    except OSError:
        return []


def _own(folder: Path) -> Path:
    """Makes the folder if it does not exist, and checks that no other user owns it."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        seen = folder.lstat()
        problem = problem_of_folder(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}; COTENANT_RUNTIME names another folder") from None
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():
        raise InputError(f"{folder}: belongs to another user; COTENANT_RUNTIME names another folder")
    if problem is not None:
        raise InputError(f"{folder} {problem}, or let COTENANT_RUNTIME name another folder")
    return folder
