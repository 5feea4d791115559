# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Annotations: the syntax of their keys, the keys of ours, the size limit, and JSON values with a version.

The API server does not check the annotations of a Binding. A pod that gets an invalid one this way can never be changed
again, not even by kubelet, which could no longer write the pod's status.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from cotenant.errors import InputError
from cotenant.kube.api.objects import decode_object
from cotenant.wire.text import printable

T = TypeVar("T")

PREFIX = "cotenant.io"
MOST_BYTES = 256 * 1024
"""Of all annotations of an object together, keys and values."""

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


def is_key(text: str) -> bool:
    """Whether Kubernetes accepts it as a qualified name: `name` or `domain/name`."""
    domain, slash, name = text.rpartition("/")
    if slash and (len(domain) > 253 or not _DOMAIN.fullmatch(domain.lower())):
        return False
    return _NAME.fullmatch(name) is not None


def own_key(name: str) -> str:
    """An annotation of ours."""
    return f"{PREFIX}/{name}"


def container_key(number: int, name: str) -> str:
    """An annotation of ours about one container, by its number: the name of a container may be too long for a key."""
    return own_key(f"{number}.{name}")


def qualified(namespace: str, name: str) -> str:
    """A name that a user chose, as the core knows it: equal names of two namespaces are two names."""
    return f"{namespace}/{name}"


def checked_annotations(new: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """The new annotations; InputError if a pod with the present ones may not carry them."""
    for key in new:
        if not is_key(key):
            raise InputError(f"annotation {printable(key[:80])!r}: not a key that Kubernetes accepts")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in {**present, **new}.items())
    if size > MOST_BYTES:
        raise InputError(f"the pod's annotations would have {size} bytes, Kubernetes takes {MOST_BYTES}; remove some")
    return dict(new)


class _Versioned(msgspec.Struct):
    version: int


def decode_annotation(key: str, text: str, kind: type[T], version: int) -> T:
    """The JSON value of an annotation; InputError if it is not of this type and version."""
    if len(text) > MOST_BYTES:
        raise InputError(f"annotation {key}: {len(text)} characters, expected at most {MOST_BYTES}")
    content = text.encode(errors="replace")
    what = f"annotation {key}"
    found = decode_object(content, _Versioned, what).version
    if found != version:
        raise InputError(f"{what}: version {found}, this cotenant reads {version}; update it first")
    return decode_object(content, kind, what)
