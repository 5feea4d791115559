# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The client for programs with an event loop.

Each request of the synchronous client runs in a thread of the loop's executor. Waiting for a job and following its
output sleep in the loop between short requests, so a thousand waiting tasks need no more threads than one.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cotenant.client.client import POLL_S, TIMEOUT_S, Client, Job, checked_end
from cotenant.wire.job_views import ENDED, JobView

if TYPE_CHECKING:
    from typing import Unpack

    from cotenant.client.requests import JobOptions

T = TypeVar("T")


class AsyncClient:
    """`Client` for coroutines: the same methods and errors."""

    def __init__(
        self, timeout_s: float = TIMEOUT_S, *, at: Path | None = None, url: str | None = None, token: str | None = None
    ) -> None:
        """As of `Client`."""
        self.sync = Client(timeout_s, at=at, url=url, token=token)

    async def submit(self, command: Sequence[str], **options: "Unpack[JobOptions]") -> "AsyncJob":
        """Submits a command, or an array of them if `array` or `grid` is given."""
        return AsyncJob(await asyncio.to_thread(lambda: self.sync.submit(command, **options)))

    async def job(self, name: str) -> "AsyncJob":
        """A job or an array, by its ID or its newest name."""
        return AsyncJob(await asyncio.to_thread(self.sync.job, name))

    async def jobs(self, state: str = "", *, mine: bool = False, limit: int = 1000) -> "list[AsyncJob]":
        """The newest jobs, oldest first, as `Client.jobs` selects them."""
        found = await asyncio.to_thread(lambda: self.sync.jobs(state, mine=mine, limit=limit))
        return [AsyncJob(one) for one in found]


class AsyncJob:
    """`Job` for coroutines."""

    def __init__(self, job: Job) -> None:
        self.sync = job

    def __repr__(self) -> str:
        return f"<AsyncJob {self.id} ({self.view.state})>"

    @property
    def id(self) -> str:
        """Such as `j-000001`, or `a-000001` for an array."""
        return self.sync.id

    @property
    def view(self) -> JobView:
        """What was last heard of it; `refresh` asks again."""
        return self.sync.view

    async def refresh(self) -> JobView:
        """The job as it is now."""
        return await asyncio.to_thread(self.sync.refresh)

    async def wait(self, timeout: float | None = None, *, check: bool = False) -> JobView:
        """Waits until it has ended, and returns how, with the errors of `Job.wait`."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while (view := await self.refresh()).state not in ENDED and time.monotonic() < until:
            await asyncio.sleep(POLL_S)
        return checked_end(view, check)

    async def log(
        self, *, follow: bool = False, tail: int | None = None, attempt: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yields its output as it arrives; with `follow` until it has ended."""
        view = await self.refresh()
        number, offset = attempt or view.attempts, 0

        def note_beginning(headers: Mapping[bytes, bytes]) -> None:
            nonlocal offset
            offset = int(headers.get(b"cotenant-log-offset", b"0"))

        while True:
            view = await self.refresh()  # read before the output, so that the last output is still found
            if number == 0 and view.attempts:
                number = 1
            pieces = self.sync.client.log(
                self.id,
                tail=tail,
                offset=offset if tail is None else None,
                attempt=number or None,
                on_headers=note_beginning,
            )
            while piece := await asyncio.to_thread(_next, pieces.__next__):
                offset, tail = offset + len(piece), None
                yield piece
            if not follow or (view.state in ENDED and number == view.attempts):
                return
            if attempt is not None and view.attempts > attempt:
                return
            if number < view.attempts:  # it runs again
                number, offset = number + 1, 0
            else:
                await asyncio.sleep(POLL_S)

    async def output(self) -> str:
        """Its output so far, of the latest attempt."""
        return await asyncio.to_thread(self.sync.output)

    async def cancel(self) -> JobView:
        """Stops it, or removes it from the queue; does not wait for its end."""
        return await asyncio.to_thread(self.sync.cancel)

    async def hold(self) -> JobView:
        """Keeps it in the queue until it is released."""
        return await asyncio.to_thread(self.sync.hold)

    async def release(self) -> JobView:
        """Lets it start after a hold."""
        return await asyncio.to_thread(self.sync.release)

    async def retry(self) -> JobView:
        """Runs it again after it has ended."""
        return await asyncio.to_thread(self.sync.retry)

    async def elements(self) -> "list[AsyncJob]":
        """The elements of an array, in the order of their indexes."""
        return [AsyncJob(one) for one in await asyncio.to_thread(self.sync.elements)]


def _next(advance: Callable[[], bytes]) -> bytes:
    """The next piece, or nothing at the end: StopIteration cannot pass through a future."""
    try:
        return advance()
    except StopIteration:
        return b""
