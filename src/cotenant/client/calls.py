# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of Python functions as jobs: `Executor` and `map`.

A group of calls is an array of jobs. Function, arguments and results are files in a folder of the caller, which no
other user can read or write; the daemon never opens them.
"""

import os
import pickle
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from cotenant.client import run_call
from cotenant.client.addresses import own_folder
from cotenant.client.client import POLL_S, Client, Job
from cotenant.client.endings import ending_of
from cotenant.client.problems import JobFailedError
from cotenant.errors import CotenantError, InputError
from cotenant.wire.arrays import MOST_ELEMENTS
from cotenant.wire.job_views import ENDED, JobView

if TYPE_CHECKING:
    from typing import Unpack

    from cotenant.client.requests import JobOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
MOST_BYTES = 4 << 30
"""of all arguments of a group of calls"""
OWN = ("array", "grid", "after")
"""options that the executor sets, or that mean nothing for it"""


class CallFailedError(CotenantError):
    """A call has no result: its exception or its value could not be sent back."""


class Call(Generic[R]):
    """One call of a function, which runs as a job."""

    def __init__(self, group: "_Group", index: int) -> None:
        self._group, self.index = group, index

    def __repr__(self) -> str:
        return f"<Call {self.job}>"

    @property
    def job(self) -> str:
        """The job that makes the call, such as `a-000001_7`: for `cotenant logs`, `why` and `cancel`."""
        return f"{self._group.array.id}_{self.index}"

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._group.ended(self.index) is not None

    def cancel(self) -> None:
        """Stops it, or removes it from the queue."""
        self._group.array.client.act(self.job, "cancel")

    def log(self) -> str:
        """What it printed so far."""
        return b"".join(self._group.array.client.log(self.job)).decode(errors="replace")

    def result(self, timeout: float | None = None) -> R:
        """The value that the function returned. Raises the exception that it raised, with its traceback as a note;
        JobFailedError if the job ended in another way; TimeoutError after `timeout` seconds."""
        return self._group.result(self.index, timeout)  # type: ignore[no-any-return]


class _Group:
    """An array of calls, and what is known of its elements."""

    def __init__(self, array: Job, folder: Path) -> None:
        self.array, self.folder = array, folder
        self._ended: dict[int, JobView] = {}
        self._look_at = 0.0

    def ended(self, index: int) -> JobView | None:
        """The element if it has ended. All elements are looked at together, and for at most a tenth of the time."""
        if index not in self._ended and time.monotonic() >= self._look_at:
            began = time.monotonic()
            for job in self.array.elements():
                if job.view.state in ENDED and job.view.index is not None:
                    self._ended[job.view.index] = job.view
            self._look_at = time.monotonic() + max(POLL_S, 10 * (time.monotonic() - began))
        return self._ended.get(index)

    def result(self, index: int, timeout: float | None) -> Any:
        until = None if timeout is None else time.monotonic() + timeout
        while (view := self.ended(index)) is None:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{self.array.id}_{index} has not ended in time")
            time.sleep(POLL_S / 4)
        path = f"{self.folder}/result-{index}"
        # The name that classes of the main program have in the job.
        sys.modules.setdefault(run_call.MAIN, sys.modules["__main__"])
        try:
            word, value, text = pickle.loads(run_call.read_trusted(path))
        except FileNotFoundError:
            raise JobFailedError(self._without_result(view, index)) from None
        except OSError as error:
            raise CotenantError(f"the result of {view.id} is not read: {error}") from None
        except Exception as error:
            raise CallFailedError(f"the result of {view.id} cannot be unpickled here: {error}") from error
        if word == "ok" and view.outcome == "exited":
            return value
        if view.outcome != "exited":
            raise JobFailedError(ending_of(view))
        if word == "failed":
            raise CallFailedError(f"the call of {view.id} failed: {value}")
        value.add_note(f"raised in {view.id}:\n{text}")
        raise value

    def _without_result(self, view: JobView, index: int) -> str:
        if view.outcome != "exited":
            return ending_of(view)
        if view.code == 0:
            return (
                f"{view.id} wrote no result to {self.folder}: is this a folder that the machine of the daemon has, too?"
            )
        return f"{ending_of(view)}; `cotenant logs {view.id}` shows its output"


class Executor:
    """Makes calls of Python functions as jobs with the same options.

    Leaving a `with` block waits for nothing: calls that were submitted go on.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        folder: str | Path | None = None,
        at_most: int | None = None,
        python: Sequence[str] = (sys.executable,),
        **options: "Unpack[JobOptions]",
    ) -> None:
        """`folder` keeps functions, arguments and results (by default one below `~/.local/state/cotenant`); it must be
        one that the machine of the daemon has, too. `at_most` bounds how many calls of one group hold GPUs at a time.
        `python` is the command of the interpreter. The other options are those of `submit`, for each call."""
        for name in OWN:
            if name in options:
                raise InputError(f"{name}: an executor sets this itself; use at_most to bound how many calls run")
        self._client, self._options = client or Client(), options
        self._python, self._at_most = tuple(python), at_most
        self._base = Path(folder) if folder is not None else own_folder() / "calls"

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Makes one call."""
        return self._submit(function, [(args, kwargs)])[0]

    def submit_all(self, function: Callable[[T], R], items: Iterable[T]) -> list[Call[R]]:
        """Makes one call for each item, as one array: all are accepted or none."""
        return self._submit(function, [((item,), {}) for item in items])

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yields the results of one call for each item, in the order of the items, and removes their files at the end.
        If it is not read to its end, because a call failed or the program is interrupted, the remaining calls are
        cancelled: no program could read their results."""
        calls = self.submit_all(function, items)
        try:
            for call in calls:
                yield call.result()
        except BaseException:
            with suppress(CotenantError):
                calls[0]._group.array.cancel()
            raise
        if calls:
            remove(calls[0])

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _submit(self, function: Callable[..., R], calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Call[R]]:
        if not calls:
            return []
        if len(calls) > MOST_ELEMENTS:
            raise InputError(f"{len(calls):,} items: one group has at most {MOST_ELEMENTS:,} calls")
        folder = self._make_folder()
        try:
            _store(folder, function, calls)
            bound = "" if self._at_most is None else f"%{self._at_most}"
            command = [*self._python, "-P", os.path.abspath(run_call.__file__), str(folder), "{}"]
            name = getattr(function, "__name__", "call")
            named: dict[str, Any] = {"name": name} if name.isidentifier() else {}
            options: dict[str, Any] = {**named, "workload": _workload(function), **self._options}
            array = self._client.submit(command, array=f"0-{len(calls) - 1}{bound}", **options)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        group = _Group(array, folder)
        return [Call(group, index) for index in range(len(calls))]

    def _make_folder(self) -> Path:
        """A new folder that only this user can read."""
        try:
            self._base.mkdir(mode=0o700, parents=True, exist_ok=True)
            seen = self._base.stat()
            if seen.st_uid != os.geteuid() or stat.S_IMODE(seen.st_mode) & 0o022:
                raise InputError(f"{self._base}: other users can write to this folder; choose one that is yours only")
            folder = (self._base / f"{int(time.time())}-{secrets.token_hex(6)}").resolve()
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise InputError(f"{self._base}: the calls cannot be stored there: {error.strerror}") from None
        return folder


def remove(call: Call[Any]) -> None:
    """Removes the files of a call and of all calls that were submitted with it; their results cannot be read again."""
    shutil.rmtree(call._group.folder, ignore_errors=True)


def map(  # noqa: A001 - users call it cotenant.map
    function: Callable[[T], R], items: Iterable[T], *, at_most: int | None = None, **options: "Unpack[JobOptions]"
) -> list[R]:
    """Calls a function once for each item, each call as a job, and returns the results in the order of the items.

    Raises the first exception, in that order. If it does, or if the program is interrupted, the remaining calls are
    cancelled."""
    return list(Executor(at_most=at_most, **options).map(function, items))


def _store(folder: Path, function: Callable[..., Any], calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
    """Writes the function and the arguments of each call."""
    pickled, main = _pickled_function(function)
    content = tuple(run_call.Function(pickled, [os.path.abspath(one) for one in sys.path], main))
    run_call.write_new(f"{folder}/function", pickle.dumps(content))
    left = MOST_BYTES
    for index, call in enumerate(calls):
        try:
            item = _dumps(call)
        except Exception as error:  # noqa: BLE001 - pickling calls code of the user
            raise InputError(f"the arguments of call {index} cannot be pickled: {error}") from None
        left -= len(item)
        if left < 0 or len(item) > run_call.MOST_BYTES:
            raise InputError(
                f"the arguments of call {index} are larger than {run_call.MOST_BYTES >> 20} MiB, or those of all calls "
                f"than {MOST_BYTES >> 30} GiB: pass the name of a file instead of its content"
            )
        run_call.write_new(f"{folder}/item-{index}", item)


def _pickled_function(function: Callable[..., Any]) -> tuple[bytes, str | None]:
    """The function, and the main program that it is defined in. Without cloudpickle, a function must have a name of its
    own in a module."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        if "cloudpickle" in sys.modules or _has_cloudpickle():
            return _dumps(function), None
        in_main = getattr(function, "__module__", None) == "__main__"
        if in_main and main is None:
            raise pickle.PicklingError("it is defined in a session without a file")
        return pickle.dumps(function), os.path.abspath(main) if in_main and main else None
    except Exception as error:  # noqa: BLE001 - pickling calls code of the user
        raise InputError(
            f"{getattr(function, '__qualname__', function)!s}: this function cannot be sent to a job: {error}. "
            "Define it at the top of a module, or install cloudpickle"
        ) from None


def _has_cloudpickle() -> bool:
    try:
        import cloudpickle  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        return False
    return True


def _dumps(value: object) -> bytes:
    """Pickles with cloudpickle if it is installed: then lambdas and functions of a session can be sent, too."""
    if _has_cloudpickle():
        import cloudpickle

        return bytes(cloudpickle.dumps(value))
    return pickle.dumps(value)


def _workload(function: Callable[..., Any]) -> str:
    """All calls of a function are one workload, whatever folder they are in."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    return f"call-{name}"[:200]
