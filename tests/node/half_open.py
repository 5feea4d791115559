# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Connections whose TLS handshake is never completed."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def half_open(port: int, count: int, host: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """So many connections from one address; every other one has sent the first bytes of a handshake."""
    with ExitStack() as stack:
        found = []
        for number in range(count):
            one = socket.create_connection(("127.0.0.1", port), source_address=(host, 0))
            found.append(stack.enter_context(one))
            if number % 2:
                one.send(b"\x16\x03\x01\x02\x00\x01")
        yield found


def is_over(connection: socket.socket) -> bool:
    """Whether the other end has closed a connection on which it sends nothing."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
