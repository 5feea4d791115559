# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Admission reviews: the API server's question about one object, and the answers that it understands."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from cotenant.errors import InputError
from cotenant.kube.api.objects import MOST_BYTES as MOST_OBJECT_BYTES
from cotenant.kube.api.objects import decode_object
from cotenant.wire.local import decode

MOST_BYTES = 2 * MOST_OBJECT_BYTES
"""a review holds the object as it was and as it would be"""
VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

Json = dict[str, Any]
T = TypeVar("T")
_NOTHING = msgspec.Raw(b"null")


class Resource(msgspec.Struct, frozen=True):
    """What kind of thing it is, as paths of the API name it."""

    group: str = ""
    resource: str = ""


class User(msgspec.Struct, frozen=True):
    """Who asks."""

    username: str = ""
    groups: tuple[str, ...] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One object that somebody wants to write."""

    uid: str
    operation: str = ""
    resource: Resource = Resource()
    sub_resource: str = ""
    namespace: str = ""
    user_info: User = User()
    object: msgspec.Raw = _NOTHING
    old_object: msgspec.Raw = _NOTHING

    def is_for(self, operation: str, sub_resource: str = "") -> bool:
        """Whether this is done to a pod, or to a part of one."""
        return (self.resource, self.operation, self.sub_resource) == (Resource("", "pods"), operation, sub_resource)


class _Review(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str
    kind: str
    request: Request


def decode_review(body: bytes) -> Request:
    """What is asked; InputError where there is nobody to whom a refusal could be addressed."""
    if len(body) > MOST_BYTES:
        raise InputError(f"not an admission review: {len(body)} bytes, expected at most {MOST_BYTES}")
    review = decode(body, _Review, "an admission review")
    if (review.api_version, review.kind) != (VERSION, KIND):
        raise InputError(f"not an admission review: expected {KIND} of {VERSION}")
    return review.request


def decode_there(raw: msgspec.Raw, kind: type[T], what: str) -> T | None:
    """An object of a review, None where there is none."""
    content = bytes(raw)
    return None if content == b"null" else decode_object(content, kind, what)


def allowed(request: Request, old: Json | None = None, new: Json | None = None, warnings: Sequence[str] = ()) -> bytes:
    """Yes, with what has to be changed first; kubectl prints the warnings."""
    patch = [] if old == new else list(_changes(_ours(old), _ours(new), ""))
    said: Json = {"allowed": True} | ({"warnings": [f"cotenant: {one}" for one in warnings]} if warnings else {})
    if not patch:
        return _answer(request, said)
    encoded = b64encode(msgspec.json.encode(patch)).decode()
    return _answer(request, {**said, "patchType": "JSONPatch", "patch": encoded})


def refused(request: Request, code: int, sentence: str) -> bytes:
    """No, and why."""
    reason = {403: "Forbidden", 422: "Invalid"}[code]
    status = {"status": "Failure", "code": code, "reason": reason, "message": f"cotenant: {sentence}"}
    return _answer(request, {"allowed": False, "status": status})


def _answer(request: Request, response: Json) -> bytes:
    return msgspec.json.encode({"apiVersion": VERSION, "kind": KIND, "response": {"uid": request.uid, **response}})


def _changes(old: object, new: object, path: str) -> Iterator[Json]:
    """As a JSONPatch. A list that grew or shrank is replaced as a whole: to find the shortest way takes a time that
    grows with the square of it, and whoever writes a pod chooses how long its lists are."""
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            place = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if key not in new:
                yield {"op": "remove", "path": place}
            elif key not in old:
                yield {"op": "add", "path": place, "value": new[key]}
            else:
                yield from _changes(old[key], new[key], place)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _changes(before, after, f"{path}/{number}")
    elif old != new:
        yield {"op": "replace", "path": path, "value": new}


def _ours(pod: Json | None) -> Json:
    """The parts of a pod that we change: who manages which field is long, and is not compared."""
    parts = {key: value for key, value in (pod or {}).items() if key in ("metadata", "spec")}
    if "metadata" in parts:
        parts["metadata"] = {key: value for key, value in parts["metadata"].items() if key == "annotations"}
    return parts
