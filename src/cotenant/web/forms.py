# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Forms that browsers send: small ones, and only those of our own pages."""

from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request

from cotenant.errors import InputError

MOST_BODY = 4096


async def small_form(request: Request, most: int = MOST_BODY) -> dict[str, list[str]]:
    """The fields of a form; InputError if it is too large."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise InputError(f"the request is larger than {most} bytes")
    return parse_qs(body.decode("utf-8", "replace"))


def is_foreign(request: Request) -> bool:
    """Whether a page of another site made the browser send this."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    other = origin is not None and urlsplit(origin).netloc != host
    return other or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
