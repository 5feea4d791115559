# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The head and the body of a response are one packet, and nothing that is written is lost, reordered or kept back."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.joined_writes import JoinedWrites
from cotenant.kube.api.server import Listener, Reply, Route, application, listen
from tests.kube.http import connect, read_answer, serving


class Wire(asyncio.Transport):
    """Records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.packets.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def packets_of(story: Callable[[JoinedWrites], Awaitable[None]]) -> list[bytes]:
    wire = Wire()

    async def told() -> None:
        await story(JoinedWrites(wire))
        await asyncio.sleep(0)

    asyncio.run(told())
    return wire.packets


def test_two_writes_are_one_packet_and_a_single_one_is_sent_in_the_next_turn() -> None:
    async def story(transport: JoinedWrites) -> None:
        transport.write(b"head")
        transport.write(b"body")
        await asyncio.sleep(0)
        transport.write(b"alone")
        await asyncio.sleep(0)
        transport.write(b"last")

    assert packets_of(story) == [b"headbody", b"alone", b"last"]


def test_closing_sends_what_is_held_and_aborting_drops_it() -> None:
    async def closes(transport: JoinedWrites) -> None:
        transport.write(b"head")
        transport.close()
        assert transport.is_closing()

    async def aborts(transport: JoinedWrites) -> None:
        transport.write(b"head")
        transport.abort()

    assert packets_of(closes) == [b"head"]
    assert packets_of(aborts) == []


@given(turns=st.lists(st.lists(st.binary(max_size=4), max_size=5), max_size=6))
def test_the_bytes_are_those_that_were_written_in_the_same_order(turns: Sequence[Sequence[bytes]]) -> None:
    async def story(transport: JoinedWrites) -> None:
        for pieces in turns:
            for piece in pieces:
                transport.write(piece)
            await asyncio.sleep(0)

    assert b"".join(packets_of(story)) == b"".join(piece for pieces in turns for piece in pieces)


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_responses_without_a_body_and_those_between_two_parts_of_a_request_are_sent(loop: Callable[..., None]) -> None:
    """Of these, uvicorn writes only a head."""

    async def echo(_words: tuple[str, ...], body: bytes) -> Reply:
        return Reply(body or b"nothing")

    async def told() -> None:
        routes = {"get": Route(method="GET", answer=echo), "post": Route(method="POST", answer=echo, most_bytes=10)}
        bound = listen("127.0.0.1", 0)
        async with serving([Listener(bound, application(routes, ErrorLog(print)))]), asyncio.timeout(10):
            reader, writer = await connect(bound.getsockname()[1])
            writer.write(b"HEAD /get HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"content-length: 7" in (await reader.readuntil(b"\r\n\r\n")).lower()
            writer.write(b"POST /post HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b"hi")
            assert (await read_answer(reader)).body == b"hi"
            writer.transport.abort()

    loop(told())
