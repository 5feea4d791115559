# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Answers over HTTP, whole and broken ones, from a server that says exactly what it is told to."""

import socket
import threading

import pytest

from cotenant.client.http import exchange


def answered(answer: bytes) -> tuple[int, bytes, bytes]:
    """Status and body of an answer, and the request that it answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard: list[bytes] = []

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(65_536))
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with exchange(server.getsockname(), "POST", "/v1/x", b"{}", {"Authorization": "Bearer t"}, 10.0) as found:
                return found.status, b"".join(found.chunks()), heard[0]
        finally:
            thread.join()


def test_the_request_is_what_a_server_expects() -> None:
    assert answered(b"HTTP/1.1 200 OK\r\n\r\n")[2].split(b"\r\n") == [
        b"POST /v1/x HTTP/1.1",
        b"Host: cotenant",
        b"Connection: close",
        b"Content-Length: 2",
        b"Authorization: Bearer t",
        b"",
        b"{}",
    ]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello and more", (200, b"hello")),
        (b"HTTP/1.1 404 Not Found\r\nX: y\r\n\r\nuntil it closes", (404, b"until it closes")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
         (200, b"abc0123456789")),
        (b"HTTP/1.0 204 No Content\n\n", (204, b"")),
    ],
    ids=["length", "close", "chunks", "bare"],
)  # fmt: skip
def test_each_way_to_mark_the_end_of_a_body_is_understood(answer: bytes, expected: tuple[int, bytes]) -> None:
    assert answered(answer)[:2] == expected


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 soon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
        b"HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n" + b"a" * 100_000 + b"\r\n\r\n",
    ],
)
def test_a_broken_answer_is_never_taken_for_a_whole_one(answer: bytes) -> None:
    with pytest.raises((OSError, ValueError)):
        answered(answer)
