# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The routes of the daemon's HTTP interface with long answers: output, events, history and recorded decisions."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from itertools import islice

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cotenant.errors import InputError
from cotenant.history.quantities import index_of
from cotenant.history.store import Point
from cotenant.local.authority import event_shown_to
from cotenant.local.endpoint import json_response, whole
from cotenant.local.engine import Engine
from cotenant.local.identity import Caller, caller_of
from cotenant.local.refusals import UnknownError

LOG_CHUNK = 256 * 1024
FOLLOW_EVERY_S = 0.3
KEEP_ALIVE_S = 15.0
LOG_OFFSET = "Cotenant-Log-Offset"
"""response header: the offset of the first byte of the answer in the output of the attempt"""
LOG_ATTEMPT = "Cotenant-Log-Attempt"
"""response header: the attempt whose output the answer begins with; 0: there was none yet"""
MOST_TAIL = 100_000
LINES_AT_ONCE = 200
MOST_SERIES, MOST_POINTS = 1_000, 500
"""in one answer about the history"""


async def log(engine: Engine, request: Request) -> Response:
    """The log of a job's latest attempt, or of `attempt`, from an offset or its last lines (`tail`); with `follow=1`
    until the job has ended, or the requested attempt has.

    Offsets count all output of the attempt. If the output at the offset was rotated away, the answer begins with the
    oldest output that is kept, and its header contains the offset of that.
    """
    job = engine.queries.job(request.path_params["job"]).id
    latest, _ = engine.queries.progress(job)
    one = whole(request, "attempt", 0, 1, max(1, latest))
    attempt = one or latest
    engine.queries.refuse_pruned_log(job, attempt)
    tail = whole(request, "tail", -1, 0, MOST_TAIL)
    offset = engine.queries.log_tail(job, attempt, tail) if tail >= 0 else whole(request, "offset", 0, 0, 1 << 62)
    follow = whole(request, "follow", 0, 0, 1) == 1
    begin, _ = engine.queries.read_log(job, attempt, offset, 1)
    return StreamingResponse(
        log_chunks(engine, job, attempt, begin, follow, only=one > 0),
        media_type="text/plain; charset=utf-8",
        headers={LOG_OFFSET: str(begin), LOG_ATTEMPT: str(attempt)},
    )


async def log_chunks(
    engine: Engine, job: str, attempt: int, offset: int, follow: bool, only: bool = False
) -> AsyncIterator[bytes]:
    while True:
        latest, ended = engine.queries.progress(job)  # read before the log, so that the last output is still sent
        begin, piece = engine.queries.read_log(job, attempt, offset, LOG_CHUNK)
        while piece:
            offset = begin + len(piece)
            yield piece
            begin, piece = engine.queries.read_log(job, attempt, offset, LOG_CHUNK)
        if not follow or engine.stopping.is_set():
            return
        if only and latest > attempt:
            return
        if latest != attempt:  # the job runs again
            attempt, offset = latest, 0
        elif ended:
            return
        else:
            await asyncio.sleep(FOLLOW_EVERY_S)


async def events(engine: Engine, request: Request) -> Response:
    """Live events after the id `after`, or after the id in the header that browsers send when they reconnect."""
    after = whole(request, "after", -1, -1, 1 << 62)
    seen = request.headers.get("last-event-id", "")
    if "after" not in request.query_params and seen.isascii() and seen.isdecimal() and len(seen) < 19:
        after = int(seen)
    return StreamingResponse(event_stream(engine, caller_of(request), after), media_type="text/event-stream")


async def event_stream(engine: Engine, caller: Caller, after: int) -> AsyncIterator[bytes]:
    """Server-sent events: the recorded events after `after` (-1: none), then new ones."""
    with engine.events.subscribe(after) as subscription:
        yield b": connected\n\n"
        while not engine.stopping.is_set():
            page = subscription.page()
            for event in (event_shown_to(caller, engine, one) for one in page):
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), msgspec.json.encode(event))
            if subscription.closed:
                return
            if not page:
                try:
                    await asyncio.wait_for(subscription.changed.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield b": still here\n\n"


async def history(engine: Engine, request: Request) -> Response:
    """A quantity of all entities of a kind over time: by name a list of [time, mean, highest]."""
    kept = engine.history
    if kept is None:
        raise UnknownError("this daemon keeps no history; `cotenant up` without --history 0s does")
    kind, quantity = request.query_params.get("kind", "gpu"), request.query_params.get("quantity", "utilisation")
    now = int(time.time())
    since, until = whole(request, "since", now - 86_400, 0, 1 << 40), whole(request, "until", now, 0, 1 << 40)
    points = whole(request, "points", 100, 1, MOST_POINTS)

    def read() -> dict[str, list[Point]]:
        seen = kept.entities(kind, since)[:MOST_SERIES]
        return {one.entity.name: kept.series(one.entity, quantity, since, until, points) for one in seen}

    try:
        index_of(kind, quantity)
    except ValueError as error:
        raise InputError(str(error)) from None
    return json_response(await asyncio.to_thread(read))


async def decisions(engine: Engine, request: Request) -> Response:
    """The recorded decisions, one line of JSON each; with `since` only parts that reach beyond that time."""
    since = whole(request, "since", 0, 0, 1 << 40)
    recorder = engine.recorded_decisions
    if recorder is None:
        raise UnknownError("this daemon records no decisions; `cotenant up` without --no-decisions does")
    lines = await asyncio.to_thread(recorder.lines, since)
    return StreamingResponse(_pieces(lines), media_type="application/jsonl")


async def _pieces(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The lines as pieces, read in a thread because they come from a disk."""
    while True:
        piece = await asyncio.to_thread(lambda: b"".join(islice(lines, LINES_AT_ONCE)))
        if not piece:
            return
        yield piece
