# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One route of the daemon's HTTP interface: what the table of routes consists of, and how requests are read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cotenant.errors import InputError
from cotenant.local.engine import Engine
from cotenant.wire.protocol import MOST_BYTES

Handler = Callable[[Engine, Request], Awaitable[Response]]


class May(StrEnum):
    """Who may call a route. Administrators may call all of them."""

    EVERYONE = "everyone"
    """every user whom the daemon knows; the handler leaves out what belongs to other users"""
    OWNER = "owner"
    """the owner of the job, reservation or token in the path"""
    ADMINISTRATOR = "administrator"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route of the API."""

    method: str
    path: str
    summary: str
    handler: Handler
    answers: Any = None
    """type of a successful answer; None: plain text or a stream"""
    takes: Any = None
    takes_always: bool = True
    """whether a body is required"""
    status: int = 200
    query: tuple[tuple[str, str], ...] = ()
    """(name, JSON type)"""
    may: May = May.ADMINISTRATOR


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


async def bounded_body(request: Request) -> bytes:
    """The body of a request; InputError if it is larger than the limit."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise InputError(f"the request is larger than {MOST_BYTES} bytes")
    return body


def whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InputError(f"{name}={text[:40]}: expected a whole number from {least} to {most}")
    return value
