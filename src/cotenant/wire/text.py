# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Makes text from outside safe to print: names of files and jobs may contain any character."""


def printable(text: str) -> str:
    """The text on one line, with line breaks, control characters and undecodable bytes escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
