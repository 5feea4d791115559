# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The program of a job that calls a Python function: `python -P run_call.py FOLDER INDEX`.

It uses only the standard library, so the interpreter of a job needs no cotenant. The folder belongs to one group of
calls and contains:

    function  the pickled function, with the search path and the main program of the process that submitted it
    item-7    the pickled arguments of call 7
    result-7  how it ended: a pickled outcome, written completely or not at all

A file is unpickled only if the user of this process owns it and no other user can write to it, because unpickling runs
what the file says.
"""

import os
import pickle
import runpy
import stat
import sys
import traceback
import types
from typing import Any, NamedTuple

MIB = 1 << 20
MOST_BYTES = 1024 * MIB
"""of one file"""
MAIN = "__cotenant_main__"
"""the name under which the main program of the submitter is run again, as multiprocessing does with `__mp_main__`"""


class Function(NamedTuple):
    """What a group of calls calls."""

    pickled: bytes
    path: list[str]
    """the search path of the process that submitted it"""
    main: str | None
    """file of its main program, if the function is defined there"""


def read_trusted(path: str) -> bytes:
    """The content of a file that only this user can have written; PermissionError if that is not certain."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode) or seen.st_nlink != 1:
            raise PermissionError(f"{path} is not a regular file with one name")
        if seen.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user (ID {seen.st_uid})")
        if seen.st_mode & 0o022:
            raise PermissionError(f"{path} can be written to by other users")
        if seen.st_size > MOST_BYTES:
            raise PermissionError(f"{path} is larger than {MOST_BYTES // MIB} MiB")
        return file.read()


def write_new(path: str, content: bytes, *, durably: bool = False) -> None:
    """Writes a file that only this user can read, completely or not at all; with `durably`, also if the power fails."""
    made = f"{path}.{os.getpid()}.tmp"
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(content)
            if durably:
                file.flush()
                os.fsync(handle)
        os.rename(made, path)
    except BaseException:
        os.unlink(made)
        raise
    if durably:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load_function(folder: str) -> Any:
    """The function, after its search path and its main program are there again."""
    pickled, path, main = pickle.loads(read_trusted(f"{folder}/function"))
    sys.path[:] = [*(one for one in path if one not in sys.path), *sys.path]
    if main is not None:
        module = types.ModuleType(MAIN)
        module.__dict__.update(runpy.run_path(main, run_name=MAIN))
        sys.modules["__main__"] = sys.modules[MAIN] = module
    return pickle.loads(pickled)


def outcome_of(folder: str, index: int) -> tuple[str, Any, str]:
    """`ok` and the value; or `error`, the exception and its traceback as text."""
    try:
        args, kwargs = pickle.loads(read_trusted(f"{folder}/item-{index}"))
        return "ok", load_function(folder)(*args, **kwargs), ""
    except Exception as error:  # noqa: BLE001 - it is raised again in the process that asks for the result
        text = traceback.format_exc()
        sys.stderr.write(text)
        return "error", error, text


def pickled_outcome(outcome: tuple[str, Any, str]) -> tuple[str, bytes]:
    """The outcome, or what is wrong with it if it cannot be sent."""
    try:
        content = pickle.dumps(outcome)
        if outcome[0] == "error":
            pickle.loads(content)  # some exceptions can be pickled and not unpickled
        if len(content) <= MOST_BYTES:
            return outcome[0], content
        problem = f"its result has {len(content) // MIB} MiB, and may have {MOST_BYTES // MIB} MiB"
    except Exception as error:  # noqa: BLE001 - pickling calls code of the user
        problem = f"its {'result' if outcome[0] == 'ok' else 'exception'} cannot be pickled: {error}"
    if outcome[0] == "error":
        problem = f"{type(outcome[1]).__name__}: {outcome[1]}"
    return "failed", pickle.dumps(("failed", problem, outcome[2]))


def run(folder: str, index: int) -> int:
    """Makes one call and stores how it ended; the exit code."""
    word, content = pickled_outcome(outcome_of(folder, index))
    write_new(f"{folder}/result-{index}", content, durably=True)  # before the daemon records that the job is done
    return 0 if word == "ok" else 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2])))
