# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Unix sockets of messages in an event loop, which asyncio's own streams do not speak."""

import asyncio
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
    except BaseException:
        listener.close()
        raise
    return listener


class Listener:
    """Accepts connections in the running event loop and hands each to a function."""

    def __init__(self, path: str, mode: int, greet: Callable[[socket.socket], None]) -> None:
        self._path = path
        self._greet = greet
        self._socket = listen(path, mode)
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
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
        """Accept no more; the path is free again."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        try:
            os.unlink(self._path)
        except OSError:
            return


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
