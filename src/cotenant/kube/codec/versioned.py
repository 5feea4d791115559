# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Annotations that hold JSON with a version: read whole or not at all."""

from typing import TypeVar

import msgspec

from cotenant.errors import InputError
from cotenant.kube.api.objects import decode_object
from cotenant.kube.codec.keys import MOST_BYTES

T = TypeVar("T")


class _Versioned(msgspec.Struct):
    version: int


def decode_annotation(key: str, text: str, kind: type[T], version: int) -> T:
    """What the annotation says; InputError where it is not that, or of a version that we do not know."""
    if len(text) > MOST_BYTES:
        raise InputError(f"annotation {key}: {len(text)} characters, expected at most {MOST_BYTES}")
    content = text.encode(errors="replace")
    what = f"annotation {key}"
    said = decode_object(content, _Versioned, what).version
    if said != version:
        raise InputError(f"{what}: version {said}, this cotenant reads {version}; update it first")
    return decode_object(content, kind, what)
