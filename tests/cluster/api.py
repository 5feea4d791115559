# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How tests talk to an API server whose network they cannot reach: through a socket file, as the administrator."""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Json = dict[str, Any]
T = TypeVar("T")

LOOK_EVERY = 0.1


class RefusedError(Exception):
    """The server's refusal, with its status first."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def ask(
    door: Path,
    method: str,
    path: str,
    body: Mapping[str, Any] | str | None = None,
    headers: Mapping[str, str] | None = None,
) -> str:
    """The text of the server's answer; a body that is a text is sent as it is, and headers may say for whom it is
    asked."""
    connection = http.client.HTTPConnection("localhost", timeout=30)
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.settimeout(30)
        connection.sock.connect(str(door))
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = body if body is None or isinstance(body, str) else json.dumps(body)
        with contextlib.suppress(BrokenPipeError):  # it may refuse, and hang up, before it has read the body
            connection.request(method, path, content, {"Content-Type": kind, "Connection": "close", **(headers or {})})
        answer = connection.getresponse()
        text = answer.read().decode()
    if answer.status >= 300:
        raise RefusedError(answer.status, text.strip())
    return text


def wait_for(what: str, look: Callable[[], T | None], seconds: float = 120.0) -> T:
    """The first true value that `look` finds, so an empty list, 0 or False goes on waiting; a server that does not
    answer yet has nothing."""
    last = "nothing yet"
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if found := look():
                return found
        except (OSError, http.client.HTTPException, RefusedError) as error:
            last = repr(error)
        time.sleep(LOOK_EVERY)
    raise TimeoutError(f"waited {seconds:g} s for {what}: {last}")
