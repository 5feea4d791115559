# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The state folder of a daemon: made for its owner only, and refused if another user could change what is in it."""

from pathlib import Path

from cotenant.errors import InputError
from cotenant.node.ownership import problem_of_file, problem_of_folder

SYSTEM_STATE = Path("/var/lib/cotenant")
"""the state folder of a daemon for all users, unless COTENANT_STATE names another"""
ANOTHER = "set COTENANT_STATE to another folder"
TRUSTED = (
    "journal.db",
    "journal.db-wal",
    "journal.db-shm",
    "journal.db.lock",
    "history.db",
    "history.db-wal",
    "history.db-shm",
    "decisions",
    "daemon.log",
    "jobs",
    "unrecorded",
    "tls.crt",
    "tls.key",
)
"""names in the folder whose content the daemon trusts, or to which it writes"""


def make_state_folder(folder: Path) -> None:
    """Makes the folder if it does not exist; InputError if it cannot be made, or is not safe to use.

    It must be checked before anything in it is opened: a link instead of a file would let its owner choose which of our
    files is overwritten, and a job folder instead of ours which program we run.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = problem_of_folder(folder)
    except OSError as error:
        raise InputError(f"{folder}: the state folder cannot be created: {error.strerror}; {ANOTHER}") from None
    if problem is not None:
        raise InputError(f"{folder}: the state folder {problem}, or {ANOTHER}")
    for name in TRUSTED:
        path = folder / name
        try:
            found = problem_of_folder(path) if path.is_dir() else problem_of_file(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            found = f"cannot be checked: {error.strerror}"
        if found is not None:
            raise InputError(f"{path} {found}; remove it, or {ANOTHER}")
