# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What an API server's answers say: objects, pages of lists, lines of watches, refusals.

The caller names a msgspec struct of what it reads of an object. An object that does not fit it is still known by name:
one bad object must not hide the others.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.objects import Node, Pod

Version = str | int
"""of a resource: to be sent back as it came. It is a text; the number is for servers that forget the quotes."""


class Identity(Protocol):
    """What every object says of itself."""

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
    """The identity alone: of a list, of a bookmark, or of an object of which nothing else could be decoded."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: Version = ""
    continue_: str = msgspec.field(name="continue", default="")


class Status(msgspec.Struct, frozen=True):
    """What a server says when it refuses."""

    code: int = 0
    reason: str = ""
    message: str = ""


class _Traced(msgspec.Struct, frozen=True):
    metadata: Trace = Trace()


class Items(msgspec.Struct, Generic[V], frozen=True):
    """A list as it is sent."""

    metadata: Trace
    items: list[V] | None = None


class Event(msgspec.Struct, Generic[V], frozen=True):
    """A line of a watch as it is sent."""

    type: str
    object: V


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A resource type, and what is read of its objects."""

    plural: str
    of: type[T]
    group: str = "api/v1"
    """or as in `apis/coordination.k8s.io/v1`"""
    cluster_wide: bool = False
    """whether its objects are in no namespace"""

    def path(self, *, namespace: str = "", name: str = "", part: str = "") -> str:
        """Where all objects, one of them, or a part of one is found."""
        parts = [*(["namespaces", namespace] if namespace else []), self.plural, name, part]
        return f"/{self.group}/" + "/".join(quote(piece, safe="") for piece in parts if piece)

    @cached_property
    def one(self) -> msgspec.json.Decoder[T]:
        """Decodes an object."""
        return msgspec.json.Decoder(self.of)

    @cached_property
    def items(self) -> msgspec.json.Decoder[Items[T]]:
        """Decodes a list in which every object is well."""
        return msgspec.json.Decoder(Items[self.of])  # type: ignore[name-defined]

    @cached_property
    def event(self) -> msgspec.json.Decoder[Event[T]]:
        """Decodes a line that carries an object that is well."""
        return msgspec.json.Decoder(Event[self.of])  # type: ignore[name-defined]


NODES = Kind("nodes", Node, cluster_wide=True)
PODS = Kind("pods", Pod)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list."""

    items: list[T]
    unread: list[Trace]
    """objects that are there and could not be decoded"""
    version: Version
    more: str
    """what to ask for the next part with; empty: this was the last"""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK"""
    metadata: Identity
    object: T | None
    """None: a bookmark, or it could not be decoded"""


CHANGES = ("ADDED", "MODIFIED", "DELETED")
UNREADABLE = (ValueError, RecursionError)
"""what a decoder raises: it is not JSON, not text, too deep, or not of this shape"""

_STATUS = msgspec.json.Decoder(Status)
_TRACED = msgspec.json.Decoder(_Traced)
_RAW_ITEMS = msgspec.json.Decoder(Items[msgspec.Raw])
_RAW_EVENT = msgspec.json.Decoder(Event[msgspec.Raw])


def read_object(decoder: msgspec.json.Decoder[V], body: bytes, asked: str) -> V:
    """The one object of an answer, or ApiError: with nothing else to go on, it has to be well."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise ApiError(asked, 0, "Malformed", str(error)) from None


def read_page(kind: Kind[T], body: bytes, asked: str) -> Page[T]:
    """Objects that are well, and the names of those that are not; ApiError where it is not a list."""
    try:
        found = kind.items.decode(body)
        return _page(found.items or [], [], found.metadata)
    except UNREADABLE:  # find out which
        raw = read_object(_RAW_ITEMS, body, asked)
    items: list[T] = []
    unread: list[Trace] = []
    for one in raw.items or []:
        try:
            items.append(kind.one.decode(one))
        except UNREADABLE:
            unread.append(_trace(one))
    return _page(items, unread, raw.metadata)


def _page(items: list[T], unread: list[Trace], metadata: Trace) -> Page[T]:
    return Page(items, unread, metadata.resource_version, metadata.continue_)


def read_change(kind: Kind[T], line: bytes, asked: str) -> Change[T]:
    """What happened; ApiError where the server says that the watch cannot go on, or the line is not an event."""
    try:
        event = kind.event.decode(line)
        if event.type in CHANGES:
            return Change(event.type, event.object.metadata, event.object)
    except UNREADABLE:
        pass  # bookmarks and errors carry objects of other shapes
    raw = read_object(_RAW_EVENT, line, asked)
    if raw.type == "ERROR":
        status = read_status(raw.object)
        raise ApiError(asked, status.code or 500, status.reason or "Error", status.message)
    return Change(raw.type, _trace(raw.object), None)


def read_status(body: bytes) -> Status:
    """An empty one where a proxy answers with a page of its own."""
    try:
        return _STATUS.decode(body)
    except UNREADABLE:
        return Status()


def _trace(raw: bytes) -> Trace:
    try:
        return _TRACED.decode(raw).metadata
    except UNREADABLE:
        return Trace()
