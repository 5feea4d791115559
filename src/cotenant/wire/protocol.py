# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What all requests to the daemon of a machine, and its answers, have in common: version 1 of its API."""

import msgspec

VERSION = 1
MOST_BYTES = 1024 * 1024
"""of one request body"""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not carried out."""

    error: str
    reasons: dict[str, str] = {}
    suggestions: tuple[str, ...] = ()
    """with what it would be carried out, the smallest change first"""
    item: int | None = None
    """which of several requests it is about, from 0"""
