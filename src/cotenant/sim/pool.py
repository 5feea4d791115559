# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Independent pieces of work side by side in processes, which end cleanly whatever happens to them or to us."""

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


def side_by_side(pieces: Sequence[Callable[[], R]], processes: int, finished: Callable[[R], None]) -> None:
    """Calls every piece; `finished` is told of each result as it comes, in no particular order."""
    if processes == 1 or len(pieces) == 1:
        for piece in pieces:
            finished(piece())
        return
    pool = ProcessPoolExecutor(min(processes, len(pieces)), initializer=_begin_worker)
    try:
        with _interrupts_held():  # workers inherit this, so that none is interrupted before it can say otherwise
            # Not `concurrent.futures.wait`: interrupted while it holds the futures' locks, it never lets go of them.
            done: SimpleQueue[Future[R]] = SimpleQueue()
            for piece in pieces:
                pool.submit(piece).add_done_callback(done.put)
        for _ in pieces:
            finished(done.get().result())
    except BrokenProcessPool:
        _stop(pool)
        raise CotenantError("a worker process was killed, perhaps for want of memory; try fewer --processes") from None
    except BaseException:
        _stop(pool)
        raise
    pool.shutdown()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    """An interrupt is the parent's to handle; should the parent be killed, its workers end too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _stop(pool: ProcessPoolExecutor) -> None:
    for worker in list((pool._processes or {}).values()):
        worker.terminate()
    # Waits for the pool's thread, which has no more to do: at exit Python would write into a pipe that it just closes.
    pool.shutdown(cancel_futures=True)
