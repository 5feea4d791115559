# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The slices of GPUs that are in use on this machine: a folder each, with the limits and the region of its processes.

They live where nothing survives a restart of the machine, as their processes do not. A slice that a command has made
holds a lock which its processes inherit, so that what a killed command left can be told from what is still in use; of
those that close what they inherit, the environment tells.
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
from cotenant.node.limits import Limits, limits_text, read_limits, write_limits
from cotenant.node.region import Region, make_region, read_region

T = TypeVar("T")
LIMITS, REGION, LOCK = "limits", "usage", "lock"


class Seen(NamedTuple):
    """A slice as it was found."""

    name: str
    limits: Limits
    """none at all where they cannot be read"""
    region: Region | None
    """None: it cannot be read"""


def slices_folder() -> Path:
    """Where the slices of this user are: $COTENANT_RUNTIME, /run for root, the user's own runtime folder, or /tmp."""
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


def make_slice(root: Path, name: str, limits: Limits, *, for_anyone: bool = False) -> Path:
    """The folder of a slice with these limits and an empty region; one of that name that is there is made anew.

    Where root starts a command that becomes another user, nobody knows which: then the region is for anyone who knows
    its path, which the name must make hard to guess, since the folder above does not tell.
    """
    folder = root / name
    try:
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        root.chmod(0o711)
        folder.mkdir(exist_ok=True)
        uuids = [limit.uuid for limit in limits.gpus]
        make_region(folder / REGION, uuids, mode=0o666 if for_anyone else 0o600)
        write_limits(folder / LIMITS, limits_text(limits))
    except OSError as error:
        remove_slice(folder)
        raise CotenantError(f"{folder}: a slice cannot be made there: {error.strerror}") from None
    return folder


def see_slices(root: Path) -> list[Seen]:
    """All slices, by name; those that are just coming or going are left out."""
    return [seen for folder in slice_folders(root) if (seen := see_slice(folder)) is not None]


def see_slice(folder: Path) -> Seen | None:
    """One slice, None where there is none (any more)."""
    limits, region = _read(read_limits, folder / LIMITS), _read(read_region, folder / REGION)
    return None if limits is None and region is None else Seen(folder.name, limits or Limits(), region)


def _read(reader: Callable[[Path], T], path: Path) -> T | None:
    try:
        return reader(path)
    except (OSError, InputError):
        return None


def remove_slice(folder: Path) -> None:
    """Its processes, if there are any, keep what they were last told."""
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[int]:
    """Marks a slice as used by us and by whoever inherits the descriptor; removed when the last of them has gone."""
    fresh = folder / f"{LOCK}.new"
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.replace(fresh, folder / LOCK)  # nobody ever finds it unlocked while we are here
        yield descriptor
    finally:
        os.close(descriptor)
        remove_if_unused(folder)


def sweep(root: Path) -> None:
    """Removes what commands have left that were killed."""
    for folder in slice_folders(root):
        remove_if_unused(folder)


def remove_if_unused(folder: Path) -> None:
    """Removes a slice that holds no lock and has no process; one that never had a lock is somebody else's to remove."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen = see_slice(folder)
        live = seen is not None and seen.region is not None and any(one.live for one in seen.region.processes)
        if not live and not _is_told_of(folder / LIMITS):
            remove_slice(folder)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def _is_told_of(limits: Path, proc: Path = Path("/proc")) -> bool:
    """Whether a process may still begin to use a slice: one that closed all that it inherited, and no GPU yet."""
    named = b"COTENANT_LIMITS=" + os.fsencode(limits)
    for environ in proc.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # somebody else's, or gone
            if named in environ.read_bytes().split(b"\0"):
                return True
    return False


def slice_folders(root: Path) -> list[Path]:
    """Those of all slices, also of such as are just coming or going."""
    try:
        return sorted(entry for entry in root.iterdir() if entry.is_dir())
    except OSError:
        return []


def _own(folder: Path) -> Path:
    """The folder, made if need be, where nobody else could put something in our way."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        seen = folder.lstat()
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}; COTENANT_RUNTIME names another folder") from None
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():
        raise InputError(f"{folder}: belongs to somebody else; COTENANT_RUNTIME names another folder")
    return folder
