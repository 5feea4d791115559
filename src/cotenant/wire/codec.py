# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what comes from outside: JSON into a type, and files up to a size limit; errors say what a user can do."""

from pathlib import Path
from typing import TypeVar

import msgspec

from cotenant.core.units import MIB_BYTES
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


def read_bounded(path: Path, most: int, expected: str = "") -> bytes:
    """The content of a file of at most `most` bytes; InputError says what is wrong, and what was expected."""
    instead = f"; expected {expected}" if expected else ""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}){instead}") from None
    if len(content) > most:
        raise InputError(f"{path}: larger than {most // MIB_BYTES} MiB{instead}")
    return content
