# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Unix sockets of messages in an event loop, which asyncio's own streams do not speak."""

import asyncio
import contextlib
import os
import socket
import stat
import struct
from collections.abc import Callable

from cotenant.job.link import address

BACKLOG = 128
_CREDENTIALS = struct.Struct("3i")


def listen(path: str, mode: int = 0o600) -> socket.socket:
    """A listening socket at this path, in place of one that a dead process left there."""
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        os.fchmod(listener.fileno(), 0o600)  # the file is made with the socket's mode: at no moment may others connect
        address(path, listener.bind)
        os.chmod(path, mode)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, path) from None  # a socket's own errors do not say where
    return listener


class Listener:
    """Accepts connections in an event loop, from `start` to `close`, and hands each to a function."""

    def __init__(self, path: str, mode: int, greet: Callable[[socket.socket], None]) -> None:
        self._path, self._mode = path, mode
        self._greet = greet
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop
        self._again: asyncio.TimerHandle | None = None

    def start(self) -> asyncio.AbstractEventLoop:
        """From now on, in the running event loop, which is returned."""
        self._loop = asyncio.get_running_loop()
        self._socket = listen(self._path, self._mode)
        self._loop.add_reader(self._socket, self._accept)
        return self._loop

    def _accept(self) -> None:
        if self._socket is None:
            return
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # No file handles left: it would be asked again at once and for ever.
            self._loop.remove_reader(self._socket)
            self._again = self._loop.call_later(1.0, self._loop.add_reader, self._socket, self._accept)
            return
        connection.setblocking(False)
        self._greet(connection)

    def close(self) -> None:
        """Accept no more; the path is free again. A second call does nothing."""
        listening, self._socket = self._socket, None
        if listening is None:
            return
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(listening)
        listening.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def peer_pid(connection: socket.socket) -> int:
    """Who connected, as the kernel says."""
    pid: int
    pid, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid


def receive(connection: socket.socket, most: int) -> bytes | None:
    """The next message, cut off after so many bytes; None where there is none yet, empty where none will come."""
    try:
        return connection.recv(most)
    except BlockingIOError:
        return None
    except OSError:
        return b""
