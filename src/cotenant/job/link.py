# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A connection to a unix socket that may not exist: it raises nothing, never waits unasked, and reconnects by itself.

Connecting to a unix socket succeeds or fails at once, so reconnecting needs no thread: the next call after a growing
pause tries again.
"""

from __future__ import annotations

import os
import select
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 4096
"""bytes of a message"""
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
"""seconds between attempts"""
SETTLED = 5.0
"""seconds after which a connection counts as good, and the next pause is short again"""
LONGEST_ADDRESS = 100


def address(path: str, use: Callable[[str], None]) -> None:
    """Calls `use` with a name of this socket of at most 107 bytes, the kernel's limit, even if its path is longer."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        return use(path)
    folder, name = os.path.split(path)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{handle}/{name}")
    finally:
        os.close(handle)


class Link:
    """A connection to a unix socket that carries messages (SOCK_SEQPACKET)."""

    __slots__ = ("_opened", "_path", "_pause", "_retry_at", "_socket")

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._pause = FIRST_PAUSE
        self._retry_at = 0.0
        self._opened = 0.0

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self) -> bool:
        """Connects unless it is too early for another attempt; True if this opened a new connection."""
        now = time.monotonic()
        if self._socket is not None or now < self._retry_at:
            return False
        self._opened = now
        try:
            self._socket = connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.setblocking(False)
            address(self._path, connection.connect)
        except (OSError, ValueError):  # ValueError: a null byte in the path
            self.drop()
            return False
        return True

    def send(self, message: bytes) -> bool:
        """Sends a message; False if the other side is slow or gone, and the message is dropped."""
        connection = self._socket  # another thread may close it meanwhile
        if connection is None:
            return False
        try:
            connection.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            self.drop()
            return False
        return True

    def receive(self) -> bytes | None:
        """The next message; None: there is none now, or no connection."""
        connection = self._socket
        if connection is None:
            return None
        try:
            message = connection.recv(LONGEST + 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            message = b""
        if not message:
            self.drop()
            return None
        return message

    def wait(self, seconds: float) -> None:
        """Waits until a message can be received, the other side closes, or the time is over."""
        connection = self._socket
        if connection is None:
            return
        ready = select.poll()
        try:
            ready.register(connection, select.POLLIN)
            ready.poll(max(0.0, seconds) * 1000)
        except (OSError, ValueError):  # ValueError: closed by another thread
            return

    def drop(self, *, stuck: bool = False) -> None:
        """Closes; the pause before the next attempt doubles each time, and is the longest after a stuck server."""
        self.close()
        now = time.monotonic()
        if stuck:
            self._pause = LAST_PAUSE
        elif now - self._opened > SETTLED:
            self._pause = FIRST_PAUSE
        self._retry_at = now + self._pause
        self._pause = min(LAST_PAUSE, 2 * self._pause)

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()
