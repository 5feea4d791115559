# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Text from elsewhere as it may be shown: names of files and jobs may hold anything."""


def printable(text: str) -> str:
    """One line that no terminal and no format stumbles over: line breaks, cursor moves and bytes that are no text are
    spelled out."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
