# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The compute lock of a simulated device: one job computes at a time, in the order of requests.

A job's connection is both its place in the queue and its ownership of the lock, so both end with the process, also with
kill -9.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from cotenant.job.compute_lock import ACQUIRE, GRANTED, RELEASE
from cotenant.node.sockets import Listener, peer_pid, receive

LONGEST_HOLD = 10.0
"""seconds that a job may keep the lock while others wait: a stopped process must not stop its neighbours"""
MOST_CONNECTIONS = 256


class ComputeLockServer:
    """Serves the lock of one device in the running event loop.

    A connection is at most once in `_waiting`, and never there while it is the holder. While there is no holder, no
    connection waits: each change that could break this ends with `_grant_next`. Only processes that
    `admits` accepts, by their ID, can connect.
    """

    def __init__(
        self,
        path: str,
        *,
        longest_hold: float = LONGEST_HOLD,
        mode: int = 0o600,
        admits: Callable[[int], bool] = lambda pid: True,
    ) -> None:
        self.path = path
        self.granted = 0
        """times that the lock was granted"""
        self.revoked = 0
        """times that the lock was taken from a job after `longest_hold`"""
        self._longest_hold, self._admits = longest_hold, admits
        self._listener = Listener(path, mode, self._on_connect)
        self._loop: asyncio.AbstractEventLoop
        self._connections: set[socket.socket] = set()
        self._waiting: deque[socket.socket] = deque()
        self._holder: socket.socket | None = None
        self._overdue: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self._loop = self._listener.start()

    async def close(self) -> None:
        """Closes all connections: the jobs' steps go on without a lock."""
        self._listener.close()
        self._waiting.clear()
        for connection in list(self._connections):
            self._disconnect(connection)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _on_connect(self, connection: socket.socket) -> None:
        if len(self._connections) >= MOST_CONNECTIONS or not self._admits(peer_pid(connection)):
            connection.close()
            return
        self._connections.add(connection)
        self._loop.add_reader(connection, self._read, connection)

    def _read(self, connection: socket.socket) -> None:
        request = receive(connection, 2)
        if request == ACQUIRE:
            self._acquire(connection)
        elif request == RELEASE:
            if connection is self._holder:
                self._release()
        elif request is not None:  # the connection has ended, or the peer does not speak this protocol
            self._disconnect(connection)

    def _acquire(self, connection: socket.socket) -> None:
        if connection in self._waiting:
            return
        if connection is self._holder:  # its release is missing; it goes to the end of the queue like every other
            self._release()
        self._waiting.append(connection)
        self._grant_next()

    def _release(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        self._holder = None
        self._grant_next()

    def _grant_next(self) -> None:
        while self._waiting and self._holder is None:
            connection = self._waiting.popleft()
            try:
                connection.send(GRANTED, socket.MSG_NOSIGNAL)
            except OSError:
                self._disconnect(connection)
                continue
            self._holder = connection
            self.granted += 1
            self._overdue = self._loop.call_later(self._longest_hold, self._revoke, connection)

    def _revoke(self, connection: socket.socket) -> None:
        if connection is not self._holder:
            return
        if self._waiting:
            self.revoked += 1
            self._release()
        else:
            self._overdue = self._loop.call_later(self._longest_hold / 10, self._revoke, connection)

    def _disconnect(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._connections.discard(connection)
        connection.close()
        if connection in self._waiting:
            self._waiting.remove(connection)
        if connection is self._holder:
            self._release()
