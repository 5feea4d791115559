# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The terminal of an interactive run, in its supervisor.

The supervisor holds the master side of a pseudo-terminal, whose slave side is the job's standard input and output. So
the terminal outlives the daemon and every client. A client connects to a unix socket that belongs to the owner of the
job; the kernel says who it is. The supervisor answers with one line of JSON, then with the output as it comes. The
client sends frames: a letter, the length of the content in two bytes, and the content.

    i  input: what was typed
    w  window: rows and columns, two bytes each

The job never waits for a client: if a client reads too slowly, output is skipped, and a line says how much. The log
has all of it. Only input waits, until the job reads it.

Like the supervisor, this file uses only the standard library and is loaded once, before the job starts.
"""

import fcntl
import json
import os
import re
import select
import socket
import struct
import termios
import time
from contextlib import suppress

MOST_CLIENTS = 8
KEPT_BYTES = 64 << 10  # the end of the output, which a client gets when it connects
MOST_UNSENT = 1 << 20  # output for one client
MOST_INPUT = 64 << 10  # that the job has not read
FAREWELL_S = 1.0  # at the end, for clients that have not read all output
FRAME = struct.Struct("!cH")
WINDOW = struct.Struct("!HH")
CREDENTIALS = struct.Struct("3i")
# Questions to the terminal: if they were repeated later, its answers would look like input.
QUESTIONS = re.compile(
    rb"\x1b\[[?>=]?[0-9;]*[cn]|\x1b\[[?>][0-9;]*[qu]|\x1bP[$+]q.*?\x1b\\|\x1b\][0-9;]*;\?(?:\x07|\x1b\\)"
)


class Client:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.unsent = bytearray()
        self.skipped = 0


class Terminal:
    """A pseudo-terminal and the clients that see it. `poller` is that of the supervisor, which calls `handle`."""

    def __init__(self, path: str, uid: int, rows: int, columns: int, poller: select.poll) -> None:
        self.master, self.slave = os.openpty()  # the slave stays open, so that the job can close and open it again
        os.fchmod(self.slave, 0o600)
        os.set_blocking(self.master, False)
        self._path, self._uid, self._poller = path, uid, poller
        self._clients: dict[int, Client] = {}
        self._had_client = False
        self._kept = bytearray()
        self._input = bytearray()
        self._pixels = 0
        self._resize(rows, columns)
        self._listener = _listen(path, uid)
        poller.register(self.master, select.POLLIN)
        poller.register(self._listener, select.POLLIN)

    def handle(self, fd: int, events: int) -> bool:
        """Handles what happened to a descriptor; False: it is none of the terminal."""
        if fd == self.master:
            if events & select.POLLOUT:
                self._feed()
        elif fd == self._listener.fileno():
            self._accept()
        elif (client := self._clients.get(fd)) is not None:
            if events & select.POLLOUT:
                self._send(client)
            if events & select.POLLIN:
                self._receive(client)
            elif events & (select.POLLHUP | select.POLLERR):
                self._drop(client)
        else:
            return False
        self._watch()
        return True

    def read(self) -> bytes | None:
        """A piece of output, which is also shown to the clients; None: there is none now."""
        try:
            piece = os.read(self.master, 1 << 16)
        except BlockingIOError:
            return None
        except OSError:  # it was hung up, by vhangup(2)
            self._poller.modify(self.master, 0)
            return None
        self._kept += piece
        del self._kept[:-KEPT_BYTES]
        for client in list(self._clients.values()):
            self._show(client, piece)
        self._watch()
        return piece

    def close(self) -> None:
        """Ends all connections, once the clients have read the output, or after a moment."""
        with suppress(OSError):
            os.unlink(self._path)
        self._listener.close()
        until = time.monotonic() + FAREWELL_S
        while (waiting := [one for one in self._clients.values() if one.unsent]) and time.monotonic() < until:
            select.select((), [one.connection for one in waiting], (), until - time.monotonic())
            for client in waiting:
                self._send(client)
        for client in list(self._clients.values()):
            self._drop(client)

    def _accept(self) -> None:
        with suppress(OSError):  # the client has left already
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            refusal = None
            if CREDENTIALS.unpack(credentials)[1] not in (self._uid, os.geteuid(), 0):
                refusal = "this terminal belongs to another user"
            elif len(self._clients) >= MOST_CLIENTS:
                refusal = f"{MOST_CLIENTS} terminals are attached to this job already: leave one of them first"
            connection.send(json.dumps({"version": 1, "refused": refusal}).encode() + b"\n")
            if refusal is not None:
                connection.close()
                return
            client = self._clients[connection.fileno()] = Client(connection)
            self._poller.register(connection, select.POLLIN)
            client.unsent += self._past()
            self._send(client)
            self._had_client = True

    def _past(self) -> bytes:
        """The end of the output, from the beginning of a line on."""
        past = bytes(self._kept)
        if not self._had_client:  # the questions in it have no answer yet
            return past
        if len(past) == KEPT_BYTES:
            past = past[past.find(b"\n") + 1 :]
        return QUESTIONS.sub(b"", past)

    def _show(self, client: Client, piece: bytes) -> None:
        if len(client.unsent) + len(piece) > MOST_UNSENT:
            client.skipped += len(client.unsent)
            client.unsent.clear()
        if client.skipped and not client.unsent:
            text = f"\r\n[cotenant: {client.skipped} bytes of output skipped: read too slowly]\r\n"
            client.unsent += text.encode()
            client.skipped = 0
        client.unsent += piece
        self._send(client)

    def _send(self, client: Client) -> None:
        try:
            del client.unsent[: client.connection.send(client.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)

    def _receive(self, client: Client) -> None:
        """Takes what a client sent; a client that breaks the rules is dropped."""
        try:
            piece = client.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        client.received += piece
        valid = bool(piece)
        while valid and len(client.received) >= FRAME.size:
            kind, size = FRAME.unpack_from(client.received)
            if len(client.received) < FRAME.size + size:
                break
            content = bytes(client.received[FRAME.size : FRAME.size + size])
            del client.received[: FRAME.size + size]
            valid = self._obey(kind, content)
        if not valid:
            self._drop(client)

    def _obey(self, kind: bytes, content: bytes) -> bool:
        if kind == b"i":
            self._input += content
            self._feed()
        elif kind == b"w" and len(content) == WINDOW.size:
            self._resize(*WINDOW.unpack(content))
        else:
            return False
        return True

    def _feed(self) -> None:
        """Passes input on, as far as the job reads it."""
        try:
            del self._input[: os.write(self.master, self._input)]
        except BlockingIOError:
            pass
        except OSError:  # it was hung up
            self._input.clear()

    def _resize(self, rows: int, columns: int) -> None:
        """Sets the size of the window. The number of pixels changes each time, so that programs get SIGWINCH and draw
        again even if the size is the same, as after a new client has connected."""
        self._pixels ^= 1
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, self._pixels, 0))

    def _watch(self) -> None:
        """Waits for what can be handled next. Clients with too much input wait, not the supervisor."""
        readable = select.POLLIN if len(self._input) < MOST_INPUT else 0
        self._poller.modify(self.master, select.POLLIN | (select.POLLOUT if self._input else 0))
        for fd, client in self._clients.items():
            self._poller.modify(fd, readable | (select.POLLOUT if client.unsent else 0))

    def _drop(self, client: Client) -> None:
        fd = client.connection.fileno()
        if self._clients.pop(fd, None) is not None:
            self._poller.unregister(fd)
            client.connection.close()


def _listen(path: str, uid: int) -> socket.socket:
    """A socket that only this user can open. It is made in a folder that only the supervisor can change."""
    folder, name = os.path.split(path)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    before = os.umask(0o177)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=handle)  # of an earlier run
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"/proc/self/fd/{handle}/{name}")  # the path of a socket must be short
        if uid != os.geteuid():
            os.chown(name, uid, -1, dir_fd=handle, follow_symlinks=False)
        listener.setblocking(False)
        listener.listen(MOST_CLIENTS)
    finally:
        os.umask(before)
        os.close(handle)
    return listener
