# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Sessions of viewers who signed in with a token. They are in memory only: a restart of the process ends them all.

The cookie holds a random number and nothing else; the token stays here. What is kept is bounded in all, and for each
user, so that no user can end the sessions of others.
"""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MOST = 2_000
MOST_OF_ONE = 20
"""Sessions of one user; a further one ends the oldest."""
LONGEST_S = 12 * 3600.0
IDLE_S = 2 * 3600.0
"""A session ends this long after its last request."""


@dataclass(slots=True)
class Session:
    """A viewer who signed in."""

    token: str = field(repr=False)
    user: str
    csrf: str = field(repr=False)
    since: float
    used: float


class Sessions:
    """All sessions, by the hash of their cookies."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, token: str, user: str) -> str:
        """Start a session and return the value of its cookie."""
        now = self._clock()
        self._drop([key for key, one in self._sessions.items() if not self._is_alive(one, now)])
        own = [key for key, one in self._sessions.items() if one.user == user]
        self._drop(own[: max(0, len(own) - MOST_OF_ONE + 1)])
        self._drop(list(self._sessions)[: max(0, len(self._sessions) - MOST + 1)])
        cookie = secrets.token_urlsafe(32)
        self._sessions[_key(cookie)] = Session(token, user, secrets.token_urlsafe(32), now, now)
        return cookie

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie, if it has not ended."""
        key, now = _key(cookie), self._clock()
        found = self._sessions.get(key)
        if found is None:
            return None
        if not self._is_alive(found, now):
            del self._sessions[key]
            return None
        found.used = now
        return found

    def end(self, cookie: str) -> None:
        """End the session of a cookie, if there is one."""
        self._sessions.pop(_key(cookie), None)

    def _is_alive(self, session: Session, now: float) -> bool:
        return now - session.since < LONGEST_S and now - session.used < IDLE_S

    def _drop(self, keys: list[bytes]) -> None:
        for key in keys:
            del self._sessions[key]


def _key(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode(errors="replace")).digest()
