# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Notices about a job: when and to what they go, as users write and the journal stores them."""

import re
import shlex
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from cotenant.errors import InputError

MOST_NOTICES = 5
"""of one job"""
_ADDRESS = re.compile(r"[A-Za-z0-9._+%][A-Za-z0-9._+%-]{0,63}(@[A-Za-z0-9.-]{1,253})?", re.ASCII)


class When(StrEnum):
    """What a notice is about."""

    START = "start"
    """a run has started"""
    END = "end"
    """it has ended, in any way"""
    OK = "ok"
    """it exited with code 0"""
    FAILED = "failed"
    """it ended in another way, and was not cancelled"""


class Way(StrEnum):
    """How a notice is sent."""

    MAIL = "mail"
    WEB = "web"
    COMMAND = "command"


class Notice(NamedTuple):
    """When a notice is sent, how and where."""

    when: frozenset[When]
    way: Way
    words: tuple[str, ...]
    """the address of a mail (empty: the owner of the job), a URL, or the words of a command"""

    @property
    def text(self) -> str:
        """What is said of it in events: without the path of a URL, which is often a secret."""
        if self.way is Way.MAIL:
            return f"mail to {self.words[0] or 'its owner'}"
        return f"web hook at {urlsplit(self.words[0]).hostname}" if self.way is Way.WEB else f"command {self.words[0]}"


def parse_notice(text: str) -> Notice:
    """Converts `mail`, `failed:mail:ada@example.org`, `https://…` or `start,end:./tell.sh`; InputError says what is
    expected instead."""
    before, colon, rest = text.partition(":")
    moments = [word.strip() for word in before.split(",")]
    if colon and all(word in tuple(When) for word in moments):
        when, target = frozenset(map(When, moments)), rest.strip()
    elif colon and moments[0].isalpha() and rest.strip().startswith(("mail", "http:", "https:")) and before != Way.MAIL:
        raise InputError(
            f"--notify {before[:60]}: expected {', '.join(When)} before the colon, for example failed:mail"
        )
    else:
        when, target = frozenset((When.END,)), text.strip()
    if target == Way.MAIL or target.startswith(f"{Way.MAIL}:"):
        address = target.partition(":")[2]
        if address and not _ADDRESS.fullmatch(address):
            raise InputError(f"--notify {text[:60]}: {address[:60]!r} is not a mail address")
        return Notice(when, Way.MAIL, (address,))
    if target.startswith(("http:", "https:")):
        return Notice(when, Way.WEB, (_checked_url(target),))
    try:
        words = tuple(shlex.split(target))
    except ValueError as error:
        raise InputError(f"--notify {text[:60]}: {str(error).lower()}") from None
    if not words or "\0" in target:
        raise InputError(f"--notify {text[:60]}: expected mail, a URL or a command, for example failed:mail")
    return Notice(when, Way.COMMAND, words)


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.hostname and (parts.port is None or parts.port > 0) and url.isascii() and url.isprintable()
        valid = valid and parts.username is None  # a password would be part of messages about the host
    except ValueError:  # the port is not a number
        valid = False
    if not valid or " " in url:
        raise InputError("--notify: expected a URL such as https://example.org/hook")  # it may contain a secret
    return url
