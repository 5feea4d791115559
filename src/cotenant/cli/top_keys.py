# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The full screen of `cotenant top` on a terminal: draws it in place, reads keys, and asks the daemon."""

import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from cotenant.cli.top_screen import Action, Snapshot, View, draw, press
from cotenant.client.client import Client
from cotenant.client.http import at
from cotenant.errors import CotenantError
from cotenant.wire.job_views import JobView

RESIZED_S = 0.25
"""after which a new size of the terminal is noticed"""
KEYS = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page-up",
    "\x1b[6~": "page-down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
    "\x1b": "esc",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
SEQUENCE = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)
"""one key in what the terminal sends"""
BARS = re.compile(r"(?=[█▒░])(█*)([▒░]*)")
LOW, MIDDLE = 0.5, 0.85
"""parts of a bar up to which it is green, and yellow; above it is red"""
GREEN, YELLOW, RED, BOLD, FAINT, REVERSED, PLAIN = (f"\x1b[{code}m" for code in (32, 33, 31, 1, 2, 7, 0))
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""the alternate screen without a cursor, and back: what was on the terminal before is there again afterwards"""


def full_screen(client: Client, read: Callable[[], Snapshot], every: float) -> None:
    """Shows what `read` answers until `q` is pressed. A daemon that does not answer is asked again: it may be
    restarting."""
    view, shown, size = View(), read(), (0, 0)
    due = time.monotonic() + every
    with _terminal() as descriptor:
        while True:
            now, columns = time.monotonic(), shutil.get_terminal_size()
            if now >= due:
                due, size = now + every, (0, 0)
                shown, view = updated(client, read, shown, view)
            if (columns.columns, columns.lines) != size:
                size = columns.columns, columns.lines
                _write(draw(shown, view, *size))
            for key in keys(descriptor, min(RESIZED_S, max(0.0, due - time.monotonic()))):
                view, action = press(view, key, shown)
                size = (0, 0)
                if action is not None and action.what == "quit":
                    return
                if action is not None:
                    view = _act(client, view, action)
                    due = 0.0


def updated(client: Client, read: Callable[[], Snapshot], shown: Snapshot, view: View) -> tuple[Snapshot, View]:
    """The next snapshot, and the view with the text of its panel as it is now."""
    try:
        shown = read()
    except CotenantError as error:
        return shown, replace(view, lost=str(error))
    view = replace(view, lost="")
    return shown, view if view.source is None else _act(client, view, view.source)


def _act(client: Client, view: View, action: Action) -> View:
    """The view after the daemon was asked; an error becomes a note."""
    from cotenant.cli.why import answer_lines

    job = at(action.job)
    try:
        match action.what:
            case "cancel":
                client.post(f"/v1/jobs/{job}/cancel", JobView)
                return replace(view, note=f"{action.job} is cancelled;")
            case "why":
                answer = client.get(f"/v1/jobs/{job}/why", dict[str, Any])
                return replace(view, panel=tuple(answer_lines(answer, wide=False)), source=action)
            case _:
                lines = max(5, shutil.get_terminal_size().lines - 2)
                text = b"".join(client.lines(f"/v1/jobs/{job}/log?tail={lines}")).decode(errors="replace")
                panel = tuple(text.splitlines()[-lines:]) or ("it has written no output",)
                return replace(view, panel=panel, source=action)
    except CotenantError as error:
        return replace(view, note=f"{error};", panel=(), source=None)


@contextmanager
def _terminal() -> Iterator[int]:
    """Keys arrive one by one and are not echoed; everything is as before in the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def enter() -> None:
        tty.setcbreak(descriptor)
        _send(ENTER)

    def leave() -> None:
        _send(LEAVE)
        termios.tcsetattr(descriptor, termios.TCSANOW, before)  # not TCSADRAIN, which may wait for the reader

    def stop(number: int, frame: object) -> None:
        """Ctrl-Z: the shell gets its terminal back, and `fg` continues here."""
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    handlers = {signal.SIGTSTP: stop, signal.SIGTERM: end, signal.SIGHUP: end}
    found = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    enter()
    try:
        yield descriptor
    finally:
        with suppress(OSError, termios.error):  # the terminal may be gone
            leave()
        for number, handler in found.items():
            signal.signal(number, handler)


def keys(descriptor: int, wait_s: float) -> list[str]:
    """The keys that were pressed within that time."""
    ready, _, _ = select.select([descriptor], [], [], wait_s)
    if not ready:
        return []
    text = os.read(descriptor, 1024).decode(errors="ignore")
    if not text:
        return ["q"]  # the terminal is gone
    found = SEQUENCE.findall(text)
    return [KEYS.get(key, key) for key in found if key in KEYS or len(key) == 1]


def _write(lines: list[str]) -> None:
    """Overwrites the last screen; it is not cleared, so it does not flicker."""
    title, *others = lines
    plain = bool(os.environ.get("NO_COLOR"))
    styled = [f"{BOLD}{title}{PLAIN}", *(line if plain else in_colour(line) for line in others)]
    _send("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in styled))


def in_colour(line: str) -> str:
    """A line with the colours of its bars; the chosen job is reversed, and titles are bold."""
    if line.startswith("> "):
        return f"{REVERSED}{line}{PLAIN}"
    if line.startswith("── "):
        return f"{BOLD}{line}{PLAIN}"
    return BARS.sub(_bar_in_colour, line)


def _bar_in_colour(found: re.Match[str]) -> str:
    full, free = found.groups()
    part = len(full) / len(full + free)
    colour = GREEN if part <= LOW else YELLOW if part <= MIDDLE else RED
    return f"{colour}{full}{FAINT}{free}{PLAIN}"


def _send(text: str) -> None:
    """Writes without the buffer of Python, which a handler of signals must not use while it is being written."""
    left = text.encode()
    while left:
        left = left[os.write(sys.stdout.fileno(), left) :]
