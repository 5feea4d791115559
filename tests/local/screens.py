# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Real terminals, in which tests run commands and type."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import cotenant.cli.attach
import cotenant.cli.jobs
from cotenant.cli.main import main
from tests.local.daemon import PATIENCE_S
from tests.local.users import become


class Screen:
    """A command in a terminal of its own: a fork of this process, because other users may not be able to read the
    interpreter."""

    def __init__(self, words: tuple[str, ...], env: Mapping[str, str], user: str | None, rows: int, columns: int):
        self.seen = b""
        self.code: int | None = None
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            code = 99
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
                sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
                if user is not None:
                    become(user)
                os.environ.pop("COTENANT_STATE", None)  # of another daemon, by a test before
                os.environ.update(env)
                sys.argv = ["cotenant", *words]
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 98
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        self.modes = self.now()

    def now(self) -> list[Any]:
        """The modes of the terminal."""
        return termios.tcgetattr(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def read(self, wait_s: float = 0.05) -> bool:
        """Reads what is shown; False: there was nothing, or the terminal is closed."""
        if not select.select([self._master], [], [], wait_s)[0]:
            return False
        with suppress(OSError):  # every process has closed it
            piece = os.read(self._master, 1 << 16)
            self.seen += piece
            return bool(piece)
        return False

    def until(self, text: str) -> str:
        """Reads until a text is shown; all that was shown up to there. The next call begins after it."""
        until, wanted = time.monotonic() + PATIENCE_S, text.encode()
        while wanted not in self.seen and time.monotonic() < until and self.end(0) is None:
            self.read()
        while wanted not in self.seen and self.read():
            pass
        before, found, self.seen = self.seen.partition(wanted)
        assert found, f"{text!r} was not shown in {before.decode(errors='replace')[-2000:]!r}, exit code {self.code}"
        return (before + found).decode(errors="replace")

    def end(self, patience_s: float = PATIENCE_S) -> int | None:
        """The exit code when the command has ended; None: it has not in time."""
        until = time.monotonic() + patience_s
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= until:
                return None
            else:
                self.read()
        return self.code

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        self.end()

    def close(self) -> None:
        if self.end(0) is None:
            self.kill()
        os.close(self._master)


@contextmanager
def screen(
    *words: str, env: Mapping[str, str], user: str | None = None, rows: int = 30, columns: int = 100
) -> Iterator[Screen]:
    """`cotenant` with these words in a terminal of this size."""
    one = Screen(words, {"TERM": "xterm", "SHELL": "/bin/sh", **env}, user, rows, columns)
    try:
        yield one
    finally:
        one.close()


__all__ = ["Screen", "screen"]
assert cotenant.cli.attach is not None  # imported here, because a fork with other rights cannot import it
assert cotenant.cli.jobs is not None
