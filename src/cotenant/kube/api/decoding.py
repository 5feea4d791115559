# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding of an API server's responses: objects, pages of lists, events of watches, errors.

The caller gives a msgspec struct with the fields that it reads. An object that does not fit the struct is still known
by its name: one malformed object must not hide the others. The same holds for an object with JSON that the API server
takes from any user and a decoder does not, also in fields that are not read here: it has up to 10,000 levels, or
escapes of half a surrogate pair.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.objects import Node, Pod

Version = str | int
"""A resource version, to be sent back unchanged. It is a string; some servers omit the quotes."""


class Identity(Protocol):
    """The metadata that every object has."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> Version: ...


class Resource(Protocol):
    """An object of the API."""

    @property
    def metadata(self) -> Identity: ...


T = TypeVar("T", bound=Resource)
V = TypeVar("V")


class Trace(msgspec.Struct, frozen=True, rename="camel"):
    """Only the identity: of a list, of a bookmark, or of an object that could not be decoded."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: Version = ""
    continue_: str = msgspec.field(name="continue", default="")


class Status(msgspec.Struct, frozen=True):
    """The Status object with which a server reports an error."""

    code: int = 0
    reason: str = ""
    message: str = ""


class _Traced(msgspec.Struct, frozen=True):
    metadata: Trace = Trace()


class Items(msgspec.Struct, Generic[V], frozen=True):
    """A list in the server's format."""

    metadata: Trace
    items: list[V] | None = None


class Event(msgspec.Struct, Generic[V], frozen=True):
    """An event of a watch in the server's format."""

    type: str
    object: V


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A resource type, and the struct that its objects are decoded to."""

    plural: str
    of: type[T]
    group: str = "api/v1"
    """API group and version, for example `apis/coordination.k8s.io/v1`."""
    cluster_wide: bool = False
    """Whether its objects are in no namespace."""

    def path(self, *, namespace: str = "", name: str = "", part: str = "") -> str:
        """Return the path of all objects, of one object, or of one of its subresources."""
        parts = [*(["namespaces", namespace] if namespace else []), self.plural, name, part]
        return f"/{self.group}/" + "/".join(quote(piece, safe="") for piece in parts if piece)

    @cached_property
    def one(self) -> msgspec.json.Decoder[T]:
        """Decoder of one object."""
        return msgspec.json.Decoder(self.of)

    @cached_property
    def items(self) -> msgspec.json.Decoder[Items[T]]:
        """Decoder of a list in which every object is valid."""
        return msgspec.json.Decoder(Items[self.of])  # type: ignore[name-defined]

    @cached_property
    def event(self) -> msgspec.json.Decoder[Event[T]]:
        """Decoder of an event with a valid object."""
        return msgspec.json.Decoder(Event[self.of])  # type: ignore[name-defined]


NODES = Kind("nodes", Node, cluster_wide=True)
PODS = Kind("pods", Pod)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list."""

    items: list[T]
    unread: list[Trace]
    """Objects that exist but could not be decoded."""
    version: Version
    more: str
    """Token with which to request the next page; empty: this is the last one."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """An event of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    metadata: Identity
    object: T | None
    """None: the event is a bookmark, or the object could not be decoded."""


CHANGES = ("ADDED", "MODIFIED", "DELETED")
UNREADABLE = (ValueError, RecursionError)
"""What a decoder raises if its input is not JSON, not UTF-8, too deep, or of another shape."""
DEEPEST = 200
"""Levels that are left of a body which is nested too deeply for a decoder; objects of Kubernetes have about 20."""
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL
)
"""A surrogate pair, half of one, or another escape."""
_HALF = len(rb"\ud800")
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)
"""Texts, whose brackets do not count, and brackets."""

_STATUS = msgspec.json.Decoder(Status)
_TRACED = msgspec.json.Decoder(_Traced)
_RAW_ITEMS = msgspec.json.Decoder(Items[msgspec.Raw])
_RAW_EVENT = msgspec.json.Decoder(Event[msgspec.Raw])


def read_object(decoder: msgspec.json.Decoder[V], body: bytes, request: str) -> V:
    """Decode the only object of a response; ApiError if it is malformed."""
    try:
        return _decoded(decoder, body)
    except UNREADABLE as error:
        raise ApiError(request, 0, "Malformed", str(error)) from None


def _decoded(decoder: msgspec.json.Decoder[V], body: bytes) -> V:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:  # it is JSON
        raise
    except UNREADABLE:
        return decoder.decode(mended(body))


def mended(body: bytes) -> bytes:
    """The same JSON, with U+FFFD instead of each half of a surrogate pair, and null instead of each value that is
    nested deeper than DEEPEST levels."""
    body = _ESCAPES.sub(lambda escape: rb"\ufffd" if len(escape[0]) == _HALF else escape[0], body)
    kept: list[bytes] = []
    depth = start = 0
    for token in _TOKENS.finditer(body):
        sign = body[token.start()]
        if sign in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                kept += [body[start : token.start()], b"null"]
        elif sign in b"]}":
            depth -= 1
            if depth == DEEPEST:
                start = token.end()
    return b"".join([*kept, body[start:]])


def read_page(kind: Kind[T], body: bytes, request: str) -> Page[T]:
    """Decode a page: the valid objects, and the names of the others. ApiError if the body is not a list."""
    try:
        found = _decoded(kind.items, body)
        return _page(found.items or [], [], found.metadata)
    except UNREADABLE:  # decode the objects one by one, to find the malformed ones
        raw = read_object(_RAW_ITEMS, body, request)
    items: list[T] = []
    unread: list[Trace] = []
    for one in raw.items or []:
        try:
            items.append(_decoded(kind.one, one))
        except UNREADABLE:
            unread.append(_trace(one))
    return _page(items, unread, raw.metadata)


def _page(items: list[T], unread: list[Trace], metadata: Trace) -> Page[T]:
    return Page(items, unread, metadata.resource_version, metadata.continue_)


def read_change(kind: Kind[T], line: bytes, request: str) -> Change[T]:
    """Decode an event; ApiError if the server ends the watch with an error, or if the line is not an event."""
    try:
        event = _decoded(kind.event, line)
        if event.type in CHANGES:
            return Change(event.type, event.object.metadata, event.object)
    except UNREADABLE:
        pass  # bookmarks and errors have objects of other shapes
    raw = read_object(_RAW_EVENT, line, request)
    if raw.type == "ERROR":
        status = read_status(raw.object)
        raise ApiError(request, status.code or 500, status.reason or "Error", status.message)
    return Change(raw.type, _trace(raw.object), None)


def read_status(body: bytes) -> Status:
    """Decode a Status; an empty one if the body is something else, such as the error page of a proxy."""
    try:
        return _decoded(_STATUS, body)
    except UNREADABLE:
        return Status()


def _trace(raw: bytes) -> Trace:
    try:
        return _decoded(_TRACED, raw).metadata
    except UNREADABLE:
        return Trace()
