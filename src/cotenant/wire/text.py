# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Text for people: numbers with their nouns, times, and untrusted text made safe to print."""

import time


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 GPU`, `2 GPUs`; `plural` is for nouns that do not just take an s."""
    return f"{number:,} {inflect(number, noun, plural)}"


def inflect(number: int, word: str, plural: str | None = None) -> str:
    """The word alone in the singular or the plural: `GPU`, `GPUs`; `ends`, `end`."""
    return word if number == 1 else plural or word + "s"


def clock(at: float, now: float) -> str:
    """A time in the zone of this machine, with its date if that is not today's."""
    moment, today = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M" if moment[:3] == today[:3] else "%Y-%m-%d %H:%M", moment)


def printable(text: str) -> str:
    """One line that is safe in any terminal and format: characters that cannot be printed are escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def ago(then: float | None, now: float | None = None) -> str:
    """The time from `then` until `now` (default: the current time) as [DAYS-]HH:MM:SS, so that a column has one form.

    `ps` writes elapsed times like this.
    """
    if then is None:
        return "-"
    seconds = max(0, int((time.time() if now is None else now) - then))
    days = f"{seconds // 86_400}-" if seconds >= 86_400 else ""
    return f"{days}{seconds % 86_400 // 3600:02}:{seconds % 3600 // 60:02}:{seconds % 60:02}"


def duration_text(seconds: float) -> str:
    """A duration in a sentence: `0.4 s`, `45 s`, or `03:05:12` from two minutes on."""
    if seconds < 120:
        return f"{max(0.0, seconds):.{0 if seconds >= 10 else 1}f} s"
    return ago(0, seconds)
