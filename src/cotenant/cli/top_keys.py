# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The full screen of `cotenant top` on a terminal: draws it in place, reads keys, and asks the daemon."""

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cotenant.cli.client import Client, at
from cotenant.cli.top_screen import Action, Snapshot, View, draw, press
from cotenant.errors import CotenantError
from cotenant.wire.local import JobView

RESIZED_S = 0.25
"""after which a new size of the terminal is noticed"""
KEYS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b": "esc", "\r": "enter", "\n": "enter", "\x7f": "backspace"}
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""the alternate screen without a cursor, and back: what was on the terminal before is there again afterwards"""


def full_screen(client: Client, read: Callable[[], Snapshot], every: float) -> None:
    """Shows what `read` answers until `q` is pressed."""
    view, shown, size = View(), read(), (0, 0)
    due = time.monotonic() + every
    with _terminal() as descriptor:
        while True:
            now, columns = time.monotonic(), shutil.get_terminal_size()
            if now >= due:
                shown, due, size = read(), now + every, (0, 0)
            if (columns.columns, columns.lines) != size:
                size = columns.columns, columns.lines
                _write(draw(shown, view, *size))
            for key in _keys(descriptor, min(RESIZED_S, max(0.0, due - time.monotonic()))):
                view, action = press(view, key, shown)
                size = (0, 0)
                if action is not None and action.what == "quit":
                    return
                if action is not None:
                    view = _act(client, view, action)
                    due = 0.0


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
                return replace(view, panel=tuple(answer_lines(answer, wide=False)))
            case _:
                lines = max(5, shutil.get_terminal_size().lines - 2)
                text = b"".join(client.lines(f"/v1/jobs/{job}/log?tail={lines}")).decode(errors="replace")
                return replace(view, panel=tuple(text.splitlines()[-lines:]) or ("it has written no output",))
    except CotenantError as error:
        return replace(view, note=f"{error};")


@contextmanager
def _terminal() -> Iterator[int]:
    """Keys arrive one by one and are not echoed; everything is as before in the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        sys.stdout.write(ENTER)
        yield descriptor
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _keys(descriptor: int, wait_s: float) -> list[str]:
    """The keys that were pressed within that time."""
    ready, _, _ = select.select([descriptor], [], [], wait_s)
    if not ready:
        return []
    text = os.read(descriptor, 1024).decode(errors="ignore")
    if not text:
        return ["q"]  # the terminal is gone
    if text in KEYS:
        return [KEYS[text]]
    return [] if text.startswith("\x1b") else [KEYS.get(key, key) for key in text]


def _write(lines: list[str]) -> None:
    """Overwrites the last screen; it is not cleared, so it does not flicker."""
    title, *others = lines
    styled = [f"\x1b[1m{title}\x1b[0m", *others]
    sys.stdout.write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in styled))
    sys.stdout.flush()
