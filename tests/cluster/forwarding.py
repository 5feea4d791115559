# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A port of the loopback that leads to an address inside of a cluster, for programs that know no socket files."""

import contextlib
import ctypes
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator

from tests.cluster.machine import Machine

NEW_NETWORK = 0x40000000
PIECE = 65_536


@contextlib.contextmanager
def forwarded(machine: Machine, address: Callable[[], tuple[str, int]]) -> Iterator[int]:
    """The port; each connection goes to the present address, as a machine of the cluster reaches it."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()

    def serve() -> None:
        _enter_network(machine.pid)  # of this thread only; sockets that it makes belong to that network
        while not stopped.is_set():
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(address(), timeout=5)
            except OSError:
                near.close()
                continue
            threading.Thread(target=_copy, args=(near, far), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        stopped.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def _enter_network(pid: int) -> None:
    handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(handle)


def _copy(near: socket.socket, far: socket.socket) -> None:
    """Passes on what both sides send, until one of them ends."""
    with near, far, contextlib.suppress(OSError):
        while True:
            readable, _, _ = select.select((near, far), (), ())
            for one in readable:
                piece = one.recv(PIECE)
                if not piece:
                    return
                (far if one is near else near).sendall(piece)
