# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The blocks of a training loop or a server that a session times, each a context manager.

They are part of `Session` and use its private methods; a session makes them.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from cotenant.job.numbers import Number
    from cotenant.job.session import Session


class Step:
    """One training step."""

    __slots__ = ("_compute_lock", "_grad_sqr", "_grad_var", "_samples", "_session", "_started")

    def __init__(self, session: Session, samples: int, grad_sqr: Number, grad_var: Number) -> None:
        self._session = session
        self._samples = samples
        self._grad_sqr = grad_sqr
        self._grad_var = grad_var

    def __enter__(self) -> Step:
        session = self._session
        self._started = session._before()
        lock = session._compute_lock
        if lock is not None:
            self._compute_lock = lock if lock.acquire() else None
            self._started = time.monotonic()
        else:
            self._compute_lock = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._compute_lock is not None:
            self._compute_lock.release()
        if kind is None:
            self._session._after(self._samples, self._started, self._grad_sqr, self._grad_var)


class Request:
    """One request of a server, from its arrival to its answer. One that raises is not counted."""

    __slots__ = ("_session", "_started")

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._session.answered(seconds=time.monotonic() - self._started)


class Untimed:
    """A period that is left out of the reports."""

    __slots__ = ("_session", "_started")

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        session = self._session
        with session._lock:
            session._tally.exclude(self._started, time.monotonic())
