# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens by which users are known over TCP. The journal stores their digests only, so a token is shown once.

A token is `ct_ID_SECRET`: the ID finds the digest, and the digests are compared in constant time.
"""

import hmac
import re
import secrets
import time
from hashlib import sha256

import msgspec
from starlette.types import Scope

from cotenant.errors import InputError
from cotenant.local.events import log_error
from cotenant.local.identity import Caller, Callers
from cotenant.local.journal import Journal
from cotenant.local.owners import Owner
from cotenant.local.refusals import UnknownError
from cotenant.wire.tokens import NewToken, TokenView

KEY = "token:"
"""prefix of the journal's keys"""
MOST_PER_USER = 50
FORM = re.compile(rb"Bearer (ct_([0-9a-f]{12})_[A-Za-z0-9_-]{43})")


class _Stored(msgspec.Struct, frozen=True):
    """A token as the journal stores it."""

    owner: Owner
    digest: str
    created: float
    label: str = ""


class Tokens:
    """The tokens of one daemon's users."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tokens: dict[str, _Stored] = {}
        for key, text in journal.recalled(KEY).items():
            try:
                self._tokens[key.removeprefix(KEY)] = msgspec.json.decode(text, type=_Stored)
            except msgspec.MsgspecError as error:
                log_error(f"the token {key.removeprefix(KEY)} cannot be read and is not valid: {error}")

    def create(self, owner: Owner, label: str) -> NewToken:
        """Makes a token of a user; the only answer that contains it."""
        if sum(one.owner.uid == owner.uid for one in self._tokens.values()) >= MOST_PER_USER:
            raise InputError(f"{owner.user} has {MOST_PER_USER} tokens; revoke one with `cotenant token revoke ID`")
        token_id = secrets.token_hex(6)
        token = f"ct_{token_id}_{secrets.token_urlsafe(32)}"
        stored = _Stored(owner, _digest(token.encode()), time.time(), label)
        self._journal.remember(KEY + token_id, msgspec.json.encode(stored).decode())
        self._tokens[token_id] = stored
        return NewToken(id=token_id, user=owner.user, created=stored.created, label=label, token=token)

    def views(self, caller: Caller) -> list[TokenView]:
        """The tokens of a caller; for an administrator, those of all users."""
        return [
            TokenView(id=token_id, user=one.owner.user, created=one.created, label=one.label)
            for token_id, one in self._tokens.items()
            if caller.owns(one.owner)
        ]

    def owner(self, token_id: str) -> Owner:
        """Whom a token belongs to; UnknownError if there is none."""
        if token_id not in self._tokens:
            raise UnknownError(f"no token {token_id[:40]!r} here; `cotenant token list` lists them")
        return self._tokens[token_id].owner

    def revoke(self, token_id: str) -> TokenView:
        """Makes a token invalid, at once and for good."""
        self.owner(token_id)
        self._journal.remember(KEY + token_id, None)
        stored = self._tokens.pop(token_id)
        return TokenView(id=token_id, user=stored.owner.user, created=stored.created, label=stored.label)

    def __contains__(self, token_id: str) -> bool:
        """Whether a token exists and was not revoked."""
        return token_id in self._tokens

    def id_of_secret(self, authorization: bytes) -> str | None:
        """The ID of the token in this header; None: it is not a token of a user."""
        found = FORM.fullmatch(authorization)
        stored = None if found is None else self._tokens.get(found[2].decode())
        if found is None or stored is None or not hmac.compare_digest(_digest(found[1]), stored.digest):
            return None
        return found[2].decode()


class TokenAccess:
    """Identifies the callers of a TCP socket: by a user's token, or by the daemon's own token from a file."""

    def __init__(self, tokens: Tokens, callers: Callers, own: str | None) -> None:
        self._tokens, self._callers = tokens, callers
        self._own = None if own is None else f"Bearer {own}".encode()

    def identify(self, scope: Scope) -> Caller | None:
        """The daemon's own token is that of an administrator. A token is void when its user was removed."""
        given = dict(scope["headers"]).get(b"authorization", b"")
        if self._own is not None and hmac.compare_digest(given, self._own):
            return self._callers.own()
        token_id = self._tokens.id_of_secret(given)
        if token_id is None:
            return None
        owner = self._tokens.owner(token_id)
        caller = self._callers.of_uid(owner.uid, owner.gid)
        return caller if caller.user == owner.user else None


def _digest(token: bytes) -> str:
    return sha256(token).hexdigest()
