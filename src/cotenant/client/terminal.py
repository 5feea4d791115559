# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Connects the terminal of this process with that of an interactive job. `cotenant.local.terminal` is the other side,
and describes the protocol."""

import json
import os
import re
import select
import signal
import socket
import struct
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NoReturn

from cotenant.client.client import Client
from cotenant.client.http import at
from cotenant.client.problems import NoDaemonError, RefusedByDaemonError
from cotenant.client.requests import own_size
from cotenant.errors import CotenantError, InputError
from cotenant.wire.job_views import ENDED, JobView, TerminalView

ESCAPE, LEAVE = b"\x1d", b"d"
"""Ctrl-] and d: the keys that leave the terminal of a job"""
ESCAPE_S = 1.0
"""how long Ctrl-] waits for the second key"""
LOOK_S = 0.2
NO_DAEMON_S = 600.0
"""how long a daemon that does not answer any more is waited for"""
MISSED_LINES = 1000
"""of the output of a job that ended before we could connect"""
MOST_TYPED = 64 << 10
"""bytes that the job has not taken"""
INPUT, WINDOW = b"i", b"w"
MOST_OF_A_FRAME = 16 << 10
_MODE = re.compile(rb"\x1b\[\?([0-9;]+)([hl])")
CURSOR = b"25"
"""the only mode of a terminal that is on by default and that programs switch off"""


def no_note(text: str) -> None:
    """Shows nothing."""


def refuse_remote(client: Client) -> None:
    """InputError if the daemon is on another machine, perhaps: terminals are reached by unix sockets only."""
    if client.is_remote:
        raise InputError(
            "a terminal can only be reached on its own machine, not over TCP: "
            "log in there first, for example with `ssh -t MACHINE cotenant submit --interactive`"
        )


def use_terminal(
    client: Client, name: str, *, read_only: bool = False, note: Callable[[str], None] = no_note
) -> JobView | None:
    """Waits until a job runs, connects with its terminal, and returns the job when it has ended; None: the user left
    it. If the job is stopped and queued again, it is waited for again. `note` gets why it waits, whenever that changes;
    an empty text once it runs."""
    refuse_remote(client)
    view = client.view(name)
    quiet_since, shown_attempt = time.monotonic(), 0
    while view.state not in ENDED:
        try:
            if view.state == "running":
                found = client.get(f"/v1/jobs/{at(view.id)}/terminal", TerminalView)
                with closing(connect(found.socket)) as connection:
                    note("")
                    shown_attempt = found.attempt
                    if follow(connection, read_only=read_only):
                        return None
            else:
                why = view.reason if view.state == "queued" else None
                note(f"{view.id} is {view.state}" + ("" if why is None else f": {why}"))
                time.sleep(LOOK_S)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(LOOK_S)  # it has not been made yet, or the job has just ended
        except PermissionError:
            raise CotenantError(f"{view.id}: this terminal belongs to another user") from None
        except RefusedByDaemonError:
            if client.view(view.id).state in ("running", "starting"):
                raise
        except NoDaemonError:
            pass  # asked again below
        try:
            view = client.view(view.id)
            quiet_since = time.monotonic()
        except NoDaemonError as error:
            if time.monotonic() - quiet_since > NO_DAEMON_S:
                raise
            note(f"{view.id}: {error}; waiting for it")
            time.sleep(LOOK_S)
    note("")
    if shown_attempt < view.attempts:  # it ended before we could connect
        for piece in client.log(view.id, tail=MISSED_LINES):
            write_all(1, piece.replace(b"\r\n", b"\n"))  # this terminal adds \r itself now
    return view


def connect(path: str) -> socket.socket:
    """A connection to the terminal of a job; CotenantError if it refuses."""
    folder, name = os.path.split(path)
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"/proc/self/fd/{place}/{name}")  # the path may be too long for the kernel
        line = b""
        while not line.endswith(b"\n") and len(line) < 1000:
            try:
                byte = connection.recv(1)
            except ConnectionResetError:  # the job ended before it accepted the connection
                byte = b""
            if not byte:
                raise ConnectionRefusedError
            line += byte
        refusal = json.loads(line)["refused"]
        if refusal is not None:
            raise CotenantError(str(refusal))
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(place)
    return connection


def follow(connection: socket.socket, *, read_only: bool = False, keys: int = 0, screen: int = 1) -> bool:
    """Shows the output of a job and passes on what is typed, until the connection ends; whether the user left."""
    modes, typed, unsent = Modes(), Keys(), b""
    reads = not read_only
    with own_terminal(keys, raw=reads) as resized:
        try:
            unsent = b"" if read_only else window_frame()
            while True:
                sources: list[Any] = [connection, resized, *([keys] if reads else [])]
                ready, writable, _ = select.select(sources, [connection] if unsent else [], [], typed.patience_s())
                if connection in ready:
                    try:
                        output = connection.recv(1 << 16)
                    except ConnectionResetError:
                        output = b""
                    if not output:
                        return False
                    modes.see(output)
                    write_all(screen, output)
                if resized in ready:
                    os.read(resized, 1000)
                    unsent += b"" if read_only else window_frame()
                text = b""
                if keys in ready:
                    piece = os.read(keys, MOST_OF_A_FRAME)
                    reads = bool(piece)  # else the terminal is gone
                    text = typed.take(piece)
                    if typed.left:
                        return True
                text += typed.overdue()
                if len(unsent) + len(text) > MOST_TYPED:
                    write_all(screen, b"\a")
                elif text:
                    unsent += frame(INPUT, text)
                if connection in writable and unsent:
                    with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                        unsent = unsent[connection.send(unsent, socket.MSG_DONTWAIT) :]
        finally:
            with suppress(OSError):
                write_all(screen, modes.undo())


class Keys:
    """Finds the keys that leave a terminal in what is typed: Ctrl-] d. Twice Ctrl-] sends one; before another key, or
    if none follows for a second, it is sent as it is."""

    def __init__(self) -> None:
        self.left = False
        self._since: float | None = None

    def take(self, piece: bytes) -> bytes:
        """What of it is for the job."""
        passed = bytearray()
        for number in piece:
            byte = bytes((number,))
            if self._since is None:
                if byte == ESCAPE:
                    self._since = time.monotonic()
                else:
                    passed += byte
                continue
            self._since = None
            if byte == LEAVE:
                self.left = True
                break
            passed += ESCAPE if byte == ESCAPE else ESCAPE + byte
        return bytes(passed)

    def patience_s(self) -> float | None:
        """How long to wait for the next key; None: for ever."""
        return None if self._since is None else max(0.0, self._since + ESCAPE_S - time.monotonic())

    def overdue(self) -> bytes:
        """Ctrl-], if no key followed it."""
        if self._since is None or self.patience_s():
            return b""
        self._since = None
        return ESCAPE


class Modes:
    """The modes that the output has switched on, such as another screen, the mouse or a hidden cursor."""

    def __init__(self) -> None:
        self._changed: set[bytes] = set()
        self._rest = b""

    def see(self, output: bytes) -> None:
        text = self._rest + output
        for found in _MODE.finditer(text):
            for mode in found[1].split(b";"):
                changes = (found[2] == b"h") != (mode == CURSOR)
                (self._changed.add if changes else self._changed.discard)(mode)
        self._rest = text[-40:] if b"\x1b" in text[-40:] else b""

    def undo(self) -> bytes:
        """What switches them off again."""
        return b"".join(b"\x1b[?%s%s" % (mode, b"h" if mode == CURSOR else b"l") for mode in sorted(self._changed))


def frame(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!H", len(content)) + content


def window_frame() -> bytes:
    size = own_size()
    return frame(WINDOW, struct.pack("!HH", size["rows"], size["columns"]))


def write_all(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


@contextmanager
def own_terminal(fd: int, *, raw: bool) -> Iterator[int]:
    """In it, keys are passed on as they are (`raw`), and a descriptor becomes readable when the window was resized.
    Afterwards the terminal is as before, however this process ends."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def end(number: int, _frame: object) -> NoReturn:
        sys.exit(128 + number)

    def continued(_number: int, _frame: object) -> None:
        if raw:  # the shell has reset it while this process was stopped
            tty.setraw(fd)

    handlers = {signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGCONT: continued, signal.SIGWINCH: lambda *_: None}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    wakes = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        with raw_terminal(fd) if raw and os.isatty(fd) else nothing():
            yield reader
    finally:
        signal.set_wakeup_fd(wakes)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def raw_terminal(fd: int) -> Iterator[None]:
    """In it, the terminal passes on all keys as they are. A second process restores it if this one is killed."""
    before = termios.tcgetattr(fd)
    raw = list(before)
    reader, writer = os.pipe()
    tty.setraw(fd)
    try:
        raw = termios.tcgetattr(fd)
        guard = os.fork()
        if guard == 0:
            restore_after_kill(fd, before, raw, reader, writer)
        os.close(reader)
        try:
            yield
        finally:
            os.write(writer, b"x")
            os.close(writer)
            os.waitpid(guard, 0)
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def restore_after_kill(fd: int, before: list[object], raw: list[object], reader: int, writer: int) -> NoReturn:
    """In a process of its own: waits for the end of the other one. If that was killed, and the
    terminal has not been changed since, restores it."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        os.close(writer)
        if not os.read(reader, 1) and termios.tcgetattr(fd) == raw:
            termios.tcsetattr(fd, termios.TCSANOW, before)  # type: ignore[arg-type]
    finally:
        os._exit(0)
