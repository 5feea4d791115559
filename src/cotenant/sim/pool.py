# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A process pool for independent runs that shuts down cleanly on Ctrl-C, on errors and if a worker is killed."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from cotenant.errors import CotenantError

R = TypeVar("R")


def run_parallel(tasks: Sequence[Callable[[], R]], processes: int, finished: Callable[[R], None]) -> None:
    """Calls every task, and `finished` with each result as it arrives, in no particular order."""
    # Invariants: `finished` runs only in this process and thread, so callers need no lock. On every way out of this
    # function no worker is left: on success the pool is drained, on any exception (KeyboardInterrupt included) the
    # workers are terminated first, because a worker in a long run would otherwise be waited for.
    if processes == 1 or len(tasks) == 1:
        for task in tasks:
            finished(task())
        return
    pool = ProcessPoolExecutor(min(processes, len(tasks)), initializer=_begin_worker)
    try:
        # Workers inherit the mask, so none is interrupted before `_begin_worker` ignores SIGINT.
        with _sigint_blocked():
            # Not `concurrent.futures.wait`: if it is interrupted while it holds the locks of the futures, it never
            # releases them, and the shutdown below would hang.
            done: SimpleQueue[Future[R]] = SimpleQueue()
            for task in tasks:
                pool.submit(task).add_done_callback(done.put)
        for _ in tasks:
            finished(done.get().result())
    except BrokenProcessPool:
        _stop(pool)
        raise CotenantError(
            "a worker process was killed, possibly because memory ran out; use fewer --processes"
        ) from None
    except BaseException:
        _stop(pool)
        raise
    pool.shutdown()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    """Leaves interrupts to the parent, and makes the worker exit if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _stop(pool: ProcessPoolExecutor) -> None:
    for worker in list((pool._processes or {}).values()):
        worker.terminate()
    # Wait for the management thread, which has nothing left to do; otherwise Python writes to a closed pipe at exit.
    pool.shutdown(cancel_futures=True)
