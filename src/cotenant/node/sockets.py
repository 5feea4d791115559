# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Unix sockets that carry messages (SOCK_SEQPACKET), in an event loop; asyncio's own streams do not support them."""

import asyncio
import contextlib
import errno
import os
import select
import socket
import stat
import struct
from collections.abc import Callable
from typing import NamedTuple

from cotenant.job.link import address

BACKLOG = 128
SO_PEERPIDFD = 77
"""of Linux 6.5; Python has no name for it"""
_CREDENTIALS = struct.Struct("iII")


def listen(path: str, mode: int = 0o600) -> socket.socket:
    """Opens a listening socket at this path; replaces one that an ended process left there."""
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        os.fchmod(
            listener.fileno(), 0o600
        )  # the file gets the socket's mode: other users must not be able to connect at any moment
        address(path, listener.bind)
        os.chmod(path, mode)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, error.strerror, path) from None  # a socket's own errors do not name the path
    return listener


class Listener:
    """Accepts connections in an event loop from `start` to `close`, and calls a function with each."""

    def __init__(self, path: str, mode: int, on_connect: Callable[[socket.socket], None]) -> None:
        self._path, self._mode = path, mode
        self._on_connect = on_connect
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> asyncio.AbstractEventLoop:
        """Starts to accept connections in the running event loop, which is returned."""
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
            # No file descriptor is free: the loop would call this again at once and for ever.
            self._loop.remove_reader(self._socket)
            self._retry = self._loop.call_later(1.0, self._loop.add_reader, self._socket, self._accept)
            return
        connection.setblocking(False)
        self._on_connect(connection)

    def close(self) -> None:
        """Stops accepting and removes the socket's file. A second call does nothing."""
        listening, self._socket = self._socket, None
        if listening is None:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(listening)
        listening.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class Credentials(NamedTuple):
    """Who connected to a unix socket, by the kernel's word."""

    pid: int
    uid: int
    gid: int


def credentials_of(connection: socket.socket) -> Credentials:
    """The credentials that the peer had when it connected."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Credentials(*_CREDENTIALS.unpack(found))


def peer_pid(connection: socket.socket) -> int:
    """The process ID of the peer, from the kernel."""
    return credentials_of(connection).pid


class Peer(NamedTuple):
    """The process at the other end of a connection. A process ID alone may belong to another process later."""

    pid: int
    started: str
    """when it started, in the kernel's ticks"""

    @property
    def is_alive(self) -> bool:
        """Whether this very process still exists."""
        return start_of(self.pid) == self.started


def peer_of(connection: socket.socket) -> Peer | None:
    """The process that connected, from the kernel; None if it has ended, so that its ID may be another's by now."""
    pid = peer_pid(connection)
    try:
        # Before Linux 6.5 there is no such option: then a process that ended before we look may be mistaken.
        descriptor = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
            return None
        started = start_of(pid)
        return None if started is None else Peer(pid, started)
    try:
        started = start_of(pid)
        poller = select.poll()  # select() refuses descriptors above 1,023
        poller.register(descriptor, select.POLLIN)  # it becomes readable when the process ends
        return None if started is None or poller.poll(0) else Peer(pid, started)
    finally:
        os.close(descriptor)


def start_of(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read(4096).rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return None


def receive(connection: socket.socket, most: int) -> bytes | None:
    """The next message, cut off after `most` bytes; None if there is none yet, empty if the connection has ended."""
    try:
        return connection.recv(most)
    except BlockingIOError:
        return None
    except OSError:
        return b""
