# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens of users, by which the daemon knows them over TCP, as its API sends them."""

from typing import Annotated

import msgspec
from msgspec import Meta


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Asks for a new token."""

    user: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """whose token it is; null: the caller's. Only root makes tokens of other users"""
    label: Annotated[str, Meta(max_length=100)] = ""
    """what it is for"""


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret."""

    id: str
    user: str
    created: float
    label: str = ""


class NewToken(TokenView, frozen=True, kw_only=True):
    """A token that was just made: the only answer with its secret."""

    token: str
