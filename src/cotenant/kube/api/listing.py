# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a whole list once, for commands that look at a cluster and end."""

from contextlib import aclosing

from cotenant.kube.api.client import ALL, Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind, T
from cotenant.kube.api.reflector import GONE

TRIES = 3
"""Attempts to read a list whose version expires before its last page."""


async def listed(client: Client, kind: Kind[T], which: Selection = ALL) -> tuple[list[T], int]:
    """Return all objects, and the number of objects that could not be decoded."""
    for attempt in range(1, TRIES + 1):
        found: list[T] = []
        malformed = 0
        try:
            # Each attempt uses larger pages: the previous ones were too many to read before the version expired.
            async with aclosing(client.pages(kind, which, page=client.limits.page * 4 ** (attempt - 1))) as pages:
                async for page in pages:
                    found += page.items
                    malformed += len(page.unread)
            return found, malformed
        except ApiError as error:
            if error.status != GONE or attempt == TRIES:
                raise
    raise AssertionError("the last attempt returns or raises")
