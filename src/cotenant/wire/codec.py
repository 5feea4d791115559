# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes JSON from outside into a type, with an error message that a user can act on."""

from typing import TypeVar

import msgspec

from cotenant.errors import InputError

T = TypeVar("T")


def decode(content: bytes, kind: type[T], what: str) -> T:
    """JSON as this type; InputError says that it is not `what`, which field is wrong and what it should be."""
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError:
        raise InputError(f"not {what}: nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem, _, field = str(error).replace("`", "").partition(" - at ")
        raise InputError(f"not {what}: {field.removeprefix('$.') + ': ' if field else ''}{problem}") from None
