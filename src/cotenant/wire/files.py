# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads files that a user names, up to a size limit."""

from pathlib import Path

from cotenant.core.units import MIB_BYTES
from cotenant.errors import InputError


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
