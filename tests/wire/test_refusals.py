# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Refusals of documents that people write: where, what is expected, and the name that was probably meant."""

from typing import Any

import msgspec
import pytest

from cotenant.wire.codec import refusal


class Part(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    memory_mib: int = 0
    shares: float | None = None


class Document(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Part] = []
    by_name: dict[str, Part | None] = {}
    is_on: bool = False


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"part": []}, "unknown name 'part'; did you mean 'parts'?"),
        ({"xyz": 1}, "unknown name 'xyz'; expected one of by_name, is_on, parts"),
        ({"parts": [{}, {"memory": 1}]}, "parts[1]: unknown name 'memory'; did you mean 'memory-mib'?"),
        ({"by_name": {"a.b": {"share": 1}}}, "by_name[...]: unknown name 'share'; did you mean 'shares'?"),
        ({"parts": [{"memory-mib": "1"}]}, "parts[0].memory-mib: expected a whole number, not a text"),
        ({"parts": [{"shares": "1"}]}, "parts[0].shares: expected a number or null, not a text"),
        ({"parts": {}}, "parts: expected a list, not a map"),
        ({"is_on": 1}, "is_on: expected true or false, not a whole number"),
        ([], "expected a map, not a list"),
    ],
)
def test_a_document_is_refused_with_the_place_and_what_is_expected(document: Any, why: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(document, Document)
    assert refusal(caught.value, Document) == why
